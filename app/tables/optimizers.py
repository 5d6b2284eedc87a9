"""The sparse optimizers of the tables: what each keeps of a row, and one step in NumPy, which is its definition.

Every backend computes these steps in float32 and in this order: read state, update moments, new weight,
write. The functions change their arrays in place; all arrays are [U, width], one row an id. `adam`, which also moves
the rows outside of a batch, stands in `whole_table_adam.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.config.optimizers import (
    AdagradOptions,
    AdamOptions,
    DeepOptimizer,
    FtrlOptions,
    LazyAdamOptions,
    RowwiseAdagradOptions,
    SgdOptions,
    WideOptimizer,
)

TableOptimizer = WideOptimizer | DeepOptimizer
States = tuple[np.ndarray, ...]  # in the order of `state_arrays`
ROWS, LAST_STEP, LAST_RATE = "rows", "last_step", "last_rate"
SAME_WEIGHT = np.float32(1e-5)  # as a share: weights that differ by less were made from the same linear term
LARGEST_RISE = np.float32(100)  # of a learning rate: changing over to the higher one loses two digits of the weight
LEAST_FTRL_RATE = np.float32(2.0**-40)


@dataclass(frozen=True)
class StateArray:
    """One array of a table's state: as wide as the rows, or one value a row."""

    name: str
    initial: float = 0.0  # of an untouched row; the rows themselves start as the table says
    one_a_row: bool = False
    dtype: type[np.float32] | type[np.int32] = np.float32


def state_arrays(options: TableOptimizer) -> tuple[StateArray, ...]:
    """What a table with this optimizer keeps of each touched row, the row itself first."""
    rows, moments = StateArray(ROWS), (StateArray("first_moment"), StateArray("second_moment"))
    match options:
        case LazyAdamOptions():
            return rows, *moments
        case AdamOptions():
            return rows, *moments, StateArray(LAST_STEP, one_a_row=True, dtype=np.int32)
        case FtrlOptions():
            states = (rows, StateArray("accumulator", options.initial_accumulator), StateArray("linear"))
            return (*states, StateArray(LAST_RATE)) if options.is_scheduled else states
        case AdagradOptions():
            return rows, StateArray("accumulator", options.initial_accumulator)
        case RowwiseAdagradOptions():
            return rows, StateArray("accumulator", options.initial_accumulator, one_a_row=True)
        case SgdOptions():
            return (rows,)


def table_step(states: States, gradient: np.ndarray, options: TableOptimizer, learning_rate: float, step: int) -> None:
    """One step of any optimizer but `adam`, in place; `step` from 1."""
    match options:
        case LazyAdamOptions():
            lazy_adam_step(states, gradient, options, learning_rate, step)
        case FtrlOptions():
            ftrl_step(states, gradient, options, learning_rate)
        case AdagradOptions():
            adagrad_step(states, gradient, options, learning_rate)
        case RowwiseAdagradOptions():
            rowwise_adagrad_step(states, gradient, options, learning_rate)
        case SgdOptions():
            sgd_step(states, gradient, learning_rate)


def clipped(gradient: np.ndarray, clip_value: float) -> np.ndarray:
    """Each value of `gradient` within ±clip_value; 0 is no clipping."""
    return np.clip(gradient, np.float32(-clip_value), np.float32(clip_value)) if clip_value else gradient


def sgd_step(states: States, gradient: np.ndarray, learning_rate: float) -> None:
    """One step of gradient descent in place."""
    (rows,) = states
    rows -= np.float32(learning_rate) * gradient


def adagrad_step(states: States, gradient: np.ndarray, options: AdagradOptions, learning_rate: float) -> None:
    """One Adagrad step in place."""
    rows, accumulator = states
    accumulator += gradient * gradient
    rows -= np.float32(learning_rate) * gradient / (np.sqrt(accumulator) + np.float32(options.epsilon))


def rowwise_adagrad_step(
    states: States, gradient: np.ndarray, options: RowwiseAdagradOptions, learning_rate: float
) -> None:
    """One row-wise Adagrad step in place; the accumulator is [U, 1]."""
    rows, accumulator = states
    accumulator += (sum_of_squares(gradient) / np.float32(gradient.shape[1]))[:, None]
    rate = np.float32(learning_rate) / (np.sqrt(accumulator) + np.float32(options.epsilon))
    rows -= rate * gradient


def sum_of_squares(gradient: np.ndarray) -> np.ndarray:
    """[U] float32: in sixteen lanes, then the lanes in order, whatever adds them: the same bits everywhere."""
    lanes = np.zeros((gradient.shape[0], 16), np.float32)
    for begin in range(0, gradient.shape[1], 16):
        part = gradient[:, begin : begin + 16]
        lanes[:, : part.shape[1]] += part * part
    total = np.zeros(gradient.shape[0], np.float32)
    for lane in range(16):
        total += lanes[:, lane]
    return total


