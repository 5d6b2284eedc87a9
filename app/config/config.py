"""Define `Config`, all settings of a run, and its sections except device and the optimizers. This module does not
import MindSpore.

`make docs` copies the comment at each field, or the comment lines above it, to docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from app.config.device import DeviceOptions
from app.config.optimizer_settings import (
    AdamOptions,
    DeepOptimizer,
    FtrlOptions,
    LazyAdamOptions,
    TowerOptimizer,
    WideOptimizer,
)
from common.settings import Bounds, Checked, Count, CountOrZero, Fraction, NotNegative, Positive, Removed, Seed
from common.text import nearest
from data_prep.options.options_file import REMOVED as REMOVED_OF_PREPARE
from data_prep.options.prepare_options import PrepareOptions, parse_bytes

Backend = Literal["auto", "native", "stock", "reference"]
TableDtype = Literal["float32", "bfloat16"]
FirstLayer = Literal["auto", "direct", "distinct"]

# SELECTABLE are the metrics that can select the best checkpoint. The metric calibration is not one of them, because
# neither higher nor lower values of it are better. GROUP_METRICS need the setting eval.group_field.
GROUP_METRICS = ("grouped_auc",)
SELECTABLE = ("auc", "pr_auc", "log_loss", "normalized_entropy", "top_decile_lift", *GROUP_METRICS)

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
LossScale = Annotated[float, Bounds(above=0, most=LARGEST_FLOAT32, expected="above 0, and finite in float32")]


@dataclass(frozen=True)
class ModelOptions(Checked):
    """The Wide&Deep model.

    It adds up two parts. The wide part is linear: each value of a field has a weight, a row of the wide table. The deep
    part has an embedding of each value, a row of the deep table, which goes into the tower, a network of dense layers.
    """

    embedding_dim: Count = 80  # The number of values in each row (embedding) of the deep table.
    # The number of units of each hidden layer of the tower, from the first layer to the last.
    hidden_widths: Annotated[tuple[int, ...], Bounds(least=1, expected="widths of 1 or more")] = (1024, 512, 256, 128)
    # The initial values of the deep table's rows are uniform between minus this value and this value.
    initial_row_scale: NotNegative = 0.01
    # Where the rows of the numeric fields are kept. true: they are parameters of the tower. false: they are rows of the
    # embedding tables, as the rows of categorical fields are, which only tables.backend=stock can do. The model
    # computes the same function in both cases.
    fold_numeric: bool = True
    # true: batch normalization before the activation function of each hidden layer. It cannot be used in a training
    # with several ranks (processes).
    batch_norm: bool = False
    # The activation function of the hidden layers. relu has a C++ kernel for CPUs, the other functions use MindSpore's
    # operators.
    activation: Literal["relu", "gelu", "silu", "leaky_relu", "tanh", "sigmoid"] = "relu"
    # How the tower's first layer multiplies embedding rows by its matrix. direct: it multiplies a row for each cell of
    # a batch. distinct: it multiplies each distinct row of the batch once, which gives the same result up to rounding.
    # auto: the faster of the two, estimated from batch_size, embedding_dim and how often each value occurs in the data.
    first_layer: FirstLayer = "auto"
    # The fraction of each hidden layer's units that a training step sets to 0 at random. 0 sets none to 0.
    dropout: Fraction = 0.0
    # The categorical fields that the wide part sees. null means all fields, [] means none.
    wide_fields: tuple[str, ...] | None = None
    # The categorical fields that the deep part sees. null means all fields except crosses (prepare.crosses), [] means
    # none.
    deep_fields: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LossOptions(Checked):
    """The loss that a training minimizes: its L2 term, label smoothing, loss scaling and gradient clipping."""

    # Coefficient of the loss term l2_coef · ½ Σ‖row‖², which keeps the rows of the deep table small. The sum is over
    # the distinct rows of the batch. With deep_optimizer.name=adam it is over all rows of the table.
    l2_coef: NotNegative = 8e-5
    # Upper bound of the norm of the tower's gradients, taken together as one vector. If their norm is larger, all of
    # them are multiplied by the same factor, so that the norm equals the bound. 0 sets no bound.
    tower_clip_norm: NotNegative = 0.0
    # With the value s, a training label becomes (1 - s) · label + s / 2. 0 leaves labels as they are.
    label_smoothing: Fraction = 0.0
    # The loss is multiplied by this factor before the backward pass, and the gradients are divided by the factor
    # afterwards, so that small gradients do not become 0.
    loss_scale: LossScale = 1024.0


@dataclass(frozen=True)
class TrainOptions(Checked):
    """The length of a training, its batches, seed and logging, and the model from which a run starts."""

    # true: the settings that neither the YAML file nor the command line gives are chosen to fit the rows, fields and
    # values of the prepared data (docs/training.md). false: these settings have their defaults.
    auto: bool = False
    epochs: Count = 1  # The number of passes over the training rows.
    # The training ends after this number of steps, or after its epochs if they end first. 0 sets no limit. The model is
    # evaluated and saved at the last step. The same command with a larger number, or with 0, continues the run from
    # there. With train.auto the learning rates fall until the last step, so a command with another number starts a new
    # run.
    steps: CountOrZero = 0
    batch_size: Count = 16_000  # The number of training rows in a step, over all ranks (processes) together.
    seed: Seed = 1  # Seed of random choices: initial values, the order of the rows, dropout, rounding to bfloat16.
    # Decay of a running mean of all weights. If it is above 0, evaluation, export and scoring use the mean in place of
    # the weights. 0.999 averages about the last 1,000 steps. The mean doubles the memory of the weights. With 0, no
    # mean is kept.
    ema_decay: Annotated[float, Bounds(least=0, below=1, expected="0 (no running mean) or more and below 1")] = 0.0
    # The number of steps between two lines of metrics.jsonl, and between two updates of the figures beside the progress
    # bar. It does not affect loss.log, which has a line for every step.
    log_every_steps: Count = 10
    # What a launch does if the folder already has a run. auto: a run with the same settings and data is continued, or
    # left as it is if it has finished. If it is another run, its folder is renamed and a new run starts. never: a new
    # run always starts. require: the launch fails if there is no run to continue.
    resume: Literal["auto", "never", "require"] = "auto"
    # true: write the times of the host's kernels to the run's log, and the times of MindSpore's operators to the folder
    # profile/ of the run.
    profile: bool = False
    # The training saves its state and stops before this number of minutes have passed since the launch. The same
    # command resumes the run. 0 sets no limit.
    time_limit: Annotated[float, Bounds(least=0, expected="0 (none) or more minutes")] = 0.0
    # The model that a new run starts from: the path of a checkpoint, of a run folder (its best checkpoint is taken), or
    # of a .ckpt or .safetensors file of MindSpore's model zoo. If empty, the run starts with random values.
    init_from: str = ""
    # What is taken over from the model at init_from. tables: the rows of the embedding tables. tower: the parameters
    # outside the tables. all: both.
    init_take: Literal["all", "tables", "tower"] = "all"
    # true: the states of the optimizers, such as the moments of Adam, are also taken over from the model at init_from.
    # false: the optimizers start with their initial states.
    init_optimizer: bool = False


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


@dataclass(frozen=True)
class TablesOptions:
    """The backend that keeps the embedding tables in host memory, and the dtype of their rows."""

    # Settings of this section that release 1.0.0 lacked, each with the value with which this release behaves as release
    # 1.0.0 did. app/run/identity.py reads them.
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


_TOWER = Removed("ranks no longer split the tower; examples/tower_over_ranks has a program for each parallel mode")
_GAIN = Removed("the schedule plateau counts a gain of more than 1e-6 as an improvement", 1e-6)
_LEAST_RATE = Removed("the schedule plateau lowers the learning rate to 1e-6 at least", 1e-6)

# Settings that earlier releases had and this release does not have, each with what to do instead.
_REMOVED = {
    **REMOVED_OF_PREPARE,
    "parallel": _TOWER,
    "checkpoint.tower_slices": _TOWER,
    "checkpoint.compact": Removed("the command `checkpoint compact` makes a delta a full checkpoint"),
    "checkpoint.full_every": Removed(
        "every tenth checkpoint of a run with checkpoint.delta is full, every 24th online"
    ),
    "device.graph": Removed("to debug MindSpore's graph on a CPU, set the environment variable WIDE_DEEP_GRAPH", False),
    "eval.batch_size": Removed("evaluations have the batches of the training, train.batch_size"),
    "eval.min_improvement": Removed("eval.patience counts every gain of the metric as an improvement"),
    "loss.row_clip_value": Removed("gradients of embedding rows are not clipped", 0.0),
    "loss.wide_l2_coef": Removed("the loss has no L2 term of the wide table; FTRL has wide_optimizer.l2", 0.0),
    "train.init_dataset": Removed("the source's prepared folder has to be where it was; link it there if it was moved"),
    "train.pool_blocks": Removed("the rows of 256 blocks are mixed at a time", 256),
    **{f"{group}_optimizer.schedule.min_improvement": _GAIN for group in ("wide", "deep", "tower")},
    **{f"{group}_optimizer.schedule.min_learning_rate": _LEAST_RATE for group in ("wide", "deep", "tower")},
}


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    REMOVED: ClassVar[Mapping[str, Removed]] = _REMOVED

    prepare: PrepareOptions = field(default_factory=PrepareOptions)
    device: DeviceOptions = field(default_factory=DeviceOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    tables: TablesOptions = field(default_factory=TablesOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    wide_optimizer: WideOptimizer = field(default_factory=FtrlOptions)
    deep_optimizer: DeepOptimizer = field(default_factory=LazyAdamOptions)
    tower_optimizer: TowerOptimizer = field(default_factory=AdamOptions)
    train: TrainOptions = field(default_factory=TrainOptions)
    eval: EvalOptions = field(default_factory=EvalOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)

    @property
    def optimizers(self) -> dict[str, WideOptimizer | DeepOptimizer | TowerOptimizer]:
        """The optimizers' settings by the part of the model that each updates: "wide", "deep" and "tower"."""
        return {"wide": self.wide_optimizer, "deep": self.deep_optimizer, "tower": self.tower_optimizer}
