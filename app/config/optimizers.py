"""The optimizers by name, each with its own settings: `deep_optimizer: {name: adam, learning_rate: 1.0e-3}`.

Another `name` starts from that optimizer's defaults. Formulas: `app/tables/optimizers.py`, `app/model/optimizers.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from app.config.schedules import ConstantSchedule, CosineSchedule, Schedule, check_number

LEAST_FLOAT32 = 2.0**-126  # smaller numbers count as 0 on some devices


@dataclass(frozen=True)
class _Optimizer:
    name: str = ""
    learning_rate: float = 1e-3  # of a step, before the schedule
    schedule: Schedule = field(default_factory=ConstantSchedule)  # how the learning rate changes

    def __post_init__(self) -> None:
        check_number("learning_rate", self.learning_rate, self.learning_rate > 0, "above 0")

    def correction(self, step: int) -> float:
        """Return the factor of the learning rate at step 1, 2, … that corrects moments which began as 0."""
        return 1.0

    def _check_epsilon(self, epsilon: float) -> None:
        check_number("epsilon", epsilon, epsilon >= LEAST_FLOAT32, "1.2e-38 or more, float32's least normal number")


@dataclass(frozen=True)
class SgdOptions(_Optimizer):
    """Stochastic gradient descent, without state."""

    name: Literal["sgd"] = "sgd"
    learning_rate: float = 0.1


@dataclass(frozen=True)
class FtrlOptions(_Optimizer):
    """FTRL-proximal with the usual power -½ (McMahan et al., "Ad Click Prediction", KDD 2013, Algorithm 1)."""

    name: Literal["ftrl"] = "ftrl"
    learning_rate: float = 5e-2
    l1: float = 1e-8  # L1 coefficient of the proximal step
    l2: float = 1e-8  # L2 coefficient of the proximal step
    initial_accumulator: float = 1.0  # Σ gradient² before the first step

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("l1", self.l1, self.l1 >= 0, "0 or more")
        check_number("l2", self.l2, self.l2 >= 0, "0 or more")
        check_number("initial_accumulator", self.initial_accumulator, self.initial_accumulator > 0, "above 0")
        if isinstance(self.schedule, CosineSchedule) and self.schedule.final_factor == 0:
            raise ValueError(
                "schedule.final_factor must be above 0 for ftrl, which divides by its learning rate; found 0"
            )

    @property
    def is_scheduled(self) -> bool:
        """True if the learning rate changes."""
        return self.schedule != ConstantSchedule()


@dataclass(frozen=True)
class AdagradOptions(_Optimizer):
    """Adagrad (Duchi, Hazan & Singer, 2011), with epsilon beside the root as in `torch.optim.Adagrad`."""

    name: Literal["adagrad"] = "adagrad"
    learning_rate: float = 1e-2
    initial_accumulator: float = 0.0  # Σ gradient² before the first step
    epsilon: float = 1e-10  # added to the root of Σ gradient²

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("initial_accumulator", self.initial_accumulator, self.initial_accumulator >= 0, "0 or more")
        self._check_epsilon(self.epsilon)


@dataclass(frozen=True)
class RowwiseAdagradOptions(_Optimizer):
    """Adagrad with one accumulator a row, of the mean of its gradient's squares, as in FBGEMM."""

    name: Literal["rowwise_adagrad"] = "rowwise_adagrad"
    learning_rate: float = 1e-2
    initial_accumulator: float = 0.0  # mean square of the gradients before the first step
    epsilon: float = 1e-8  # added to the accumulator's root

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("initial_accumulator", self.initial_accumulator, self.initial_accumulator >= 0, "0 or more")
        self._check_epsilon(self.epsilon)


_FLOAT32_1 = 1 - 2**-25  # float32 rounds what is from here on up to 1


@dataclass(frozen=True)
class _Adam(_Optimizer):
    learning_rate: float = 3.5e-4
    beta1: float = 0.9  # decay of the first moment
    beta2: float = 0.999  # decay of the second moment
    epsilon: float = 1e-8  # added to the root of the second moment

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            decay = getattr(self, name)
            check_number(name, decay, 0 <= decay < _FLOAT32_1, "in [0, 1) as float32")
        self._check_epsilon(self.epsilon)

    def correction(self, step: int) -> float:
        # In float64: 1 - beta2**1 loses four digits in float32.
        return math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)

    def uncorrected_epsilon(self, step: int) -> float:
        """Return what stands for epsilon beside a root that is not corrected, if it is that of the corrected one.

        On a table `adam` and `partial_rowwise_adam` have it so, as `torch.optim.Adam` and FBGEMM.
        """
        return self.epsilon * math.sqrt(1 - self.beta2**step)


@dataclass(frozen=True)
class LazyAdamOptions(_Adam):
    """Adam on the rows of the batch only; other rows and their moments do not change. As MindSpore's."""

    name: Literal["lazy_adam"] = "lazy_adam"


@dataclass(frozen=True)
class AdamOptions(_Adam):
    """Adam (Kingma & Ba, 2015). On a table it changes every row at every step, as `torch.optim.Adam` does."""

    name: Literal["adam"] = "adam"


@dataclass(frozen=True)
class PartialRowwiseAdamOptions(_Adam):
    """Lazy Adam with one second moment a row, of the mean of its gradient's squares, as in FBGEMM: two thirds of the
    memory."""

    name: Literal["partial_rowwise_adam"] = "partial_rowwise_adam"


@dataclass(frozen=True)
class AdamWOptions(_Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019)."""

    name: Literal["adamw"] = "adamw"
    weight_decay: float = 1e-2  # each step takes learning_rate · weight_decay of each weight away

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("weight_decay", self.weight_decay, self.weight_decay >= 0, "0 or more")


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