def ftrl_step(states: States, gradient: np.ndarray, options: FtrlOptions, learning_rate: float) -> None:
    """One FTRL step in place; `l2` counts twice in the denominator, as in MindSpore's and TensorFlow's FTRL.

    The linear term has the root of the accumulator by the learning rate in it. Where that changes, a row remembers the
    one of its last step (0: none yet): else a fallen rate would make every row smaller by as much. Below
    `LEAST_FTRL_RATE`, where no weight would move by as much, the row stays as it is: 1 / rate has no float32 there.
    """
    rows, accumulator, linear = states[:3]
    if learning_rate < LEAST_FTRL_RATE:
        return
    rate = np.float32(learning_rate)
    new_accumulator = accumulator + gradient * gradient
    new_root = np.sqrt(new_accumulator)
    if options.is_scheduled:
        last_rate = np.where(states[3] > 0, states[3], rate)
        linear += gradient - (new_root / rate - np.sqrt(accumulator) / last_rate) * rows
        states[3][...] = rate
    else:
        linear += gradient - (new_root - np.sqrt(accumulator)) / rate * rows
    accumulator[...] = new_accumulator
    rows[...] = _ftrl_rows(linear, new_root, rate, options)


Floats = np.ndarray | np.float32
Sign = Callable[[np.ndarray], np.ndarray]


def _ftrl_rows(
    linear: np.ndarray, root: np.ndarray, rate: Floats, options: FtrlOptions, sign: Sign = np.sign
) -> np.ndarray:
    """The weights that FTRL makes of its linear terms and the roots of its accumulators; all float32."""
    l1, l2 = np.float32(options.l1), np.float32(options.l2)
    shrunk = (sign(linear) * l1 - linear) / (root / rate + np.float32(2) * l2)
    return np.where(np.abs(linear) > l1, shrunk, np.float32(0))


def ftrl_linear(
    rows: np.ndarray,
    accumulator: np.ndarray,
    linear: np.ndarray,
    learning_rate: Floats,
    options: FtrlOptions,
    sign: Sign = np.sign,
) -> np.ndarray:
    """The linear terms from which FTRL makes the weights `rows` at a learning rate: `linear` where it already does.

    The linear term of a weight of 0 lies within ±l1; what gradients have added up there stays. All float32. `sign` is
    that of a linear term, or what a step takes for it.
    """
    made = _ftrl_rows(linear, np.sqrt(accumulator), learning_rate, options, sign)
    l1, root = np.float32(options.l1), np.sqrt(accumulator, dtype=np.float64)
    fitted = sign(-rows) * options.l1 - rows * (root / learning_rate + 2 * options.l2)
    fitted = np.where(rows == 0, np.clip(linear, -l1, l1), fitted).astype(np.float32)
    return np.where(np.abs(made - rows) <= SAME_WEIGHT * np.abs(rows), linear, fitted)


def ftrl_arrays(arrays: dict[str, np.ndarray], options: FtrlOptions) -> dict[str, np.ndarray]:
    """All state arrays of rows for an FTRL with these options, from which the next step at any learning rate goes on
    from the weights `arrays["rows"]`; of what another FTRL remembered of them, `arrays` may have some or all.

    Where the learning rate changes, the linear terms are those of the row's last rate, else, or where that is far below
    it, of the options' one: no later rate is above it, so changing over to that loses no digits.
    """
    wanted = {array.name: np.full_like(arrays[ROWS], array.initial) for array in state_arrays(options)}
    states = wanted | {name: values for name, values in arrays.items() if name in wanted}
    rate = np.full_like(arrays[ROWS], options.learning_rate)
    if options.is_scheduled:
        kept = states[LAST_RATE] > rate / LARGEST_RISE
        rate = states[LAST_RATE] = np.where(kept, states[LAST_RATE], rate)
    with np.errstate(invalid="ignore"):  # who writes the arrays says which are not finite, or below 0
        states["linear"] = ftrl_linear(states[ROWS], states["accumulator"], states["linear"], rate, options)
    return states


def lazy_adam_step(
    states: States, gradient: np.ndarray, options: LazyAdamOptions, learning_rate: float, step: int
) -> None:
    """One Adam step in place; `step` is 1 for the first update of the run."""
    rate = learning_rate * options.correction(step)
    adam_step(states, gradient, options, rate, options.epsilon)


def adam_step(
    states: States, gradient: np.ndarray, options: LazyAdamOptions | AdamOptions, rate: float, epsilon: float
) -> None:
    """Adam's formula in place; `rate` has the bias corrections in it."""
    rows, first_moment, second_moment = states
    beta1, beta2 = np.float32(options.beta1), np.float32(options.beta2)
    first_moment[...] = beta1 * first_moment + (np.float32(1) - beta1) * gradient
    second_moment[...] = beta2 * second_moment + (np.float32(1) - beta2) * (gradient * gradient)
    rows -= np.float32(rate) * first_moment / (np.sqrt(second_moment) + np.float32(epsilon))
