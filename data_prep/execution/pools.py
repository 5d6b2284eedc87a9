"""Provide workers for the tasks of a pass: processes of this machine, a Dask cluster, or MPI ranks.

A pass is one reading of the whole log, whose parts are processed by tasks. `pipeline.memory_and_disk` decides the
number of worker processes on this machine. With Dask and MPI, the setting `memory_limit` limits only the main process.
Users must give each Dask or MPI worker the memory that `memory_and_disk.worker_bytes` returns, plus the memory for a
window, that is, for the rows that are shuffled together.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from common.signals import check_stop, children_without_interrupt
from data_prep.options.executor import ExecutorChoice, ExecutorKind

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
