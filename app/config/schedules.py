"""Define learning rate schedules by name, each with its own settings, such as `deep_optimizer.schedule.name=cosine`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from common.settings import Bounds, Checked, Count, CountOrZero

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
