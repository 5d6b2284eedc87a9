"""Run a function on each chunk of a log, in several processes, and return the results in the order of the chunks.

A pass is one such run over the whole log; a task is the work on one chunk. The processes belong to this machine, a Dask
cluster or MPI. Results are stored in files of the work folder (see pieces.py), which all processes can access. A result
that an interrupted run has stored is not computed again.
"""

from __future__ import annotations

import ctypes
import functools
import queue
import socket
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from common.signals import check_stop, children_without_interrupt
from data_prep.execution.pieces import Pieces, numbered
from data_prep.execution.pools import Pool
from data_prep.prepared.prefetch import Prefetcher

Task = TypeVar("Task")
Item = TypeVar("Item")

# The result of a task, which consists of named parts. Each part is stored in a file of its own.
Results = Mapping[str, Any]
ReadPart = Callable[[str], Any]

# Number of unfinished tasks per worker: one runs and one waits, so that no worker is idle. More tasks would take too
# much memory, because a task of a compressed log holds its lines in memory until it is done. Finished results take only
# disk space, so tasks are started for up to _LOG_BYTES_AHEAD bytes of the log beyond the chunk whose result the main
# process uses. These tasks keep the workers busy while the main process is busy, for example shuffling and writing a
# window of rows.
_TASKS_PER_WORKER = 2
_LOG_BYTES_AHEAD = 256 << 20

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # Constants of glibc's malloc.h.
WAIT_SECONDS = 0.5  # While waiting for a result, check for a stop signal (Ctrl-C, SIGTERM) at this interval.


def map_in_order(
    function: Callable[[Task], Results],
    tasks: Iterable[Task],
    pool: Pool | None,
    pieces: Pieces,
    title: str,
    needed: Callable[[int], Collection[str]],
    task_bytes: int,
) -> Generator[ReadPart, None, None]:
    """Run `function` on each task of a pass over the log, on the workers of `pool`.

    For each task, in order, yield a function that takes the name of a part of the task's result and returns this part.
    The parts of a result are stored in files (`pieces`), which remain until the caller removes them. `needed` maps the
    number of a task to the names of the parts that the caller reads; if all of them are stored already, the task is not
    run. If `pool` is None, tasks run in this process. Each task covers about `task_bytes` bytes of the log. `tasks` may
    be an endless stream, from which a thread takes a few tasks in advance.
    """
    starter = _Starter(function, pool, pieces, title, needed)
    with closing(read_ahead(starter.start_all(tasks), tasks_ahead(task_bytes, pool))) as results:
        try:
            for number, finish in results:
                finish()
                yield functools.partial(_read_part, pieces, title, number)
        finally:
            starter.cancel()


