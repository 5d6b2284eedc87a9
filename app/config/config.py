"""One run's settings: every section's dataclass, nested. Read before MindSpore is imported, so it imports none.

Most sections stand beside the code that uses them; those of files that import MindSpore stand here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from app.config.optimizers import (
    AdamOptions,
    DeepOptimizer,
    FtrlOptions,
    LazyAdamOptions,
    TowerOptimizer,
    WideOptimizer,
)
from app.config.parallel import ParallelOptions
from app.config.run import CheckpointOptions, ClusterOptions, DeviceOptions, EvalOptions, TablesOptions
from data_prep.options.prepare_options import PrepareOptions

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True)
class ModelOptions:
    """The shape of Wide&Deep. `fold_numeric` false looks the numeric fields up like the others (`stock` only).

    `dropout` is the share of each hidden layer's units that a training step leaves out. The native kernels have the
    `activation` relu and no `batch_norm`; the others are made of MindSpore's operators.
    """

    embedding_dim: int = 80
    hidden_widths: tuple[int, ...] = (1024, 512, 256, 128)
    initial_scale: float = 0.01
    fold_numeric: bool = True
    batch_norm: bool = False
    activation: Literal["relu", "gelu", "silu", "leaky_relu", "tanh", "sigmoid"] = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.embedding_dim < 1:
            raise ValueError(f"model.embedding_dim must be 1 or more, found {self.embedding_dim}")
        if not self.hidden_widths or min(self.hidden_widths) < 1:
            raise ValueError(f"model.hidden_widths must be widths of 1 or more, found {list(self.hidden_widths)}")
        if not 0 <= self.initial_scale < math.inf:
            raise ValueError(f"model.initial_scale must be 0 or more, and finite; found {self.initial_scale}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1), found {self.dropout}")


@dataclass(frozen=True)
class LossOptions:
    """`loss_scale` multiplies the loss before and divides the gradients after the backward pass.

    `l2_coef` is that of the deep table, `wide_l2_coef` of the wide one: coefficient · ½ Σ‖row‖² over the batch's unique
    rows, or over the whole table with `adam`. `row_clip_value` bounds each value of a unique row's gradient, before
    its L2 term, `tower_clip_norm` the norm of all the tower's gradients; 0 does not. `label_smoothing` s trains on the
    labels (1 - s) · label + s / 2.
    """

    l2_coef: float = 8e-5
    wide_l2_coef: float = 0.0
    row_clip_value: float = 0.0
    tower_clip_norm: float = 0.0
    label_smoothing: float = 0.0
    loss_scale: float = 1024.0

    def __post_init__(self) -> None:
        for name in ("l2_coef", "wide_l2_coef", "row_clip_value", "tower_clip_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"loss.{name} must be 0 or more, and finite; found {getattr(self, name)}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"loss.label_smoothing must be in [0, 1), found {self.label_smoothing}")
        if not 0 < self.loss_scale <= LARGEST_FLOAT32:
            raise ValueError(f"loss.loss_scale must be above 0, and finite in float32; found {self.loss_scale}")


@dataclass(frozen=True)
class TrainOptions:
    """How the data is passed over, and what is said of it.

    `pool_blocks` blocks of rows are mixed at a time; `log_every_steps` is for the progress line and
    metrics.jsonl (loss.log has every step); `profile` writes the host kernels' times to the run's log. `time_limit`
    minutes after its launch a run has saved and ended; the same command goes on. 0 is no limit.

    A new run begins with what `init_take` says of the model in `init_from`: a checkpoint, a run's folder (its best one)
    or a `.ckpt` of the model zoo; with `init_optimizer` its optimizers' memory too. Rows follow their field and value
    from the vocabulary of the folder that it was trained on, which may have moved to `init_dataset`.
    """

    epochs: int = 1
    batch_size: int = 16_000
    seed: int = 1
    pool_blocks: int = 256
    log_every_steps: int = 10
    resume: Literal["auto", "never", "require"] = "auto"
    profile: bool = False
    time_limit: float = 0.0
    init_from: str = ""
    init_take: Literal["all", "tables", "tower"] = "all"
    init_optimizer: bool = False
    init_dataset: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.time_limit < math.inf:
            raise ValueError(f"train.time_limit must be 0 (none) or more minutes, found {self.time_limit}")
        for name in ("epochs", "batch_size", "pool_blocks", "log_every_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name} must be 1 or more, found {getattr(self, name)}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"train.seed must be between 0 and 2**63 - 1, found {self.seed}")


@dataclass(frozen=True)
class Config:
    """All settings of a run, in the order of the data's way."""

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
