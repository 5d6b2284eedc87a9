"""Define the sections checkpoint, eval, cluster and tables of a run's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from common.settings import Checked, Count, CountOrZero, NotNegative, Positive
from common.text import nearest
from data_prep.options.prepare_options import parse_bytes


@dataclass(frozen=True)
class CheckpointOptions(Checked):
    """Checkpoints, the saved states of a run. A checkpoint is saved at the end of each epoch, and after each other
    evaluation whose metric is the best so far.
    """

    dir: str = ""  # The folder of the checkpoints. If empty, it is checkpoints/ in the run folder.
    # The number of steps between additional checkpoints within an epoch. 0: no additional ones.
    every_steps: CountOrZero = 0
    every_minutes: NotNegative = 0.0  # The number of minutes between additional checkpoints. 0: no additional ones.
    # The number of newest checkpoints to keep. Older ones are removed. 0 keeps all checkpoints.
    keep_last: CountOrZero = 3
    # The number of best checkpoints, by eval.metric on the split valid, that are kept even if they are not among the
    # newest.
    keep_best: CountOrZero = 1
    shards: Count = 1  # The number of files into which the rows of each embedding table are divided.
    # true: a checkpoint is written while the next steps run, which takes memory for copies of the rows that these steps
    # update. false: the training waits until the checkpoint is written.
    background: bool = True
    # true: a checkpoint has only the rows that changed since the checkpoint before, but every tenth checkpoint has all
    # rows. false: every checkpoint has all rows.
    delta: bool = False


# SELECTABLE are the metrics that can select the best checkpoint. The metric calibration is not one of them, because
# neither higher nor lower values of it are better. GROUP_METRICS need the setting eval.group_field.
GROUP_METRICS = ("grouped_auc",)
SELECTABLE = ("auc", "pr_auc", "log_loss", "normalized_entropy", "top_decile_lift", *GROUP_METRICS)


@dataclass(frozen=True)
class EvalOptions(Checked):
    """Evaluation on the split valid at the end of each epoch, and early stopping."""

    # The number of steps between additional evaluations within an epoch. 0: no additional ones.
    every_steps: CountOrZero = 0
    metric: str = "log_loss"  # The metric that decides which checkpoints are the best.
    # The training stops after this number of evaluations in a row that did not improve eval.metric. 0: it never stops
    # early.
    patience: CountOrZero = 0
    # The categorical field, or the column of kind id, whose values divide the rows into groups for the metric
    # grouped_auc, the mean of the AUCs within the groups. The metric leaves out rows whose value is missing or has no
    # id of its own. In a column of kind id every value counts. If the setting is empty, there are no groups.
    group_field: str = ""
    # The number of bootstrap samples from which the command evaluate computes confidence intervals. 0 computes no
    # intervals.
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
    """Settings for trainings with several ranks (processes): how long a rank may keep the others waiting before the
    log names it.
    """

    # If ranks have waited this number of seconds for another rank, the log names the other rank. They wait until it is
    # ready. If it does not answer, because its host or the connection is lost, the job ends.
    timeout_s: Positive = 300.0


Backend = Literal["auto", "native", "stock", "reference"]
TableDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TablesOptions:
    """The backend that keeps the embedding tables in host memory, and the dtype of their rows."""

    # Settings of this section that release 1.0.0 lacked, each with the value with which this release behaves as release
    # 1.0.0 did. app/run/older.py reads them.
    ADDED: ClassVar[dict[str, Any]] = {"dtype": "float32"}

    # native: tables in C++. reference: tables in NumPy, which are slower. stock: MindSpore's own operators for tables
    # in host memory, which support only some of the settings, and one rank. auto: native if its C++ library is built,
    # otherwise, with a warning, stock if it supports the settings, and else reference.
    backend: Backend = "auto"
    # float32: all numbers of the tables are stored as float32. bfloat16: the rows of the deep table and their moments,
    # sums of squares and running means take half the memory, and each step rounds them up or down at random.
    # Arithmetic, the rows of the wide table, and arrays with one value per row stay float32.
    dtype: TableDtype = "float32"
    # Where the rows are kept. memory: in memory. The path of a folder on a local disk: in a scratch file in that
    # folder, so that the tables may be larger than memory, which then holds the rows that were used last. auto: in a
    # scratch file in the run folder if the training does not fit into memory (memory_limit), else in memory. The
    # results are the same bits. Only the backend native can use a file.
    storage: str = "auto"
    # The memory that each process (rank) of a training may take, such as 8 GiB. If it is empty, the memory that the
    # machine, or the cgroup of the process, leaves is divided among the processes on the host.
    memory_limit: str = ""

    def __post_init__(self) -> None:
        if self.memory_limit:
            parse_bytes(self.memory_limit)

    @property
    def memory_limit_bytes(self) -> int:
        """The setting `memory_limit` in bytes, or 0 if it is empty."""
        return parse_bytes(self.memory_limit) if self.memory_limit else 0
