"""Learning rate schedules by name, each with its own settings, such as `deep_optimizer.schedule.name=cosine`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


def check_number(name: str, value: float, holds: bool, expected: str) -> None:
    """Raise ValueError, naming the setting, unless the value is finite and `holds` is true."""
    if not (holds and math.isfinite(value)):
        raise ValueError(f"{name} must be {expected}, and finite; found {value}")


@dataclass(frozen=True)
class _Schedule:
    name: str = ""
    warmup_steps: int = 0  # steps over which the learning rate rises evenly from 0

    def __post_init__(self) -> None:
        check_number("schedule.warmup_steps", self.warmup_steps, self.warmup_steps >= 0, "0 or more")

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate at step 1, 2, …"""
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        return self.decay(step - self.warmup_steps)

    def decay(self, step: int) -> float:
        """Return the factor of step 1, 2, … after the warm-up."""
        return 1.0


@dataclass(frozen=True)
class ConstantSchedule(_Schedule):
    """The same learning rate at every step after the warm-up."""

    name: Literal["constant"] = "constant"


@dataclass(frozen=True)
class CosineSchedule(_Schedule):
    """Half a cosine after the warm-up (Loshchilov & Hutter, 2017, without restarts)."""

    name: Literal["cosine"] = "cosine"
    decay_steps: int = 100_000  # steps of the decay
    final_factor: float = 0.0  # factor of the learning rate at its end and after it

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("schedule.decay_steps", self.decay_steps, self.decay_steps >= 1, "1 or more")
        check_number("schedule.final_factor", self.final_factor, 0 <= self.final_factor <= 1, "in [0, 1]")

    def decay(self, step: int) -> float:
        fraction = min(step / self.decay_steps, 1.0)
        return self.final_factor + (1 - self.final_factor) * 0.5 * (1 + math.cos(math.pi * fraction))


@dataclass(frozen=True)
class StepSchedule(_Schedule):
    """A drop after every so many steps that follow the warm-up."""

    name: Literal["step"] = "step"
    every_steps: int = 10_000  # steps between drops
    drop_factor: float = 0.1  # multiplies the learning rate at each drop

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("schedule.every_steps", self.every_steps, self.every_steps >= 1, "1 or more")
        check_number("schedule.drop_factor", self.drop_factor, 0 < self.drop_factor < 1, "between 0 and 1")

    def decay(self, step: int) -> float:
        return float(self.drop_factor ** ((step - 1) // self.every_steps))


@dataclass(frozen=True)
class PlateauSchedule(_Schedule):
    """A drop when evaluations on the split valid stop improving (the defaults are those of BARS's recipes)."""

    name: Literal["plateau"] = "plateau"
    drop_factor: float = 0.1  # multiplies the learning rate at each drop
    patience: int = 1  # evaluations in a row without improvement before a drop
    min_improvement: float = 1e-6  # change of eval.metric that is an improvement if it is larger
    min_learning_rate: float = 1e-6  # least learning rate

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("schedule.drop_factor", self.drop_factor, 0 < self.drop_factor < 1, "between 0 and 1")
        check_number("schedule.patience", self.patience, self.patience >= 1, "1 or more")
        check_number("schedule.min_improvement", self.min_improvement, self.min_improvement >= 0, "0 or more")
        check_number("schedule.min_learning_rate", self.min_learning_rate, self.min_learning_rate >= 0, "0 or more")


Schedule = ConstantSchedule | CosineSchedule | StepSchedule | PlateauSchedule
