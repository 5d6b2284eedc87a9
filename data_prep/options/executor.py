"""Name the kinds of workers that can process the chunks of a log: processes of this machine, Dask, or MPI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ExecutorKind = Literal["processes", "dask", "mpi"]
EXECUTORS: tuple[ExecutorKind, ...] = get_args(ExecutorKind)


@dataclass(frozen=True)
class ExecutorChoice:
    """The kind of workers ("processes", "dask" or "mpi"), as the options `--executor` and `--scheduler` choose it.

    `scheduler` is the address of a Dask cluster. If it is None, kind "dask" starts a cluster on this machine. Raise
    ValueError if a scheduler is given for another kind.
    """

    kind: ExecutorKind = "processes"
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.scheduler and self.kind != "dask":
            raise ValueError(f"--scheduler {self.scheduler} is for --executor dask; found --executor {self.kind}")
