"""Define the optimizers and the schedules of their learning rates by name, each with its own settings, such as
`deep_optimizer: {name: adam, learning_rate: 1.0e-3, schedule: {name: cosine}}`.

Settings that are not given have the defaults of the named optimizer. The formulas are in `app/tables/optimizers.py`
and `app/model/tower_optimizers.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from common.settings import Bounds, Checked, Count, CountOrZero, NotNegative, Positive

DropFactor = Annotated[float, Bounds(above=0, below=1, expected="between 0 and 1")]


@dataclass(frozen=True)
class _Schedule(Checked):
    name: str = ""
    # The number of steps of the warm-up, in which the learning rate rises evenly from 0 to its full value. 0: there is
    # no warm-up.
    warmup_steps: CountOrZero = 0

    def factor(self, step: int) -> float:
        """Return the factor by which the learning rate is multiplied at `step` (1, 2, …)."""
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        return self.decay(step - self.warmup_steps)

    def decay(self, step: int) -> float:
        """Return the factor of the learning rate at `step` (1, 2, …), counted from the end of the warm-up."""
        return 1.0


@dataclass(frozen=True)
class ConstantSchedule(_Schedule):
    """The same learning rate at every step after the warm-up."""

    name: Literal["constant"] = "constant"


@dataclass(frozen=True)
class CosineSchedule(_Schedule):
    """After the warm-up, the learning rate falls along half a cosine wave and then stays the same (Loshchilov & Hutter,
    2017, without restarts).
    """

    name: Literal["cosine"] = "cosine"
    decay_steps: Count = 100_000  # The number of steps in which the learning rate falls.
    # The learning rate after it has fallen, as a fraction of the full learning rate.
    final_factor: Annotated[float, Bounds(least=0, most=1)] = 0.0

    def decay(self, step: int) -> float:
        fraction = min(step / self.decay_steps, 1.0)
        return self.final_factor + (1 - self.final_factor) * 0.5 * (1 + math.cos(math.pi * fraction))


@dataclass(frozen=True)
class StepSchedule(_Schedule):
    """After the warm-up, the learning rate drops every `every_steps` steps."""

    name: Literal["step"] = "step"
    every_steps: Count = 10_000  # The number of steps between two drops.
    drop_factor: DropFactor = 0.1  # Each drop multiplies the learning rate by this factor.

    def decay(self, step: int) -> float:
        return float(self.drop_factor ** ((step - 1) // self.every_steps))


@dataclass(frozen=True)
class PlateauSchedule(_Schedule):
    """The learning rate drops when eval.metric on the split valid stops improving, but never below 1e-6.

    An evaluation is an improvement if its metric is better than the best one before by more than 1e-6. The default
    settings are those of the recipes of the benchmark BARS.
    """

    name: Literal["plateau"] = "plateau"
    drop_factor: DropFactor = 0.1  # Each drop multiplies the learning rate by this factor.
    patience: Count = 1  # The number of evaluations in a row without improvement after which the learning rate drops.


Schedule = ConstantSchedule | CosineSchedule | StepSchedule | PlateauSchedule


LEAST_FLOAT32 = 2.0**-126  # Smallest normal float32. Some devices treat smaller numbers as 0.
Epsilon = Annotated[float, Bounds(least=LEAST_FLOAT32, expected="1.2e-38 or more, float32's least normal number")]
# Decays must be below 1 after rounding to float32, which rounds 1 - 2**-25 and larger numbers to 1.
Decay = Annotated[float, Bounds(least=0, below=1 - 2**-25, expected="in [0, 1) as float32")]


@dataclass(frozen=True)
class _Optimizer(Checked):
    name: str = ""
    learning_rate: Positive = 1e-3  # The learning rate. At each step, the schedule multiplies it by a factor.
    schedule: Schedule = field(default_factory=ConstantSchedule)  # How the learning rate changes over the steps.

    def correction(self, step: int) -> float:
        """Return the factor of the learning rate at `step` (1, 2, …) that corrects the bias of moments that start at 0.

        The factor is 1 for optimizers without such moments.
        """
        return 1.0


@dataclass(frozen=True)
class SgdOptions(_Optimizer):
    """Stochastic gradient descent. It keeps no state."""

    name: Literal["sgd"] = "sgd"
    learning_rate: Positive = 0.1


@dataclass(frozen=True)
class FtrlOptions(_Optimizer):
    """FTRL-proximal, in which the learning rate of a weight falls with 1 / √accumulator (McMahan et al., "Ad Click
    Prediction", KDD 2013, Algorithm 1).
    """

    name: Literal["ftrl"] = "ftrl"
    learning_rate: Positive = 5e-2
    l1: NotNegative = 1e-8  # L1 coefficient, the paper's λ₁. A larger one sets more weights to 0.
    # L2 coefficient. A larger one makes weights smaller. The paper's λ₂ is 2 · l2, because the coefficient counts
    # twice, as in MindSpore's FTRL.
    l2: NotNegative = 1e-8
    initial_accumulator: Positive = 1.0  # The value of the accumulator, Σ gradient², before the first step.

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.schedule, CosineSchedule) and self.schedule.final_factor == 0:
            raise ValueError(
                "schedule.final_factor must be above 0 for ftrl, which divides by its learning rate; found 0"
            )

    @property
    def is_scheduled(self) -> bool:
        """True if this optimizer's learning rate changes over time, by a schedule or a warm-up."""
        return self.schedule != ConstantSchedule()


@dataclass(frozen=True)
class AdagradOptions(_Optimizer):
    """Adagrad (Duchi, Hazan & Singer, 2011), with epsilon added to the root as in `torch.optim.Adagrad`."""

    name: Literal["adagrad"] = "adagrad"
    learning_rate: Positive = 1e-2
    initial_accumulator: NotNegative = 0.0  # The value of the accumulator, Σ gradient², before the first step.
    epsilon: Epsilon = 1e-10  # A small number that is added to √(Σ gradient²), by which each step divides.


@dataclass(frozen=True)
class RowwiseAdagradOptions(_Optimizer):
    """Adagrad with one accumulator per row, which adds up the mean square of the row's gradient, as in FBGEMM."""

    name: Literal["rowwise_adagrad"] = "rowwise_adagrad"
    learning_rate: Positive = 1e-2
    initial_accumulator: NotNegative = 0.0  # The value of the accumulator, Σ mean(gradient²), before the first step.
    epsilon: Epsilon = 1e-8  # A small number that is added to the root of the accumulator, by which each step divides.


@dataclass(frozen=True)
class _Adam(_Optimizer):
    learning_rate: Positive = 3.5e-4
    beta1: Decay = 0.9  # Decay of the first moment, a running mean of the gradients.
    beta2: Decay = 0.999  # Decay of the second moment, a running mean of the squared gradients.
    # A small number that is added to the root of the second moment, by which each step divides.
    epsilon: Epsilon = 1e-8

    def correction(self, step: int) -> float:
        # The correction is computed in float64, because 1 - beta2**1 loses four digits in float32.
        return math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)

    def uncorrected_epsilon(self, step: int) -> float:
        """Return the epsilon to add to the root of the second moment if the moment has no bias correction.

        It has the same effect as adding epsilon to the root of the corrected moment, as `torch.optim.Adam` and FBGEMM
        do. The table optimizers `adam` and `partial_rowwise_adam` use it.
        """
        return self.epsilon * math.sqrt(1 - self.beta2**step)


