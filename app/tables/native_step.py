"""What the native kernels are told of a step."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from app.config.optimizers import AdamOptions, LazyAdamOptions
from app.tables.interface import WIDE, LearningRate, TablesSpec
from app.tables.native_library import History, Step
from app.tables.whole_table_adam import MOST_EXACT_STEPS, StepHistory
from common.native_library import address


def step_struct(spec: TablesSpec, table: str, learning_rate: LearningRate, step: int) -> Step:
    """The settings of one step of one table's optimizer."""
    options = spec.optimizer(table)
    rate, epsilon = learning_rate(step), getattr(options, "epsilon", 0.0)
    if isinstance(options, LazyAdamOptions | AdamOptions):
        rate *= options.correction(step)
    if isinstance(options, AdamOptions):
        epsilon = options.uncorrected_epsilon(step)
    others = (getattr(options, name, 0.0) for name in ("l1", "l2"))
    betas = (getattr(options, name, 0.0) for name in ("beta1", "beta2"))
    l2_coef = spec.wide_l2_coef if table == WIDE else spec.l2_coef
    return Step(rate, *betas, epsilon, *others, l2_coef, spec.clip_value or math.inf)


def make_history(spec: TablesSpec, learning_rate: LearningRate, step: int) -> StepHistory | None:
    """What `adam` knows of steps 1 … step of the deep table; None for the other optimizers."""
    options = spec.deep_optimizer
    if not isinstance(options, AdamOptions):
        return None
    return StepHistory.of_steps(options, spec.l2_coef, learning_rate, step)


def history_struct(history: StepHistory | None, step: int) -> Any:
    """A pointer to the history up to `step`; valid until the next step is noted."""
    if history is None:
        return None
    noted = slice(step + 1)  # of arrays that have room for later steps
    addresses = (
        address(history.rates[noted], np.float32, step + 1),
        address(history.epsilons[noted], np.float32, step + 1),
        address(history.rate_sums[noted], np.float64, step + 1),
        address(history.beta2_powers[noted], np.float32, step + 1),
    )
    options = history.options
    return ctypes.byref(History(step, *addresses, options.beta1, options.beta2, history.l2_coef, MOST_EXACT_STEPS))
