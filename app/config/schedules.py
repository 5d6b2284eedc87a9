"""Learning rate schedules by name, each with its own settings: `deep_optimizer.schedule.name=cosine`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class _Schedule:
    name: str = ""
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _check("warmup_steps", self.warmup_steps, self.warmup_steps >= 0, "0 or more")

    def factor(self, step: int) -> float:
        """What the learning rate of a step is multiplied with: it rises evenly over `warmup_steps`, then decays."""
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        return self.decay(step - self.warmup_steps)

    def decay(self, step: int) -> float:
        """The factor of step 1, 2, … after the warm-up."""
        return 1.0


@dataclass(frozen=True)
class ConstantSchedule(_Schedule):
    """The same learning rate at every step after `warmup_steps`."""

    name: Literal["constant"] = "constant"


@dataclass(frozen=True)
class CosineSchedule(_Schedule):
    """Half a cosine (Loshchilov & Hutter, 2017, without restarts) from 1 to `final_factor` over the `decay_steps` after
    the warm-up; it stays there."""

    name: Literal["cosine"] = "cosine"
    decay_steps: int = 100_000
    final_factor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("decay_steps", self.decay_steps, self.decay_steps >= 1, "1 or more")
        _check("final_factor", self.final_factor, 0 <= self.final_factor <= 1, "in [0, 1]")

    def decay(self, step: int) -> float:
        """See `_Schedule.decay`."""
        share = min(step / self.decay_steps, 1.0)
        return self.final_factor + (1 - self.final_factor) * 0.5 * (1 + math.cos(math.pi * share))


@dataclass(frozen=True)
class StepSchedule(_Schedule):
    """Times `drop_factor` after every `every_steps` steps that follow the warm-up."""

    name: Literal["step"] = "step"
    every_steps: int = 10_000
    drop_factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("every_steps", self.every_steps, self.every_steps >= 1, "1 or more")
        _check("drop_factor", self.drop_factor, 0 < self.drop_factor < 1, "between 0 and 1")

    def decay(self, step: int) -> float:
        """See `_Schedule.decay`."""
        return float(self.drop_factor ** ((step - 1) // self.every_steps))


@dataclass(frozen=True)
class PlateauSchedule(_Schedule):
    """Times `drop_factor`, never below `min_learning_rate`, after `patience` evaluations on `valid` in a row that did
    not improve `eval.metric` by more than `min_improvement`. (BARS's recipes: the defaults.)"""

    name: Literal["plateau"] = "plateau"
    drop_factor: float = 0.1
    patience: int = 1
    min_improvement: float = 1e-6
    min_learning_rate: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("drop_factor", self.drop_factor, 0 < self.drop_factor < 1, "between 0 and 1")
        _check("patience", self.patience, self.patience >= 1, "1 or more")
        _check("min_improvement", self.min_improvement, self.min_improvement >= 0, "0 or more")
        _check("min_learning_rate", self.min_learning_rate, self.min_learning_rate >= 0, "0 or more")


Schedule = ConstantSchedule | CosineSchedule | StepSchedule | PlateauSchedule


def _check(name: str, value: float, holds: bool, expected: str) -> None:
    if not (holds and math.isfinite(value)):
        raise ValueError(f"schedule.{name} must be {expected}, and finite; found {value}")
