"""Sections of a run's settings beside the model and its training: checkpoint, device, eval, cluster, tables."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

from common.memory import num_cores
from common.text import nearest


@dataclass(frozen=True)
class CheckpointOptions:
    """Checkpoints, which are saved at each epoch's end, and after an evaluation that is the best so far."""

    dir: str = ""  # their folder; empty: checkpoints/ in the run folder
    every_steps: int = 0  # steps between further checkpoints; 0: none
    every_minutes: float = 0.0  # minutes between further checkpoints; 0: none
    keep_last: int = 3  # number of newest checkpoints to keep; 0: all
    keep_best: int = 1  # number of best checkpoints to keep besides, by eval.metric on the split valid
    shards: int = 1  # files of each table
    background: bool = True  # write beside the next steps, with memory for the rows that they update meanwhile
    delta: bool = False  # write only the rows that changed since the checkpoint before
    full_every: int = 10  # with delta, every so many checkpoints one is full
    # With delta, write no full checkpoint but the first: once full_every older ones are there only for its sake, the
    # oldest that is kept is made full from the files.
    compact: bool = False
    sliced: bool = False  # each rank writes its part of a tower that is spread over ranks (section parallel)

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


Target = Literal["auto", "CPU", "GPU", "Ascend"]

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class DeviceOptions:
    """The device of the tower, and the host's threads."""

    target: Target = "auto"  # auto: Ascend, else GPU, else CPU
    threads: int = 0  # on the host; 0: every core that this process may use
    precision: Precision = "float32"  # bfloat16 rounds the inputs of the tower's products; all else stays float32
    # true: a CPU runs the tower as MindSpore's graph, too. By default native kernels take the whole step if they cover
    # the model (ReLU, no batch normalization, no distinct first layer) and its optimizers (FTRL, Adam).
    graph: bool = False

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise ValueError(f"device.threads must be 0 (all cores) or more, found {self.threads}")

    @property
    def num_threads(self) -> int:
        """Threads to use on the host; ranks on one host share its cores."""
        local_ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
        return self.threads or max(1, num_cores() // local_ranks)


SELECTABLE = ("auc", "pr_auc", "log_loss", "normalized_entropy", "grouped_auc")  # metrics with a better direction


@dataclass(frozen=True)
class EvalOptions:
    """Evaluation on the split valid, at each epoch's end, and early stopping."""

    batch_size: int = 0  # rows of a batch of the command evaluate; 0: as in training
    every_steps: int = 0  # steps between further evaluations within an epoch; 0: none
    metric: str = "auc"  # decides which checkpoints are the best
    patience: int = 0  # stop after so many evaluations in a row without improvement; 0: never
    min_improvement: float = 0.0  # change of the metric that is an improvement if it is larger
    group_field: str = ""  # field or column of kind id for grouped_auc, the mean AUC within its values
    bootstrap: int = 200  # replicates for the confidence intervals of the command evaluate; 0: no intervals

    def __post_init__(self) -> None:
        for name in ("every_steps", "patience", "bootstrap", "min_improvement"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"eval.{name} must be 0 or more, and finite; found {getattr(self, name)}")
        if self.batch_size < 0:
            raise ValueError(f"eval.batch_size must be 0 (the training's) or more, found {self.batch_size}")
        if self.metric not in SELECTABLE:
            hint = f"; did you mean {close!r}?" if (close := nearest(self.metric, SELECTABLE)) else ""
            raise ValueError(f"eval.metric must be one of {', '.join(SELECTABLE)}; found {self.metric!r}{hint}")
        if self.metric == "grouped_auc" and not self.group_field:
            raise ValueError("eval.metric=grouped_auc needs eval.group_field, the field whose values are the groups")


@dataclass(frozen=True)
class ClusterOptions:
    """Several ranks."""

    timeout_s: float = 300.0  # seconds after which a rank that the others wait for is named in the log; they wait on

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"cluster.timeout_s must be above 0, and finite; found {self.timeout_s}")


Backend = Literal["auto", "native", "stock", "reference"]


@dataclass(frozen=True)
class TablesOptions:
    """The embedding tables in host memory."""

    # native: C++; reference: NumPy; stock: MindSpore's host operators, in the graph; auto: native if its library is
    # built, else stock (on several ranks reference) with a warning.
    backend: Backend = "auto"
