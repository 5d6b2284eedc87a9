"""Run a function over chunks on several processes and take the results in the chunks' order.

The processes are this machine's, a Dask cluster's or MPI's. A result goes into files of the work folder (see
pieces.py), which all processes see; what a run that was ended left there is not computed again.
"""

from __future__ import annotations

import functools
import socket
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from data_prep.execution.memory import keep_freed_memory
from data_prep.execution.pieces import Pieces, numbered
from data_prep.execution.pools import Pool
from data_prep.execution.stopping import check_stop, children_without_interrupt

Task = TypeVar("Task")

Parts = Mapping[str, Any]  # of a result, by name; each is a piece of its own

# Tasks that are not done, for each worker: one at work, one waiting, so that nobody idles. Those of a packed log hold
# their lines in memory until they are done. Results take room on the disk alone, so workers go so many bytes of the
# log ahead of them that they have enough to do while a window of rows is shuffled and written.
_TASKS_PER_WORKER = 2

_LOG_BYTES_AHEAD = 256 << 20

_WAIT_SECONDS = 0.5  # for a result or a worker, before it is looked whether anybody still wants it


def map_in_order(
    function: Callable[[Task], Parts],
    tasks: Iterable[Task],
    pool: Pool | None,
    pieces: Pieces,
    title: str,
    needed: Callable[[int], Collection[str]],
    task_bytes: int,
) -> Generator[Parts, None, None]:
    """The parts that are `needed` (of each task, by number) of `function`'s results, in the order of the tasks.

    Without a pool in this process. Tasks, of about `task_bytes` of the log each, are taken and given to the pool by a
    thread of their own, few at a time, so an endless stream of them will do; those whose parts are there are not run.
    Parts stay in `pieces` until somebody removes them.

    Raises MemoryError where a worker process was ended from outside.
    """
    starter = _Starter(function, pool, pieces, title, needed)
    with closing(read_ahead(starter.start_all(tasks), tasks_ahead(task_bytes, pool))) as started:
        try:
            for number, parts, finish in started:
                finish()
                yield {part: _read(pieces, numbered(title, number, part)) for part in parts}
        finally:
            starter.end()


