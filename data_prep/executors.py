"""Run a function over chunks on several processes and take the results in the chunks' order.

The processes are this machine's, a Dask cluster's or MPI's. A result goes into files of the work folder (see
pieces.py), which all processes see; what a run that was ended left there is not computed again.
"""

from __future__ import annotations

import functools
import socket
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from data_prep.memory import keep_freed_memory
from data_prep.pieces import Pieces, numbered
from data_prep.pools import Pool
from data_prep.raw_log import StoredChunk
from data_prep.stopping import check_stop, children_without_interrupt

Task = TypeVar("Task")
Parts = Mapping[str, Any]  # of a result, by name; each is a piece of its own

# Chunks under way for each worker: one at work, one waiting, so that memory stays bounded and nobody idles. Chunks that
# workers read themselves take no memory here: so many bytes of the log are under way that workers have enough to do
# while a window of rows is shuffled and written.
_TASKS_PER_WORKER = 2
_STORED_BYTES_AHEAD = 256 << 20
_WAIT_SECONDS = 0.5  # for a result, before a signal to stop is looked for


def map_in_order(
    function: Callable[[Task], Parts],
    tasks: Iterable[Task],
    pool: Pool | None,
    pieces: Pieces,
    title: str,
    needed: Callable[[int], Collection[str]],
) -> Generator[Parts, None, None]:
    """The parts that are `needed` (of each task, by number) of `function`'s results, in the order of the tasks.

    Without a pool in this process. Few tasks are under way at a time, so an endless stream of tasks will do; those
    whose parts are there are not run. Parts stay in `pieces` until somebody removes them.

    Raises MemoryError where a worker process was ended from outside.
    """
    submit = functools.partial(_submit, function, pool, pieces, title)
    ahead = 1
    running: deque[_Running] = deque()
    waiting = enumerate(tasks)
    try:
        while True:
            check_stop()
            while len(running) < ahead and (next_one := next(waiting, None)) is not None:
                number, task = next_one
                parts = needed(number)
                is_there = all(pieces.has(numbered(title, number, part)) for part in parts)
                running.append((number, task, parts, None if is_there else submit(number, task)))
                ahead = _tasks_ahead(task, pool)
            if not running:
                return
            number, task, parts, future = running.popleft()
            if future is not None:
                while not wait([future], timeout=_WAIT_SECONDS).done:
                    check_stop()
                future.result()
            yield _read(function, pieces, title, number, task, parts)
    finally:
        for *_, future in running:
            if future is not None:
                future.cancel()


def _tasks_ahead(task: object, pool: Pool | None) -> int:
    """How many tasks such as this one may be under way."""
    if pool is None:
        return 1
    of_log = _STORED_BYTES_AHEAD // max(task.num_bytes, 1) if isinstance(task, StoredChunk) else 0
    return max(of_log, pool.num_workers * _TASKS_PER_WORKER)


_Running = tuple[int, Any, Collection[str], "Future[None] | None"]


def _submit(
    function: Callable[[Task], Parts], pool: Pool | None, pieces: Pieces, title: str, number: int, task: Task
) -> Future[None]:
    if pool is not None:
        with children_without_interrupt():
            return pool.submit(_run_job, str(pieces.folder), title, pool.job_id, number, task)
    done: Future[None] = Future()
    _write(pieces, title, number, function(task))
    done.set_result(None)
    return done


def _write(pieces: Pieces, title: str, number: int, parts: Parts) -> None:
    for part, value in parts.items():
        pieces.write(numbered(title, number, part), value)


def _read(
    function: Callable[[Task], Parts], pieces: Pieces, title: str, number: int, task: Task, parts: Collection[str]
) -> Parts:
    for attempt in range(2):
        found = {part: pieces.read(numbered(title, number, part)) for part in parts}
        if all(value is not None for value in found.values()):
            return found
        if attempt == 0:  # damaged since it was written
            _write(pieces, title, number, function(task))
    raise OSError(f"{pieces.folder}: what is written there is not what is read; check the disk")


def job_name(title: str) -> str:
    """The piece with a reading's function, for the workers."""
    return f"{title}.job"


def _run_job(folder: str, title: str, job_id: str, number: int, task: Any) -> None:
    """In a worker: run the function of a reading on a task and put the parts of the result into the folder."""
    pieces = Pieces(Path(folder))
    _write(pieces, title, number, _job(folder, title, job_id)(task))


@functools.lru_cache(maxsize=1)
def _job(folder: str, title: str, job_id: str) -> Callable[[Any], Parts]:
    """The function, read once a reading (`job_id`); workers of a cluster outlive many."""
    keep_freed_memory()
    function = Pieces(Path(folder)).read(job_name(title))
    if function is None:
        raise OSError(
            f"the worker on {socket.gethostname()} does not see {folder}: the output folder and the log have to be on "
            "a file system that all workers share, under the same path"
        )
    return function
