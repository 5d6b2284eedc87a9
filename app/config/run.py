"""Sections of a run's settings that are beside model and training: device, tables, checkpoint, eval, cluster."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from common.memory import num_cores


@dataclass(frozen=True)
class CheckpointOptions:
    """`dir` empty is `checkpoints` in the run folder.

    Saved at each epoch's end, every `every_steps` steps and after `every_minutes` minutes (0 is never), and where an
    evaluation within an epoch is the best so far. The newest `keep_last` and the `keep_best` best by `eval.metric`
    on `valid` stay; `keep_last` 0 keeps all. `integrated` writes one file a table, else `shards` files a table.

    `sliced` has each rank write its part of a tower that is spread over ranks (section parallel), a file a rank.

    `background` writes beside the next steps; memory for the rows that they update meanwhile is needed then.

    `delta` writes only the rows that changed since the checkpoint before; after `full_every` - 1 of them comes a full
    one. With `compact` the training writes no full one but the first: of the checkpoints that stay the oldest is made
    full from the files, when `full_every` older ones are there for its sake alone.
    """

    dir: str = ""
    every_steps: int = 0
    every_minutes: float = 0.0
    keep_last: int = 3
    keep_best: int = 1
    integrated: bool = True
    shards: int = 1
    background: bool = True
    delta: bool = False
    full_every: int = 10
    compact: bool = False
    sliced: bool = False

    def __post_init__(self) -> None:
        for name in ("every_steps", "every_minutes", "keep_last", "keep_best"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"checkpoint.{name} must be 0 or more, and finite; found {getattr(self, name)}")
        if self.shards < 1:
            raise ValueError(f"checkpoint.shards must be 1 or more, found {self.shards}")
        if self.full_every < 1:
            raise ValueError(f"checkpoint.full_every must be 1 or more, found {self.full_every}")
        if self.compact and not self.delta:
            raise ValueError("checkpoint.compact=true needs checkpoint.delta=true, which is false")
        if self.integrated and self.shards > 1:
            raise ValueError(f"checkpoint.shards={self.shards} needs checkpoint.integrated=false, which is true")


Target = Literal["auto", "CPU", "GPU", "Ascend"]

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class DeviceOptions:
    """`target` auto takes Ascend, then GPU, then CPU; `threads` 0 takes every core this process may use.

    `precision` bfloat16 rounds the inputs of the tower's matrix products; sums and parameters stay float32.
    """

    target: Target = "auto"
    threads: int = 0
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise ValueError(f"device.threads must be 0 (all cores) or more, found {self.threads}")

    @property
    def num_threads(self) -> int:
        """Threads to use on the host; the ranks that share it share its cores."""
        local_ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
        return self.threads or max(1, num_cores() // local_ranks)


SELECTABLE = ("auc", "pr_auc", "log_loss", "normalized_entropy", "grouped_auc")  # one value can be the better one


@dataclass(frozen=True)
class EvalOptions:
    """When a run is judged on `valid`, by what, and when it ends early.

    Evaluated at each epoch's end and every `every_steps` steps (0: only then). `metric` decides which checkpoints are
    the best, and with `patience` above 0 the run ends after so many evaluations in a row that did not improve
    it by more than `min_improvement`. `group_field` names a categorical field for AUC per value of it. `batch_size` is
    that of `evaluate`, 0 the training's (while training the training's graph is used), `bootstrap` the
    replicates behind its confidence intervals, 0 none.
    """

    batch_size: int = 0
    every_steps: int = 0
    metric: str = "auc"
    patience: int = 0
    min_improvement: float = 0.0
    group_field: str = ""
    bootstrap: int = 200

    def __post_init__(self) -> None:
        for name in ("every_steps", "patience", "bootstrap", "min_improvement"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"eval.{name} must be 0 or more, and finite; found {getattr(self, name)}")
        if self.batch_size < 0:
            raise ValueError(f"eval.batch_size must be 0 (the training's) or more, found {self.batch_size}")
        if self.metric not in SELECTABLE:
            raise ValueError(
                f"eval.metric must be one of {', '.join(SELECTABLE)}; found {self.metric!r}"
                f"{nearest(self.metric, SELECTABLE)}"
            )
        if self.metric == "grouped_auc" and not self.group_field:
            raise ValueError("eval.metric=grouped_auc needs eval.group_field, the field whose values are the groups")


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, else all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
    return f"; did you mean {close[0]!r}?" if close else f"; they are {', '.join(known)}"


@dataclass(frozen=True)
class ClusterOptions:
    """After `timeout_s` seconds in which the others waited for it, a rank is named in the log; they wait on."""

    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"cluster.timeout_s must be above 0, and finite; found {self.timeout_s}")


Backend = Literal["auto", "native", "stock", "reference"]


@dataclass(frozen=True)
class TablesOptions:
    """`backend` auto takes `native` where its library is built, else `stock` with a warning."""

    backend: Backend = "auto"
