"""The optimizers by name, each with its own settings: `deep_optimizer: {name: adam, learning_rate: 1.0e-3}`.

Another `name` starts from that optimizer's defaults. Formulas: `optimizers.py` (tables), `app/model/optimizers.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from app.config.schedules import ConstantSchedule, CosineSchedule, Schedule

LEAST_FLOAT32 = 2.0**-126  # what is smaller counts as 0 on some devices


@dataclass(frozen=True)
class _Optimizer:
    name: str = ""
    learning_rate: float = 1e-3
    schedule: Schedule = field(default_factory=ConstantSchedule)

    def __post_init__(self) -> None:
        _check("learning_rate", self.learning_rate, self.learning_rate > 0, "above 0")


@dataclass(frozen=True)
class SgdOptions(_Optimizer):
    """Stochastic gradient descent: no state at all."""

    name: Literal["sgd"] = "sgd"
    learning_rate: float = 0.1


@dataclass(frozen=True)
class FtrlOptions(_Optimizer):
    """FTRL-proximal with the usual power -½ (McMahan et al., "Ad Click Prediction", KDD 2013, Algorithm 1).

    `exact_l1` false gives the wide head MindSpore's operator, which older releases used: on a CPU, `l1` pushes
    weights above 0 away from 0 there. Tables always have the exact one.
    """

    name: Literal["ftrl"] = "ftrl"
    learning_rate: float = 5e-2
    l1: float = 1e-8
    l2: float = 1e-8
    initial_accumulator: float = 1.0
    exact_l1: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("l1", self.l1, self.l1 >= 0, "0 or more")
        _check("l2", self.l2, self.l2 >= 0, "0 or more")
        _check("initial_accumulator", self.initial_accumulator, self.initial_accumulator > 0, "above 0")
        if isinstance(self.schedule, CosineSchedule) and self.schedule.final_factor == 0:
            raise ValueError(
                "schedule.final_factor must be above 0 for ftrl, which divides by its learning rate; found 0"
            )

    @property
    def is_scheduled(self) -> bool:
        """Whether the learning rate changes."""
        return self.schedule != ConstantSchedule()


@dataclass(frozen=True)
class AdagradOptions(_Optimizer):
    """Adagrad (Duchi, Hazan & Singer, 2011), with epsilon beside the root as in `torch.optim.Adagrad`."""

    name: Literal["adagrad"] = "adagrad"
    learning_rate: float = 1e-2
    initial_accumulator: float = 0.0
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("initial_accumulator", self.initial_accumulator, self.initial_accumulator >= 0, "0 or more")
        _check("epsilon", self.epsilon, self.epsilon >= LEAST_FLOAT32, "1.2e-38 or more, float32's least normal number")


@dataclass(frozen=True)
class RowwiseAdagradOptions(_Optimizer):
    """Adagrad with one accumulator a row, of the mean of its gradient's squares (as FBGEMM's tables have it)."""

    name: Literal["rowwise_adagrad"] = "rowwise_adagrad"
    learning_rate: float = 1e-2
    initial_accumulator: float = 0.0
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("initial_accumulator", self.initial_accumulator, self.initial_accumulator >= 0, "0 or more")
        _check("epsilon", self.epsilon, self.epsilon >= LEAST_FLOAT32, "1.2e-38 or more, float32's least normal number")


@dataclass(frozen=True)
class _Adam(_Optimizer):
    learning_rate: float = 3.5e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("beta1", self.beta1, 0 <= self.beta1 < 1, "in [0, 1)")
        _check("beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")
        _check("epsilon", self.epsilon, self.epsilon >= LEAST_FLOAT32, "1.2e-38 or more, float32's least normal number")

    def correction(self, step: int) -> float:
        """What Adam multiplies the learning rate of step 1, 2, … with for both biases; in float64, as 1 - beta2**1
        loses four digits in float32."""
        return math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)


@dataclass(frozen=True)
class LazyAdamOptions(_Adam):
    """Adam on the rows of a batch alone: those that it does not touch, and their moments, stay. As MindSpore's."""

    name: Literal["lazy_adam"] = "lazy_adam"


@dataclass(frozen=True)
class AdamOptions(_Adam):
    """Adam (Kingma & Ba, 2015). On a table it moves every row at every step, as `torch.optim.Adam` on the whole table
    does, and its epsilon stands as there: beside the corrected root."""

    name: Literal["adam"] = "adam"

    def uncorrected_epsilon(self, step: int) -> float:
        """Epsilon of step 1, 2, … for a second moment that is not corrected for its bias."""
        return self.epsilon * math.sqrt(1 - self.beta2**step)


@dataclass(frozen=True)
class AdamWOptions(_Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019): learning_rate · weight_decay of each weight goes
    at each step."""

    name: Literal["adamw"] = "adamw"
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("weight_decay", self.weight_decay, self.weight_decay >= 0, "0 or more")


WideOptimizer = FtrlOptions | AdagradOptions | SgdOptions
DeepOptimizer = LazyAdamOptions | AdamOptions | AdagradOptions | RowwiseAdagradOptions | SgdOptions | FtrlOptions
TowerOptimizer = AdamOptions | AdamWOptions | AdagradOptions | SgdOptions


def _check(name: str, value: float, holds: bool, expected: str) -> None:
    if not (holds and math.isfinite(value)):
        raise ValueError(f"{name} must be {expected}, and finite; found {value}")
