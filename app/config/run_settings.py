"""Sections of a run's settings beside the model and its training: checkpoint, device, eval, cluster, tables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from common.memory import num_cores
from common.settings import Bounds, Checked, Count, CountOrZero, NotNegative, Positive
from common.text import nearest


@dataclass(frozen=True)
class CheckpointOptions(Checked):
    """Checkpoints, which are saved at each epoch's end, and after an evaluation that is the best so far."""

    dir: str = ""  # their folder; empty: checkpoints/ in the run folder
    every_steps: CountOrZero = 0  # steps between further checkpoints; 0: none
    every_minutes: NotNegative = 0.0  # minutes between further checkpoints; 0: none
    keep_last: CountOrZero = 3  # number of newest checkpoints to keep; 0: all
    keep_best: CountOrZero = 1  # number of best checkpoints to keep besides, by eval.metric on the split valid
    shards: Count = 1  # files of each table
    background: bool = True  # write beside the next steps, with memory for the rows that they update meanwhile
    delta: bool = False  # write only the rows that changed since the checkpoint before
    full_every: Count = 10  # with delta, every so many checkpoints one is full
    # With delta, write no full checkpoint but the first: once full_every older ones are there only for its sake, the
    # oldest that is kept is made full from the files.
    compact: bool = False
    sliced: bool = False  # each rank writes its part of a tower that is spread over ranks (section parallel)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compact and not self.delta:
            raise ValueError("checkpoint.compact=true needs checkpoint.delta=true, which is false")


Target = Literal["auto", "CPU", "GPU", "Ascend"]

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class DeviceOptions(Checked):
    """The device of the tower, and the host's threads."""

    target: Target = "auto"  # auto: Ascend, else GPU, else CPU
    # on the host; 0: every core that this process may use
    threads: Annotated[int, Bounds(least=0, expected="0 (all cores) or more")] = 0
    precision: Precision = "float32"  # bfloat16 rounds the inputs of the tower's products; all else stays float32
    # true: a CPU runs the tower as MindSpore's graph, too. By default native kernels take the whole step if they cover
    # the model (ReLU, no batch normalization, no distinct first layer) and its optimizers (FTRL, Adam).
    graph: bool = False

    @property
    def num_threads(self) -> int:
        """Threads to use on the host; ranks on one host share its cores."""
        local_ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
        return self.threads or max(1, num_cores() // local_ranks)


# Metrics with a better direction.
SELECTABLE = ("auc", "pr_auc", "log_loss", "normalized_entropy", "top_decile_lift", "grouped_auc")


@dataclass(frozen=True)
class EvalOptions(Checked):
    """Evaluation on the split valid, at each epoch's end, and early stopping."""

    # rows of a batch of the command evaluate; 0: as in training
    batch_size: Annotated[int, Bounds(least=0, expected="0 (the training's) or more")] = 0
    every_steps: CountOrZero = 0  # steps between further evaluations within an epoch; 0: none
    metric: str = "auc"  # decides which checkpoints are the best
    patience: CountOrZero = 0  # stop after so many evaluations in a row without improvement; 0: never
    min_improvement: NotNegative = 0.0  # change of the metric that is an improvement if it is larger
    group_field: str = ""  # field or column of kind id for grouped_auc, the mean AUC within its values
    bootstrap: CountOrZero = 200  # replicates for the confidence intervals of the command evaluate; 0: no intervals

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in SELECTABLE:
            hint = f"; did you mean {close!r}?" if (close := nearest(self.metric, SELECTABLE)) else ""
            raise ValueError(f"eval.metric must be one of {', '.join(SELECTABLE)}; found {self.metric!r}{hint}")
        if self.metric == "grouped_auc" and not self.group_field:
            raise ValueError("eval.metric=grouped_auc needs eval.group_field, the field whose values are the groups")


@dataclass(frozen=True)
class ClusterOptions(Checked):
    """Several ranks."""

    timeout_s: Positive = 300.0  # seconds after which a rank that the others wait for is named in the log; they wait on


Backend = Literal["auto", "native", "stock", "reference"]


@dataclass(frozen=True)
class TablesOptions:
    """The embedding tables in host memory."""

    # native: C++; reference: NumPy; stock: MindSpore's host operators, in the graph; auto: native if its library is
    # built, else stock (on several ranks reference) with a warning.
    backend: Backend = "auto"
