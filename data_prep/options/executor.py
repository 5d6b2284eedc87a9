"""The workers of a pass over a log, as the command line names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ExecutorKind = Literal["processes", "dask", "mpi"]
EXECUTORS: tuple[ExecutorKind, ...] = get_args(ExecutorKind)


@dataclass(frozen=True)
class ExecutorChoice:
    """The kind of executor. `scheduler` is the address of a Dask cluster. None starts one on this machine."""

    kind: ExecutorKind = "processes"
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.scheduler and self.kind != "dask":
            raise ValueError(f"--scheduler {self.scheduler} is for --executor dask; found --executor {self.kind}")
