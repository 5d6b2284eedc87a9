"""Where a reading's tasks are run: processes of this machine, a Dask cluster or MPI ranks.

`memory_limit` says how many processes of this machine there are. Of Dask and MPI it knows nothing but this process:
give each of their workers what `memory.worker_bytes` says.
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
from dataclasses import dataclass
from typing import Any, Literal, get_args

from data_prep.execution.stopping import check_stop, children_without_interrupt

Kind = Literal["processes", "dask", "mpi"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_INSTALL = {"dask": "pip install '.[dask]'", "mpi": "pip install '.[mpi]'"}
_SIGNAL_SECONDS = 0.2
_ANSWER_SECONDS = 10
_MPI_COMMAND = "mpirun -n 3 python -m mpi4py.futures -m data_prep prepare ... --executor mpi"


@dataclass(frozen=True)
class ExecutorChoice:
    """What runs the tasks; `scheduler` is the address of a Dask cluster, None starts one on this machine."""

    kind: Kind = "processes"
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.scheduler and self.kind != "dask":
            raise ValueError(f"--scheduler {self.scheduler} is for --executor dask; found --executor {self.kind}")


@dataclass(frozen=True)
class Pool:
    """An executor, how many tasks it runs at a time, and a name that no other pool has."""

    executor: Executor
    num_workers: int
    job_id: str

    def submit(self, function: Callable[..., None], *words: Any) -> Future[None]:
        """As the executor's."""
        return self.executor.submit(function, *words)


@dataclass(frozen=True)
class _Cluster:
    """What a run joins once."""

    executor: Executor
    num_workers: int
    deaths: tuple[type[Exception], ...] = ()  # errors that say that workers died on a task


class Pools:
    """Opens a pool for each reading. The processes or the cluster are the same for all of them, until `close`."""

    def __init__(self, choice: ExecutorChoice) -> None:
        self._choice = choice
        self._at_the_end = ExitStack()
        self._cluster: _Cluster | None = None  # or processes of this machine

    @contextmanager
    def open(self, num_workers: int) -> Iterator[Pool | None]:
        """A pool for a reading; None: one worker of this machine's is this process itself.

        `num_workers` is for this machine; a cluster that was given brings its own number. Raises MemoryError where
        a worker was ended from outside, OSError where the cluster cannot be used.
        """
        job_id = uuid.uuid4().hex
        if self._choice.kind != "processes":
            if self._cluster is None:
                with children_without_interrupt():
                    self._cluster = self._at_the_end.enter_context(
                        _CLUSTERS[self._choice.kind](self._choice, num_workers)
                    )
            try:
                yield Pool(self._cluster.executor, self._cluster.num_workers, job_id)
            except self._cluster.deaths as error:
                raise MemoryError(
                    f"workers died again and again on the same chunk ({error}), most likely for want of memory; what "
                    "is finished is kept: give them more and run the same command again"
                ) from error
        else:
            if self._cluster is None or self._cluster.num_workers != num_workers:
                self.close()
                if num_workers > 1:
                    self._cluster = self._at_the_end.enter_context(_processes(num_workers))
            with _explained(num_workers):
                yield Pool(self._cluster.executor, num_workers, job_id) if self._cluster else None

    def close(self) -> None:
        """End the processes; leave the cluster, and end it where it was started here."""
        self._cluster = None
        self._at_the_end.close()


@contextmanager
def _processes(num_workers: int) -> Iterator[_Cluster]:
    # Fresh processes instead of forked ones: this one may hold MindSpore and its threads.
    executor = ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), _start_worker)
    try:
        yield _Cluster(executor, num_workers)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _explained(num_workers: int) -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        time.sleep(_SIGNAL_SECONDS)  # what ended a worker may be a signal that comes here too
        check_stop()
        raise MemoryError(
            f"one of {num_workers} worker processes was ended from outside, most likely for want of memory; what is "
            "finished is kept: run the same command again with fewer, prepare.workers=1"
        ) from error


def _start_worker() -> None:
    """Ctrl-C is the parent's business, which ends the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool's worker waits for tasks for ever, even when nobody is left to send one (after `kill -9`)."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _dask(choice: ExecutorChoice, num_workers: int) -> Iterator[_Cluster]:
    distributed = _import("distributed", "dask")
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters reaches us as an exception
    with ExitStack() as stack:
        if choice.scheduler is None:
            # What a worker may take is `memory_limit`'s business, not Dask's.
            try:
                cluster = distributed.LocalCluster(
                    n_workers=num_workers,
                    threads_per_worker=1,
                    memory_limit=0,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                )
            except RuntimeError as error:
                check_stop()  # a signal may have ended its workers
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
        # Of a worker that dies, Dask runs the tasks again elsewhere; not pure: the same words may be another log.
        yield _Cluster(client.get_executor(pure=False), threads, (distributed.KilledWorker,))


@contextmanager
def _mpi(choice: ExecutorChoice, num_workers: int) -> Iterator[_Cluster]:
    world = _import("mpi4py.MPI", "mpi").COMM_WORLD
    if "mpi4py.futures" not in sys.orig_argv or world.size < 2:
        raise OSError(
            f"--executor mpi needs a launcher and 2 ranks or more: {_MPI_COMMAND}; found {world.size} rank(s)"
        )
    with importlib.import_module("mpi4py.futures").MPIPoolExecutor() as executor:
        yield _Cluster(executor, world.size - 1)


_CLUSTERS: dict[str, Callable[[ExecutorChoice, int], AbstractContextManager[_Cluster]]] = {
    "dask": _dask,
    "mpi": _mpi,
}


def _import(module: str, kind: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # mpi4py without an MPI library is a RuntimeError
        raise OSError(
            f"--executor {kind} needs {module.split('.')[0]} ({error}); install it: {_INSTALL[kind]}"
        ) from error
