"""Pass the learning rates of past steps to the C++ kernels, and let rows take in C++ the `adam` steps that they missed
because they were in none of the steps' batches.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from app.tables.native.library import LIBRARY, UNKNOWN_ISA, History, Means, RowArrays, unknown_isa
from app.tables.optimizers import MOST_EXACT_STEPS, RunningMean, States, StepHistory
from common.native_library import address, output_address
from common.process import num_cores


class NativeStepHistory(StepHistory):
    """A `StepHistory` (the past steps of a table with `adam`) whose `catch_up` runs in C++ on all cores.

    `catch_up` lets rows take the steps that they missed because they were not in the batches. The results have the same
    bits as in NumPy.
    """

    def catch_up(self, states: States, means: RunningMean | None = None) -> None:
        *arrays, last_steps = states
        count, width = arrays[0].shape
        of_rows = [output_address(array) for array in arrays[:3]]
        of_means = None if means is None else output_address(arrays[3])
        last = address(last_steps, np.int32, count, 1)
        rows = RowArrays(count, width, *of_rows, of_means, last)
        until = history_until(self, self.step), means and means_until(means, self.step)
        if LIBRARY.load().host_tables_catch_up(ctypes.byref(rows), *until, num_cores()) == UNKNOWN_ISA:
            raise unknown_isa()
        last_steps[...] = self.step


def history_until(history: StepHistory | None, step: int) -> Any:
    """Return a pointer to the C structure `HostTablesHistory` with the rates and constants of `adam` steps 0 … `step`.

    The pointer is valid until the next step is appended to `history`. Return None if `history` is None.
    """
    if history is None:
        return None
    steps = slice(step + 1)  # The arrays of `history` may cover later steps, which the kernels must not see.
    arrays = (
        address(history.rates[steps], np.float32, step + 1),
        address(history.epsilons[steps], np.float32, step + 1),
        address(history.rate_sums[steps], np.float64, step + 1),
        address(history.beta2_powers[steps], np.float32, step + 1),
    )
    options = history.options
    return ctypes.byref(History(step, *arrays, options.beta1, options.beta2, history.l2_coef, MOST_EXACT_STEPS))


def means_until(means: RunningMean, step: int) -> Any:
    """Return a pointer to the C structure `HostTablesMeans` with the factors of running means in the steps 0 … `step`.

    The pointer is valid until more steps are appended to `means`.
    """
    means.reach(step)
    powers, rates = means.powers[: step + 1], means.rates[: step + 1]
    return ctypes.byref(Means(step, address(powers, np.float64, step + 1), address(rates, np.float32, step + 1)))