@dataclass(frozen=True)
class LazyAdamOptions(_Adam):
    """Adam that updates only the rows of the batch, as MindSpore's LazyAdam does with optimizer.target="CPU".

    All other rows and their moments stay unchanged.
    """

    name: Literal["lazy_adam"] = "lazy_adam"


@dataclass(frozen=True)
class AdamOptions(_Adam):
    """Adam (Kingma & Ba, 2015). On a table it changes every row at every step, as `torch.optim.Adam` does."""

    name: Literal["adam"] = "adam"


@dataclass(frozen=True)
class PartialRowwiseAdamOptions(_Adam):
    """Lazy Adam with one second moment per row, the mean square of the row's gradient, as in FBGEMM.

    It takes two thirds of the memory of lazy Adam.
    """

    name: Literal["partial_rowwise_adam"] = "partial_rowwise_adam"


@dataclass(frozen=True)
class AdamWOptions(_Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019)."""

    name: Literal["adamw"] = "adamw"
    weight_decay: NotNegative = 1e-2  # Each step also subtracts learning_rate · weight_decay · weight from each weight.


WideOptimizer = FtrlOptions | AdagradOptions | SgdOptions
DeepOptimizer = (
    LazyAdamOptions
    | AdamOptions
    | PartialRowwiseAdamOptions
    | AdagradOptions
    | RowwiseAdagradOptions
    | SgdOptions
    | FtrlOptions
)
TowerOptimizer = AdamOptions | AdamWOptions | AdagradOptions | SgdOptions
