"""The sparse optimizers: their settings, and one step in NumPy, which is their definition.

Every backend computes these steps in float32 and in this order: read state, update moments, new weight,
write. The functions change their arrays in place; all arrays are [U, width], one row an id.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FtrlOptions:
    """FTRL-proximal with the usual power -½ (McMahan et al., "Ad Click Prediction", KDD 2013, Algorithm 1)."""

    learning_rate: float = 5e-2
    l1: float = 1e-8
    l2: float = 1e-8
    initial_accumulator: float = 1.0

    def __post_init__(self) -> None:
        _check("learning_rate", self.learning_rate, self.learning_rate > 0, "above 0")
        _check("l1", self.l1, self.l1 >= 0, "0 or more")
        _check("l2", self.l2, self.l2 >= 0, "0 or more")
        _check("initial_accumulator", self.initial_accumulator, self.initial_accumulator > 0, "above 0")


@dataclass(frozen=True)
class AdamOptions:
    """Adam (Kingma & Ba, 2015). On a table it is lazy: rows that a batch does not touch, and their moments, stay."""

    learning_rate: float = 3.5e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check("learning_rate", self.learning_rate, self.learning_rate > 0, "above 0")
        _check("beta1", self.beta1, 0 <= self.beta1 < 1, "in [0, 1)")
        _check("beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")
        _check("epsilon", self.epsilon, self.epsilon > 0, "above 0")

    def corrected_rate(self, step: int) -> float:
        """The learning rate with both bias corrections of step 1, 2, …; in float64, as 1 - beta2**1 loses
        four digits in float32."""
        return self.learning_rate * math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)


def ftrl_step(
    rows: np.ndarray, accumulator: np.ndarray, linear: np.ndarray, gradient: np.ndarray, options: FtrlOptions
) -> None:
    """One FTRL step in place; `l2` counts twice in the denominator, as in MindSpore's and TensorFlow's FTRL."""
    learning_rate, l1, l2 = (np.float32(x) for x in (options.learning_rate, options.l1, options.l2))
    new_accumulator = accumulator + gradient * gradient
    new_root = np.sqrt(new_accumulator)
    linear += gradient - (new_root - np.sqrt(accumulator)) / learning_rate * rows
    accumulator[...] = new_accumulator
    shrunk = (np.sign(linear) * l1 - linear) / (new_root / learning_rate + np.float32(2) * l2)
    rows[...] = np.where(np.abs(linear) > l1, shrunk, np.float32(0))


def lazy_adam_step(
    rows: np.ndarray,
    first_moment: np.ndarray,
    second_moment: np.ndarray,
    gradient: np.ndarray,
    options: AdamOptions,
    step: int,
) -> None:
    """One Adam step in place; `step` is 1 for the first update of the run."""
    beta1, beta2 = np.float32(options.beta1), np.float32(options.beta2)
    first_moment[...] = beta1 * first_moment + (np.float32(1) - beta1) * gradient
    second_moment[...] = beta2 * second_moment + (np.float32(1) - beta2) * (gradient * gradient)
    rate = np.float32(options.corrected_rate(step))
    rows -= rate * first_moment / (np.sqrt(second_moment) + np.float32(options.epsilon))


def _check(name: str, value: float, holds: bool, expected: str) -> None:
    if not (holds and math.isfinite(value)):
        raise ValueError(f"{name} must be {expected}, and finite; found {value}")