def tasks_ahead(task_bytes: int, pool: Pool | None) -> int:
    """How many tasks may be ahead of the result that is used."""
    return max(_LOG_BYTES_AHEAD // task_bytes, pool.num_workers * _TASKS_PER_WORKER) if pool else 1


class _Started(NamedTuple):
    """A task under way."""

    number: int
    parts: Collection[str]  # that are needed
    finish: Callable[[], None]  # afterwards they are there


class _Starter:
    """Starts tasks: has them run by the pool; without one, it is to `finish` a task that runs it."""

    def __init__(
        self,
        function: Callable[[Any], Parts],
        pool: Pool | None,
        pieces: Pieces,
        title: str,
        needed: Callable[[int], Collection[str]],
    ) -> None:
        self._function = function
        self._pool = pool
        self._pieces = pieces
        self._title = title
        self._needed = needed
        self._free = threading.Semaphore(pool.num_workers * _TASKS_PER_WORKER if pool else 1)
        self._undone: set[Future[None]] = set()
        self._is_over = False

    def start_all(self, tasks: Iterable[Task]) -> Generator[_Started, None, None]:
        """Start the tasks in their order, each as soon as there is a worker for it."""
        for number, task in enumerate(tasks):
            parts = self._needed(number)
            yield _Started(number, parts, self._start(number, task, parts))

    def _start(self, number: int, task: Any, parts: Collection[str]) -> Callable[[], None]:
        if all(self._pieces.is_whole(numbered(self._title, number, part)) for part in parts):
            return lambda: None
        if self._pool is None:
            return lambda: _write(self._pieces, self._title, number, self._function(task))
        return functools.partial(_wait_for, self._submit(self._pool, number, task))

    def _submit(self, pool: Pool, number: int, task: Any) -> Future[None]:
        while not self._free.acquire(timeout=_WAIT_SECONDS):
            if self._is_over:
                break
        with children_without_interrupt():
            job = _Job(str(self._pieces.folder), self._title, pool.job_id, self._function)
            future = pool.submit(_run_job, job, number, task)
        self._undone.add(future)
        future.add_done_callback(self._note_done)
        if self._is_over:
            future.cancel()
        return future

    def _note_done(self, future: Future[None]) -> None:
        self._undone.discard(future)
        self._free.release()

    def end(self) -> None:
        """No result is wanted any more."""
        self._is_over = True
        for future in tuple(self._undone):
            future.cancel()


def _wait_for(future: Future[None]) -> None:
    while not wait([future], timeout=_WAIT_SECONDS).done:
        check_stop()
    future.result()


def _write(pieces: Pieces, title: str, number: int, parts: Parts) -> None:
    for part, value in parts.items():
        pieces.write(numbered(title, number, part), value)


def _read(pieces: Pieces, name: str) -> Any:
    value = pieces.read(name)
    if value is None:
        raise OSError(f"{pieces.folder / name}: what was written there is not what is read; check the disk")
    return value


def job_name(title: str) -> str:
    """The piece with a reading's `job_id`: a worker that reads it sees the same folder."""
    return f"{title}.job"


@dataclass(frozen=True)
class _Job:
    """A reading's function for the workers, and where the parts of its results go."""

    folder: str
    title: str
    job_id: str
    function: Callable[[Any], Parts] = field(compare=False)  # sent with each task, used of the first


def _run_job(job: _Job, number: int, task: Any) -> None:
    """In a worker: run the function of a reading on a task and put the parts of the result into the folder."""
    _write(Pieces(Path(job.folder)), job.title, number, _begin(job)(task))


@functools.lru_cache(maxsize=1)
def _begin(job: _Job) -> Callable[[Any], Parts]:
    """The function, the same object for all tasks of a reading: it keeps what it opened."""
    keep_freed_memory()
    if Pieces(Path(job.folder)).read(job_name(job.title)) != job.job_id:
        raise OSError(
            f"the worker on {socket.gethostname()} does not see {job.folder}: the output folder and the log have to be "
            "on a file system that all workers share, under the same path"
        )
    return job.function


Item = TypeVar("Item")

_QUEUE_SECONDS = 0.5  # for an item, before a signal to stop is looked for


def read_ahead(items: Generator[Item, None, None], num_ahead: int) -> Generator[Item, None, None]:
    """`items` in their order, of which at most `num_ahead` wait to be used.

    An error of theirs comes in its place. Closing this closes `items`, too, in their thread, which is over then.
    """
    ahead = _Ahead(items, num_ahead)
    thread = threading.Thread(target=ahead.fill, daemon=True)
    thread.start()
    try:
        while ahead.has_next():
            yield ahead.take()
    finally:
        ahead.stop()
        thread.join()
    if ahead.error is not None:
        raise ahead.error


class _Ahead(Generic[Item]):
    """What the two threads share."""

    def __init__(self, items: Generator[Item, None, None], num_ahead: int) -> None:
        self._waiting: deque[Item] = deque()
        self.error: BaseException | None = None
        self._items = items
        self._num_ahead = num_ahead
        self._is_over = False  # for both: no item is to come, or none is wanted
        self._changed = threading.Condition()

    def fill(self) -> None:
        """In the thread: take all items, as long as they are wanted."""
        try:
            with closing(self._items):
                for item in self._items:
                    self._add(item)
                    if self._is_over:
                        break
        except BaseException as error:
            self.error = error
        finally:
            self.stop()

    def _add(self, item: Item) -> None:
        with self._changed:
            self._waiting.append(item)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_over or len(self._waiting) < self._num_ahead)

    def has_next(self) -> bool:
        """Wait for an item; False where none is to come. Raises Stopped after a signal."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._waiting or self._is_over, _QUEUE_SECONDS):
                check_stop()
        check_stop()
        return bool(self._waiting)

    def take(self) -> Item:
        """The next item, which makes room for another."""
        with self._changed:
            self._changed.notify_all()
            return self._waiting.popleft()

    def stop(self) -> None:
        """End the waiting on both sides."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
