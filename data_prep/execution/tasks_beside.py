"""Run single tasks on the workers of a pass, beside the pass itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from common.signals import check_stop, children_without_interrupt
from data_prep.execution.pieces import Pieces
from data_prep.execution.pools import Pool
from data_prep.execution.tasks import WAIT_SECONDS, Job, Results, job_name, run_in_worker


class TasksBeside:
    """Runs single tasks on the workers of a pass, at most `most` at a time.

    Without a pool, tasks run in this process. As in a pass, results are pieces whose names begin with `title`.
    """

    def __init__(
        self, function: Callable[[Any], Results], pool: Pool | None, pieces: Pieces, title: str, most: int
    ) -> None:
        self._pool = pool
        self._job = Job(str(pieces.folder), title, pool.job_id if pool else "", function)
        self._most = most
        self._undone: set[Future[None]] = set()
        if pool is not None:
            pieces.write(job_name(title), pool.job_id)

    def start(self, number: int, task: Any) -> None:
        """Start a task once fewer than `most` tasks run. Raise the error of an earlier task."""
        if self._pool is None:
            self._job.run(number, task)
            return
        self.wait(self._most - 1)
        with children_without_interrupt():
            self._undone.add(self._pool.submit(run_in_worker, self._job, number, task))

    def wait(self, num_left: int = 0) -> None:
        """Wait until at most `num_left` tasks run. Raise the error of a task."""
        while len(self._undone) > num_left:
            check_stop()
            finished, self._undone = wait(self._undone, WAIT_SECONDS, FIRST_COMPLETED)
            for future in finished:
                future.result()

    def close(self) -> None:
        """Cancel the tasks that have not started."""
        for future in self._undone:
            future.cancel()
