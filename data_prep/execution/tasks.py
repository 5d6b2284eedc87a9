"""Run a function on each chunk of a log, in several processes, and return the results in the order of the chunks.

A pass is one such run over the whole log; a task is the work on one chunk. The processes (workers) belong to this
machine, a Dask cluster or MPI. Results are stored in files of the work folder (see pieces.py), which all processes can
access. A result that an interrupted run has stored is not computed again.

`pipeline.memory_and_disk` decides the number of worker processes on this machine. With Dask and MPI, the setting
`memory_limit` limits only the main process. Users must give each Dask or MPI worker the memory that
`memory_and_disk.worker_bytes` returns, plus the memory for a window, that is, for the rows that are shuffled together.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from common.signals import check_stop, children_without_interrupt
from data_prep.execution.pieces import Pieces, numbered
from data_prep.options.executor import ExecutorChoice, ExecutorKind
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
_INSTALL = {"dask": "pip install '.[dask]'", "mpi": "pip install '.[mpi]'"}
_SIGNAL_SECONDS = 0.2
_ANSWER_SECONDS = 10
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGXFSZ, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
_MPI_COMMAND = "mpirun -n 3 python -m mpi4py.futures -m data_prep prepare ... --executor mpi"


@dataclass(frozen=True)
class Pool:
    """A set of workers that run the tasks of one pass over the log. Each pass has a `job_id` of its own."""

    executor: Executor
    num_workers: int  # Number of tasks that the workers run at the same time.
    job_id: str = ""
    deaths: tuple[type[Exception], ...] = ()  # Types of exceptions which mean that a worker died.
    advice: str = ""  # What the user should do after one of the exceptions in `deaths`.
    # Function that returns a message if a worker crashed or exited: how it ended, and what to do. The function returns
    # "" if none did.
    fault: Callable[[], str] = lambda: ""

    def submit(self, function: Callable[..., None], *arguments: Any) -> Future[None]:
        return self.executor.submit(function, *arguments)


class Pools:
    """Provides a pool of workers for each pass over the log. All passes use the same processes or the same cluster.

    If a pass asks for another number of processes than the pass before, new processes are started. `close` ends them.
    """

    def __init__(self, choice: ExecutorChoice) -> None:
        self._choice = choice
        self._at_the_end = ExitStack()
        self._cluster: Pool | None = None

    @contextmanager
    def open(self, num_workers: int) -> Iterator[Pool | None]:
        """Yield the workers (a `Pool`) for one pass over the log, or None if this process does all work itself.

        `num_workers` is the number of processes on this machine. A Dask or MPI cluster has its own number of workers.
        Raise MemoryError if a worker was killed, OSError if a worker crashed or if the cluster cannot be used.
        """
        if self._choice.kind == "processes":
            if self._cluster is not None and self._cluster.num_workers != num_workers:
                self.close()
            if num_workers == 1:
                yield None
                return
        if self._cluster is None:
            with children_without_interrupt():
                self._cluster = self._at_the_end.enter_context(_CLUSTERS[self._choice.kind](self._choice, num_workers))
        cluster = self._cluster
        try:
            yield replace(cluster, job_id=uuid.uuid4().hex)
        except cluster.deaths as error:
            # If a signal such as SIGTERM killed the worker, this process may get the same signal a moment later. Wait
            # for it, so that `check_stop` raises StopSignal and the misleading errors below are not raised.
            time.sleep(_SIGNAL_SECONDS)
            check_stop()
            if fault := cluster.fault():
                raise OSError(fault) from error
            raise MemoryError(
                f"a worker was killed ({error}), most likely for lack of memory; finished work is kept: "
                f"{cluster.advice}"
            ) from error

    def close(self) -> None:
        """End the worker processes.

        With Dask, disconnect from the cluster, and end the cluster if this object started it.
        """
        self._cluster = None
        self._at_the_end.close()


@contextmanager
def _processes(_: ExecutorChoice, num_workers: int) -> Iterator[Pool]:
    # Processes are started fresh instead of forked, because this process may have loaded MindSpore with its threads.
    executor = ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), _start_worker)
    advice = f"run the same command again with fewer than {num_workers} workers, prepare.workers=1"
    try:
        yield Pool(executor, num_workers, "", (BrokenProcessPool,), advice, lambda: _fault(executor))
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _fault(executor: ProcessPoolExecutor) -> str:
    """Return a message that says how a worker of `executor` crashed or exited, and what to do, or "" if none did.

    After the first worker has died, the executor ends all others with SIGTERM, so exit codes of SIGTERM say nothing.
    """
    # The exit codes are read from a private attribute of the executor, because it has no public one for them.
    codes = [worker.exitcode for worker in (executor._processes or {}).values()]
    if crash := next((crash.name for crash in _CRASHES if -crash in codes), ""):
        return (
            f"a worker crashed by {crash}, as libraries do where a disk takes no more; finished work is kept: look at "
            "its room, quotas and `ulimit -f`, and run the same command again"
        )
    if statuses := [code for code in codes if code is not None and code >= 0]:
        return (
            f"a worker ended with status {statuses[0]} before its work; if it has an error, that is above. Workers "
            'import the script that starts them: in a script call prepare below `if __name__ == "__main__":`'
        )
    return ""


def _start_worker() -> None:
    """Set up a worker process. Each worker calls this function once, when it starts.

    The worker ignores Ctrl-C, because its parent handles it and ends all workers. A thread ends the worker as soon as
    the parent has ended: after `kill -9` of the parent, the worker would otherwise wait for tasks forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