def tasks_ahead(task_bytes: int, pool: Pool | None) -> int:
    """Return how many tasks of a pass may be started before the caller has used the result of the first of them.

    A task covers about `task_bytes` bytes of the log. If `pool` (the workers) is None, the number is 1.
    """
    return max(_LOG_BYTES_AHEAD // task_bytes, pool.num_workers * _TASKS_PER_WORKER) if pool else 1


def _read_part(pieces: Pieces, title: str, number: int, part: str) -> Any:
    return pieces.expect(numbered(title, number, part))


@dataclass(eq=False)
class _Starter:
    """Starts the tasks of a pass over the log on the workers of `pool`.

    If `pool` is None, each task runs in this process when its result is requested.
    """

    function: Callable[[Any], Results]
    pool: Pool | None
    pieces: Pieces
    title: str
    needed: Callable[[int], Collection[str]]

    def __post_init__(self) -> None:
        self._job = Job(str(self.pieces.folder), self.title, self.pool.job_id if self.pool else "", self.function)
        self._free = threading.Semaphore(self.pool.num_workers * _TASKS_PER_WORKER if self.pool else 1)
        self._undone: set[Future[None]] = set()
        self._is_cancelled = False

    def start_all(self, tasks: Iterable[Task]) -> Generator[tuple[int, Callable[[], None]], None, None]:
        """Start the tasks in order, each as soon as a worker is available.

        For each task, yield its number and a function. The function waits until the parts of the task's result that the
        caller needs are stored, and raises the task's error if the task failed.
        """
        for number, task in enumerate(tasks):
            parts = self.needed(number)
            if all(self.pieces.is_whole(numbered(self._job.title, number, part)) for part in parts):
                yield number, lambda: None
            elif self.pool is None:
                yield number, functools.partial(self._job.run, number, task)
            else:
                yield number, functools.partial(_wait_for, self._submit(self.pool, number, task))

    def _submit(self, pool: Pool, number: int, task: Any) -> Future[None]:
        while not self._free.acquire(timeout=WAIT_SECONDS):
            if self._is_cancelled:
                break
        with children_without_interrupt():
            future = pool.submit(run_in_worker, self._job, number, task)
        self._undone.add(future)
        future.add_done_callback(self._note_done)
        if self._is_cancelled:
            future.cancel()
        return future

    def _note_done(self, future: Future[None]) -> None:
        self._undone.discard(future)
        self._free.release()

    def cancel(self) -> None:
        """Cancel the tasks that no worker has started yet, because nobody will use their results."""
        self._is_cancelled = True
        for future in tuple(self._undone):
            future.cancel()


def _wait_for(future: Future[None]) -> None:
    while not wait([future], timeout=WAIT_SECONDS).done:
        check_stop()
    future.result()


def job_name(title: str) -> str:
    """Return the name of the file (piece) in which the main process stores the `job_id` of the pass called `title`.

    A worker reads the file to check that it sees the same work folder as the main process.
    """
    return f"{title}.job"


@dataclass(frozen=True)
class Job:
    """The function that workers call on each task of a pass over the log, and the folder and title of its results."""

    folder: str
    title: str
    job_id: str
    # The function is sent with each task, but a worker uses the copy that it received with its first task of the pass
    # over the log.
    function: Callable[[Any], Results] = field(compare=False)

    def run(self, number: int, task: Any) -> None:
        pieces = Pieces(Path(self.folder))
        for part, value in self.function(task).items():
            pieces.write(numbered(self.title, number, part), value)


def run_in_worker(job: Job, number: int, task: Any) -> None:
    """Run `task` with the function that this worker received with its first task of the pass over the log."""
    _as_first_got(job).run(number, task)


# The cache has two entries: the `Job` of the running pass over the log, and the `Job` of additional tasks
# (`TasksBeside`).
@functools.lru_cache(maxsize=2)
def _as_first_got(job: Job) -> Job:
    """Return the copy of `job` that this worker process received with its first task of the same pass over the log.

    Each task brings its own copy of the job. Because all tasks use the first copy, files and tables that the job's
    function has opened stay open for later tasks. Raise OSError if this worker does not see the work folder.
    """
    keep_freed_memory()
    if Pieces(Path(job.folder)).read(job_name(job.title)) != job.job_id:
        raise OSError(
            f"the worker on {socket.gethostname()} does not see {job.folder}: the output folder and the log have to be "
            "on a file system that all workers share, under the same path"
        )
    return job


def keep_freed_memory() -> None:
    """Make glibc's malloc keep freed memory, so that the arrays of a chunk reuse the memory of the chunk before.

    By default glibc returns the memory of freed arrays of some megabytes to the system, which has to clear new memory
    for the next chunk. Returning and clearing memory takes a sixth of the time of a whole preparation.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        # malloc keeps freed arrays of up to this size. glibc accepts at most 32 MiB.
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def read_ahead(items: Generator[Item, None, None], num_ahead: int) -> Generator[Item, None, None]:
    """Yield the elements of `items`.

    A thread takes up to `num_ahead` elements from `items` before the caller asks for them. If `items` raises an error,
    this generator first yields all earlier elements, and then raises the error. Closing this generator closes `items`
    and ends the thread. Raise StopSignal after a stop signal (common/signals.py).
    """
    with closing(items), Prefetcher(items, num_ahead - 1, _take) as elements:
        yield from elements


def _take(items: queue.SimpleQueue[Item]) -> Item:
    while True:
        check_stop()
        with suppress(queue.Empty):
            return items.get(timeout=WAIT_SECONDS)


class TasksBeside:
    """Runs additional tasks on the workers of a pass over the log during the pass, at most `most` at the same time.

    If `pool` is None, the tasks run in this process. The results of the tasks are stored as pieces (files), like the
    results of the pass, and the names of these pieces begin with `title`.
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
        """Wait until fewer than `most` of the additional tasks run, then start `task`.

        Raise the error of an earlier task that failed. Without a pool, run the task now.
        """
        if self._pool is None:
            self._job.run(number, task)
            return
        self.wait(self._most - 1)
        with children_without_interrupt():
            self._undone.add(self._pool.submit(run_in_worker, self._job, number, task))

    def wait(self, num_left: int = 0) -> None:
        """Wait until at most `num_left` of the started tasks are unfinished.

        Raise the error of a task that failed.
        """
        while len(self._undone) > num_left:
            check_stop()
            finished, self._undone = wait(self._undone, WAIT_SECONDS, FIRST_COMPLETED)
            for future in finished:
                future.result()

    def close(self) -> None:
        """Cancel the additional tasks that no worker has started yet."""
        for future in self._undone:
            future.cancel()
