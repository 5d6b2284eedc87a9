"""Name the kinds of workers that can run a pass over a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ExecutorKind = Literal["processes", "dask", "mpi"]
EXECUTORS: tuple[ExecutorKind, ...] = get_args(ExecutorKind)


@dataclass(frozen=True)
class ExecutorChoice:
    """The kind of workers, as the options `--executor` and `--scheduler` give it.

    `scheduler` is the address of a Dask cluster. With None, kind "dask" starts a cluster on this machine. Raise
    ValueError if another kind has a scheduler.
    """

    kind: ExecutorKind = "processes"
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.scheduler and self.kind != "dask":
            raise ValueError(f"--scheduler {self.scheduler} is for --executor dask; found --executor {self.kind}")
