"""Define the sections checkpoint, eval, cluster and tables of a run's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.settings import Checked, Count, CountOrZero, NotNegative, Positive
from common.text import nearest


@dataclass(frozen=True)
class CheckpointOptions(Checked):
    """Checkpoints, which are saved at the end of each epoch, and after each evaluation that is the best so far."""

    dir: str = ""  # The folder of the checkpoints. If empty, it is checkpoints/ in the run folder.
    every_steps: CountOrZero = 0  # Steps between additional checkpoints within an epoch. 0 writes none.
    every_minutes: NotNegative = 0.0  # Minutes between additional checkpoints. 0 writes none.
    keep_last: CountOrZero = 3  # The number of newest checkpoints to keep. 0 keeps all.
    # The number of best checkpoints to keep as well, by eval.metric on the split valid.
    keep_best: CountOrZero = 1
    shards: Count = 1  # The number of files of each table.
    # Write checkpoints while the next steps run. This takes memory for the rows that these steps update.
    background: bool = True
    # Write only the rows that changed since the checkpoint before. Every tenth checkpoint is written in full.
    delta: bool = False


# SELECTABLE are the metrics that can select the best checkpoint. The metric calibration is not one of them, because
# neither higher nor lower values of it are better. GROUP_METRICS need the setting eval.group_field.
GROUP_METRICS = ("grouped_auc",)
SELECTABLE = ("auc", "pr_auc", "log_loss", "normalized_entropy", "top_decile_lift", *GROUP_METRICS)


@dataclass(frozen=True)
class EvalOptions(Checked):
    """Evaluation on the split valid at the end of each epoch, and early stopping."""

    every_steps: CountOrZero = 0  # Steps between additional evaluations within an epoch. 0 makes none.
    metric: str = "log_loss"  # The metric that decides which checkpoints are the best.
    patience: CountOrZero = 0  # Stop after this number of evaluations in a row without improvement. 0 never stops.
    # The field (or column of kind id) whose values are the groups of grouped_auc, the mean AUC within groups. Rows
    # whose value is missing or has no id of its own are left out. With kind id every value counts.
    group_field: str = ""
    # The number of bootstrap samples for the confidence intervals of the command evaluate. 0 computes no intervals.
    bootstrap: CountOrZero = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in SELECTABLE:
            hint = f"; did you mean {close!r}?" if (close := nearest(self.metric, SELECTABLE)) else ""
            raise ValueError(f"eval.metric must be one of {', '.join(SELECTABLE)}; found {self.metric!r}{hint}")
        if self.metric in GROUP_METRICS and not self.group_field:
            raise ValueError(f"eval.metric={self.metric} needs eval.group_field, the field whose values are the groups")


@dataclass(frozen=True)
class ClusterOptions(Checked):
    """Settings for jobs of several ranks: how long a rank may keep others waiting before the log names it."""

    # If ranks have waited this number of seconds for another one, the log names that rank. They keep waiting.
    timeout_s: Positive = 300.0


Backend = Literal["auto", "native", "stock", "reference"]
TableDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TablesOptions:
    """The backend that keeps the embedding tables in host memory, and the dtype of their rows."""

    # native: tables in C++. reference: tables in NumPy. stock: MindSpore's host operators, in the graph. auto: native
    # if its library is built, else stock (on several ranks reference) with a warning.
    backend: Backend = "auto"
    # bfloat16: the deep rows, their moments, sums of squares and running means take half the memory, and each step
    # rounds them at random. Arithmetic, the wide rows, and arrays with one value per row stay float32.
    dtype: TableDtype = "float32"
