"""Define `Config`, all settings of a run, and its sections model, loss and train. This module does not import
MindSpore.

`make docs` copies the comment at each field, or the comment lines above it, to docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from app.config.device import DeviceOptions
from app.config.optimizer_settings import (
    AdamOptions,
    DeepOptimizer,
    FtrlOptions,
    LazyAdamOptions,
    TowerOptimizer,
    WideOptimizer,
)
from app.config.removed import REMOVED
from app.config.run_settings import CheckpointOptions, ClusterOptions, EvalOptions, TablesOptions
from common.settings import Bounds, Checked, Count, CountOrZero, Fraction, NotNegative, Removed, Seed
from data_prep.options.prepare_options import PrepareOptions

FirstLayer = Literal["auto", "direct", "distinct"]

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
LossScale = Annotated[float, Bounds(above=0, most=LARGEST_FLOAT32, expected="above 0, and finite in float32")]


@dataclass(frozen=True)
class ModelOptions(Checked):
    """The Wide&Deep model."""

    embedding_dim: Count = 80  # The width of a row of the deep table.
    # The number of units of each hidden layer of the tower.
    hidden_widths: Annotated[tuple[int, ...], Bounds(least=1, expected="widths of 1 or more")] = (1024, 512, 256, 128)
    # The initial values of the deep table's rows are uniform between minus this value and this value.
    initial_row_scale: NotNegative = 0.01
    # true: the rows of the numeric fields are parameters of the tower. false: they are rows of the tables, like those
    # of the categorical fields, with tables.backend=stock only. The model is the same function in both cases.
    fold_numeric: bool = True
    batch_norm: bool = False  # Normalize each hidden layer before its activation. Not possible on several ranks.
    # The activation function of the hidden layers. relu has a native kernel, the others use MindSpore's operators.
    activation: Literal["relu", "gelu", "silu", "leaky_relu", "tanh", "sigmoid"] = "relu"
    # direct: the tower's first layer multiplies the embedding row of each cell of a batch. distinct: it multiplies each
    # distinct row of the batch once, which gives the same result up to rounding. auto: the faster of the two, estimated
    # from the counts of the data's values, batch_size and embedding_dim.
    first_layer: FirstLayer = "auto"
    dropout: Fraction = 0.0  # The fraction of each hidden layer's units that a training step sets to 0 at random.
    # The categorical fields that the wide part sees. null means all, [] means none.
    wide_fields: tuple[str, ...] | None = None
    # The categorical fields that the deep part sees. null means all but the crosses.
    deep_fields: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LossOptions(Checked):
    """The loss that a training minimizes: its L2 term, label smoothing, loss scaling and gradient clipping."""

    # Coefficient of the deep table's L2 term, l2_coef · ½ Σ‖row‖². The sum is over the batch's unique rows. With
    # deep_optimizer.name=adam it is over the whole table.
    l2_coef: NotNegative = 8e-5
    # If the norm of all gradients of the tower exceeds this bound, they are scaled down to it. 0 sets no bound.
    tower_clip_norm: NotNegative = 0.0
    label_smoothing: Fraction = 0.0  # For the value s, training labels become (1 - s) · label + s / 2.
    # The loss is multiplied by this factor before the backward pass, and the gradients are divided by it after.
    loss_scale: LossScale = 1024.0


@dataclass(frozen=True)
class TrainOptions(Checked):
    """The length of a training, its batches, seed and logging, and the model from which a run starts."""

    # Choose the settings that neither a file nor the command line sets, to fit the rows, fields and values of the
    # prepared data (docs/training.md).
    auto: bool = False
    epochs: Count = 1  # The number of passes over the training rows.
    # The training ends after this number of steps, or at the end of its epochs if that comes first. 0 sets no limit.
    # The model is evaluated and saved there. More steps continue the run. With train.auto the learning rates fall until
    # that step.
    steps: CountOrZero = 0
    batch_size: Count = 16_000  # Rows per step, of all ranks together.
    seed: Seed = 1  # Seed of the initial values, of the order of the rows and of dropout.
    # Decay of a running mean of all weights, which evaluation, export and scoring then use instead of the weights.
    # 0.999 averages about the last 1,000 steps. 0 switches it off. The mean doubles the memory of the weights.
    ema_decay: Annotated[float, Bounds(least=0, below=1, expected="0 (no running mean) or more and below 1")] = 0.0
    # Steps between lines of metrics.jsonl and updates of the progress bar. loss.log has every step.
    log_every_steps: Count = 10
    # auto: an unfinished run with the same settings and data is resumed, or else a new one starts. never: a new run
    # starts. require: the launch fails unless there is a run to resume.
    resume: Literal["auto", "never", "require"] = "auto"
    # Write the times of the host's kernels to the run's log, and those of MindSpore's operators to profile/.
    profile: bool = False
    # The run saves and stops within this number of minutes after the launch. The same command resumes it. 0 sets no
    # limit.
    time_limit: Annotated[float, Bounds(least=0, expected="0 (none) or more minutes")] = 0.0
    # The model that a new run starts from: a checkpoint, a run folder (its best checkpoint), or a .ckpt or
    # .safetensors of the zoo.
    init_from: str = ""
    init_take: Literal["all", "tables", "tower"] = "all"  # The parts of the model in init_from to take over.
    init_optimizer: bool = False  # Also take over the optimizer states of the model in init_from.


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    REMOVED: ClassVar[Mapping[str, Removed]] = REMOVED

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
