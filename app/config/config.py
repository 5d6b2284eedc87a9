"""`Config`: all settings of a run, and its sections model, loss and train. Imports no MindSpore.

The comment at a field, or the lines above it, is its sentence in docs/configuration.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from app.config.optimizer_settings import (
    AdamOptions,
    DeepOptimizer,
    FtrlOptions,
    LazyAdamOptions,
    TowerOptimizer,
    WideOptimizer,
)
from app.config.parallel import ParallelOptions
from app.config.run_settings import CheckpointOptions, ClusterOptions, DeviceOptions, EvalOptions, TablesOptions
from common.settings import Bounds, Checked, Count, Fraction, NotNegative, Seed
from data_prep.options.prepare_options import PrepareOptions

FirstLayer = Literal["auto", "direct", "distinct"]

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
LossScale = Annotated[float, Bounds(above=0, most=LARGEST_FLOAT32, expected="above 0, and finite in float32")]


@dataclass(frozen=True)
class ModelOptions(Checked):
    """The Wide&Deep model."""

    embedding_dim: Count = 80  # width of a row of the deep table
    # units of each hidden layer of the tower
    hidden_widths: Annotated[tuple[int, ...], Bounds(least=1, expected="widths of 1 or more")] = (1024, 512, 256, 128)
    initial_scale: NotNegative = 0.01  # new rows of the deep table are uniform in ± this
    # Multiply the numeric fields by rows of the tower; false looks them up in the tables like the others, with
    # tables.backend=stock only. Both are the same function.
    fold_numeric: bool = True
    batch_norm: bool = False  # normalize each hidden layer before its activation; on one rank only
    # relu has a native kernel; the others are made of MindSpore's operators.
    activation: Literal["relu", "gelu", "silu", "leaky_relu", "tanh", "sigmoid"] = "relu"
    # distinct multiplies each distinct row of a batch once in the tower's first layer, direct each position's row: the
    # same function up to the order of sums. auto chooses by the data's counts, batch_size and embedding_dim.
    first_layer: FirstLayer = "auto"
    dropout: Fraction = 0.0  # fraction of each hidden layer's units that a training step leaves out
    wide_fields: tuple[str, ...] | None = None  # categorical fields that the wide part sees; null: all, []: none
    deep_fields: tuple[str, ...] | None = None  # categorical fields that the deep part sees; null: all but crosses


@dataclass(frozen=True)
class LossOptions(Checked):
    """The loss and what bounds its gradients."""

    # L2 term of the deep table, l2_coef · ½ Σ‖row‖²: over the batch's unique rows, with deep_optimizer.name=adam over
    # the whole table.
    l2_coef: NotNegative = 8e-5
    wide_l2_coef: NotNegative = 0.0  # the same for the wide table
    row_clip_value: NotNegative = 0.0  # bound of each value of a unique row's gradient, before its L2 term; 0: none
    tower_clip_norm: NotNegative = 0.0  # bound of the norm of all the tower's gradients together; 0: none
    label_smoothing: Fraction = 0.0  # with s, the labels trained on are (1 - s) · label + s / 2
    loss_scale: LossScale = 1024.0  # multiplies the loss before, and divides the gradients after the backward pass


@dataclass(frozen=True)
class TrainOptions(Checked):
    """Passes over the data, logging, and the model that a run starts from."""

    # Settings that are not given follow from the number of training rows (docs/recipes.md).
    auto: bool = False
    epochs: Count = 1  # passes over the training rows
    batch_size: Count = 16_000  # rows of a step, of all ranks together
    seed: Seed = 1  # of the initial values, the order of the rows and dropout
    # Of the running mean of all weights, which is then what is evaluated, exported and scored: 0.999 weighs the last
    # thousand steps. It takes as many bytes as the weights; 0 keeps none.
    ema_decay: Annotated[float, Bounds(least=0, below=1, expected="0 (no running mean) or more and below 1")] = 0.0
    pool_blocks: Count = 256  # blocks of rows that are mixed at a time
    log_every_steps: Count = 10  # steps between lines of metrics.jsonl and the progress bar; loss.log has every step
    # auto resumes an unfinished run with the same settings and data, else starts a new one; never starts a new one;
    # require fails unless there is a run to resume.
    resume: Literal["auto", "never", "require"] = "auto"
    profile: bool = False  # write the host kernels' times to the run's log
    # minutes after the launch by which the run has saved and stopped, to be resumed; 0: none
    time_limit: Annotated[float, Bounds(least=0, expected="0 (none) or more minutes")] = 0.0
    init_from: str = ""  # model that a new run starts from: a checkpoint, a run folder (its best) or the zoo's .ckpt
    init_take: Literal["all", "tables", "tower"] = "all"  # parts of that model to take
    init_optimizer: bool = False  # take its optimizers' state too
    init_dataset: str = ""  # where the prepared folder is now that the model was trained on, if it has moved


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

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
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