@contextmanager
def _dask(choice: ExecutorChoice, num_workers: int) -> Iterator[Pool]:
    distributed = _import("distributed", "dask")
    for name in ("distributed", "tornado"):
        # Dask raises its errors as exceptions and logs them too. The log messages are not needed.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        if choice.scheduler is None:
            # Turn off Dask's own memory limit (0): the number of workers was chosen so that they fit into the setting
            # prepare.memory_limit.
            try:
                cluster = distributed.LocalCluster(
                    n_workers=num_workers,
                    threads_per_worker=1,
                    memory_limit=0,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                )
            except RuntimeError as error:
                check_stop()  # If Ctrl-C or SIGTERM ended the cluster's workers, raise StopSignal, not this error.
                raise OSError(f"no Dask cluster can be started on this machine: {error}") from error
            stack.enter_context(cluster)
        try:
            client = stack.enter_context(distributed.Client(choice.scheduler or cluster, timeout=_ANSWER_SECONDS))
        except (OSError, ValueError) as error:
            raise OSError(
                f"no Dask scheduler answers at {choice.scheduler} ({error}); start one: dask scheduler"
            ) from error
        threads = sum(client.nthreads().values())
        if threads == 0:
            raise OSError(f"the Dask scheduler at {choice.scheduler} has no workers; start some: dask worker ADDRESS")
        # If a worker dies, Dask runs its tasks on another worker. With `pure=False`, Dask does not reuse the result of
        # an earlier task with equal arguments, because the earlier task may have read another log.
        executor, advice = client.get_executor(pure=False), "give workers more memory and run the same command again"
        yield Pool(executor, threads, "", (distributed.KilledWorker,), advice)


@contextmanager
def _mpi(choice: ExecutorChoice, num_workers: int) -> Iterator[Pool]:
    world = _import("mpi4py.MPI", "mpi").COMM_WORLD
    if "mpi4py.futures" not in sys.orig_argv or world.size < 2:
        raise OSError(
            f"--executor mpi needs a launcher and 2 ranks or more: {_MPI_COMMAND}; found {world.size} rank(s)"
        )
    with importlib.import_module("mpi4py.futures").MPIPoolExecutor() as executor:
        yield Pool(executor, world.size - 1)


_CLUSTERS: dict[ExecutorKind, Callable[[ExecutorChoice, int], AbstractContextManager[Pool]]] = {
    "processes": _processes,
    "dask": _dask,
    "mpi": _mpi,
}


def _import(module: str, kind: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # If no MPI library is installed, mpi4py raises RuntimeError.
        raise OSError(
            f"--executor {kind} needs {module.split('.')[0]} ({error}); install it: {_INSTALL[kind]}"
        ) from error


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
