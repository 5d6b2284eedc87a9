"""The sparse optimizers of the tables: the state of each, and one step in NumPy, which is its definition.

Every backend computes these steps in float32 and in this order: read state, update moments, new weight,
write. The functions change their arrays in place. All arrays are [U, width], one row an id. `adam`, which also moves
the rows outside a batch, is `StepHistory`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.config.optimizer_settings import (
    AdagradOptions,
    AdamOptions,
    DeepOptimizer,
    FtrlOptions,
    LazyAdamOptions,
    PartialRowwiseAdamOptions,
    RowwiseAdagradOptions,
    SgdOptions,
    WideOptimizer,
)

TableOptimizer = WideOptimizer | DeepOptimizer
States = tuple[np.ndarray, ...]  # in the order of `state_arrays`
ROWS, LAST_STEP, LAST_RATE = "rows", "last_step", "last_rate"
MEAN, MEAN_STEP = "mean", "mean_step"  # of the running mean of the rows
SAME_WEIGHT = np.float32(1e-5)  # relative: weights that differ by less come from the same linear term
LARGEST_RISE = np.float32(100)  # of a learning rate: changing to the higher one loses two digits of the weight
LEAST_FTRL_RATE = np.float32(2.0**-40)
MOST_EXACT_STEPS = 256
FIRST_SEGMENT = 32  # steps; kFirstSegment of csrc/kernels/missed_steps.h
CACHED_VALUES = 2**15  # of rows that take hundreds of steps at once: their arrays stay in the cache
SMALLEST_MOMENT = np.float32(2.0**-100)  # of a missed step; less is 0: numbers below 2⁻¹²⁶ are slow on some cores


@dataclass(frozen=True)
class StateArray:
    """A state array of a table: as wide as the rows, or with one value a row."""

    name: str
    initial: float = 0.0  # of an untouched row; the rows themselves start with the table's initial values
    one_a_row: bool = False
    dtype: type[np.generic] = np.float32


def state_arrays(options: TableOptimizer) -> tuple[StateArray, ...]:
    """Return the arrays that a table with this optimizer keeps of its touched rows, the rows themselves first."""
    rows, moments = StateArray(ROWS), (StateArray("first_moment"), StateArray("second_moment"))
    match options:
        case LazyAdamOptions():
            return rows, *moments
        case AdamOptions():
            return rows, *moments, StateArray(LAST_STEP, one_a_row=True, dtype=np.int32)
        case PartialRowwiseAdamOptions():
            return rows, StateArray("first_moment"), StateArray("second_moment", one_a_row=True)
        case FtrlOptions():
            states = (rows, StateArray("accumulator", options.initial_accumulator), StateArray("linear"))
            return (*states, StateArray(LAST_RATE)) if options.is_scheduled else states
        case AdagradOptions():
            return rows, StateArray("accumulator", options.initial_accumulator)
        case RowwiseAdagradOptions():
            return rows, StateArray("accumulator", options.initial_accumulator, one_a_row=True)
        case SgdOptions():
            return (rows,)


def with_mean(arrays: tuple[StateArray, ...]) -> tuple[StateArray, ...]:
    """Return the arrays of a table that also keeps a running mean of its rows. Arrays of one value a row come last.

    The mean is that before the row's last update: its step is `mean_step`, with `adam` the one before `last_step`.
    """
    wide = tuple(array for array in arrays if not array.one_a_row)
    narrow = tuple(array for array in arrays if array.one_a_row)
    steps = () if LAST_STEP in [array.name for array in narrow] else (StateArray(MEAN_STEP, 0.0, True, np.int32),)
    return (*wide, StateArray(MEAN), *narrow, *steps)


class RunningMean:
    """The running mean of rows after each step t: a₀ = 0, aₜ = d · aₜ₋₁ + (1 - d) · rowₜ, divided by its weights' sum
    1 - dᵗ.

    So the initial rows have no weight, as in Adam's moments (Kingma & Ba, 2015). That mean is

        mean += (1 - d) / (1 - dᵗ) · (row - mean)

    at step t. While a row stands still, the steps s + 1 … t are one: mean = row + f · (mean - row) with

        f = dᵗ⁻ˢ · (1 - dˢ) / (1 - dᵗ).

    `powers` float64 has dⁿ at index n, `rates` float32 the factor of step t at index t. Both have indices 0 … `step`.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.step = -1
        self.reach(0)

    def reach(self, step: int) -> None:
        """Extend `powers` and `rates` to the indices 0 … step at least."""
        if step <= self.step:
            return
        self.step = 2 * step + 1000
        # A product: the same bits on every machine.
        self.powers = np.cumprod(np.r_[1.0, np.full(self.step, self.decay)])
        with np.errstate(divide="ignore"):
            self.rates = ((1 - self.decay) / (1 - self.powers)).astype(np.float32)
        self.rates[0] = 0

    def of_still(self, rows: np.ndarray, mean: np.ndarray, mean_step: np.ndarray, step: int) -> np.ndarray:
        """Return the mean after `step` of `rows` [U, D] that stood still since `mean_step` [U, 1], float32."""
        self.reach(step)
        weight_before = self.powers[step - mean_step] * (1 - self.powers[mean_step])
        factor = np.where(mean_step > 0, weight_before / max(1 - self.powers[step], np.finfo(np.float64).tiny), 0)
        return rows + factor.astype(np.float32) * (mean - rows)

    def include(self, rows: np.ndarray, mean: np.ndarray, steps: np.ndarray) -> None:
        """Take the rows [U, D] after `steps` [U, 1] into their means [U, D], in place."""
        mean += self.rates[steps] * (rows - mean)


def table_step(states: States, gradient: np.ndarray, options: TableOptimizer, learning_rate: float, step: int) -> None:
    """Take one step, number `step` from 1 on, of any optimizer but `adam`, in place."""
    match options:
        case LazyAdamOptions():
            lazy_adam_step(states, gradient, options, learning_rate, step)
        case PartialRowwiseAdamOptions():
            partial_rowwise_adam_step(states, gradient, options, learning_rate, step)
        case FtrlOptions():
            ftrl_step(states, gradient, options, learning_rate)
        case AdagradOptions():
            adagrad_step(states, gradient, options, learning_rate)
        case RowwiseAdagradOptions():
            rowwise_adagrad_step(states, gradient, options, learning_rate)
        case SgdOptions():
            sgd_step(states, gradient, learning_rate)


def clipped(gradient: np.ndarray, clip_value: float) -> np.ndarray:
    """Return `gradient` with each value clipped to ±clip_value, unless that is 0."""
    return np.clip(gradient, np.float32(-clip_value), np.float32(clip_value)) if clip_value else gradient


def sgd_step(states: States, gradient: np.ndarray, learning_rate: float) -> None:
    """Take one step of gradient descent in place."""
    (rows,) = states
    rows -= np.float32(learning_rate) * gradient


def adagrad_step(states: States, gradient: np.ndarray, options: AdagradOptions, learning_rate: float) -> None:
    """Take one Adagrad step in place."""
    rows, accumulator = states
    accumulator += gradient * gradient
    rows -= np.float32(learning_rate) * gradient / (np.sqrt(accumulator) + np.float32(options.epsilon))


def rowwise_adagrad_step(
    states: States, gradient: np.ndarray, options: RowwiseAdagradOptions, learning_rate: float
) -> None:
    """Take one row-wise Adagrad step in place, with an accumulator [U, 1]."""
    rows, accumulator = states
    accumulator += mean_square(gradient)
    rate = np.float32(learning_rate) / (np.sqrt(accumulator) + np.float32(options.epsilon))
    rows -= rate * gradient


def mean_square(gradient: np.ndarray) -> np.ndarray:
    """Return the mean of gradient² of each row, [U, 1]: in 16 lanes, then the lanes in order, for the same bits."""
    lanes = np.zeros((gradient.shape[0], 16), np.float32)
    for begin in range(0, gradient.shape[1], 16):
        part = gradient[:, begin : begin + 16]
        lanes[:, : part.shape[1]] += part * part
    total = np.zeros(gradient.shape[0], np.float32)
    for lane in range(16):
        total += lanes[:, lane]
    return (total / np.float32(gradient.shape[1]))[:, None]


def ftrl_step(states: States, gradient: np.ndarray, options: FtrlOptions, learning_rate: float) -> None:
    """Take one FTRL step in place. `l2` counts twice in the denominator, as in MindSpore's and TensorFlow's FTRL.

    The linear term contains √accumulator / learning rate. With a schedule each row therefore keeps the rate of its last
    step (0: none yet), or a fallen rate would shrink every row by as much. Below `LEAST_FTRL_RATE` the row stays as it
    is: no weight would move noticeably, and 1 / rate has no float32 there.
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


def _ftrl_rows(linear: np.ndarray, root: np.ndarray, rate: Floats, options: FtrlOptions) -> np.ndarray:
    """Return FTRL's weights from its linear terms and the roots of its accumulators, all float32."""
    l1, l2 = np.float32(options.l1), np.float32(options.l2)
    shrunk = (np.sign(linear) * l1 - linear) / (root / rate + np.float32(2) * l2)
    return np.where(np.abs(linear) > l1, shrunk, np.float32(0))


def ftrl_linear(
    rows: np.ndarray, accumulator: np.ndarray, linear: np.ndarray, learning_rate: Floats, options: FtrlOptions
) -> np.ndarray:
    """Return linear terms from which FTRL computes the weights `rows` at a learning rate.

    A value of `linear` that fits already stays. For a weight of 0 the gradients added up so far stay, clipped to ±l1.
    All arrays are float32.
    """
    present_rows = _ftrl_rows(linear, np.sqrt(accumulator), learning_rate, options)
    l1, root = np.float32(options.l1), np.sqrt(accumulator, dtype=np.float64)
    fitted = -np.sign(rows) * options.l1 - rows * (root / learning_rate + 2 * options.l2)
    fitted = np.where(rows == 0, np.clip(linear, -l1, l1), fitted).astype(np.float32)
    return np.where(np.abs(present_rows - rows) <= SAME_WEIGHT * np.abs(rows), linear, fitted)


def ftrl_arrays(arrays: dict[str, np.ndarray], options: FtrlOptions) -> dict[str, np.ndarray]:
    """Return all state arrays of rows for an FTRL with these options, such that the next step starts from the weights
    `arrays["rows"]` at any learning rate. `arrays` may have some or all of another FTRL's state of these rows.

    With a schedule the linear terms are those of the row's last rate. Without one, or if that rate is far below the
    options' rate, they are those of the options' rate: no later rate is above it, so changing to that loses no digits.
    """
    initial = {array.name: np.full_like(arrays[ROWS], array.initial) for array in state_arrays(options)}
    states = initial | {name: values for name, values in arrays.items() if name in initial}
    rate = np.full_like(arrays[ROWS], options.learning_rate)
    if options.is_scheduled:
        is_near = states[LAST_RATE] > rate / LARGEST_RISE
        rate = states[LAST_RATE] = np.where(is_near, states[LAST_RATE], rate)
    with np.errstate(invalid="ignore"):  # whoever writes the arrays reports values that are not finite, or below 0
        states["linear"] = ftrl_linear(states[ROWS], states["accumulator"], states["linear"], rate, options)
    return states


def lazy_adam_step(
    states: States, gradient: np.ndarray, options: LazyAdamOptions, learning_rate: float, step: int
) -> None:
    """Take one Adam step in place, number `step` of the run from 1 on."""
    rate = learning_rate * options.correction(step)
    adam_step(states, gradient, options, rate, options.epsilon)


def adam_step(
    states: States, gradient: np.ndarray, options: LazyAdamOptions | AdamOptions, rate: float, epsilon: float
) -> None:
    """Apply Adam's formula in place. `rate` includes the bias corrections."""
    rows, first_moment, second_moment = states
    beta1, beta2 = np.float32(options.beta1), np.float32(options.beta2)
    first_moment[...] = beta1 * first_moment + (np.float32(1) - beta1) * gradient
    second_moment[...] = beta2 * second_moment + (np.float32(1) - beta2) * (gradient * gradient)
    rows -= np.float32(rate) * first_moment / (np.sqrt(second_moment) + np.float32(epsilon))


def partial_rowwise_adam_step(
    states: States, gradient: np.ndarray, options: PartialRowwiseAdamOptions, learning_rate: float, step: int
) -> None:
    """Take one step in place, the second moment [U, 1] (FBGEMM, `partial_rowwise_adam`)."""
    rows, first_moment, second_moment = states
    beta1, beta2 = np.float32(options.beta1), np.float32(options.beta2)
    second_moment[...] = beta2 * second_moment + (np.float32(1) - beta2) * mean_square(gradient)
    first_moment[...] = beta1 * first_moment + (np.float32(1) - beta1) * gradient
    root = np.sqrt(second_moment) + np.float32(options.uncorrected_epsilon(step))
    rows -= np.float32(learning_rate * options.correction(step)) * first_moment / root


class StepHistory:
    """`adam` on a table: Adam with L2 on every row at every step, done lazily.

    A row outside the batch has the gradient l2_coef · row (of l2_coef · ½ Σ‖row‖² over the whole table, as in BARS's
    recipes and in FuxiCTR's λ/2 · ‖E‖²). No other row takes part in that step, so a row keeps the number of its
    last step and takes the missed ones when it is looked at: one by one, the same float32 operations with the learning
    rates of those steps, up to `MOST_EXACT_STEPS` = 256 missed steps. By then m follows the pull of L2 alone, and
    further steps are taken in segments of 32, 48, 72, … steps. One of n steps with rate sum S is

        u = β₂^(n/2) · v + (1 - β₂^(n/2)) · (l2_coef · row)²,   a = l2_coef · S / (√u + ε),
        row /= 1 + a + a² / 2,   m = l2_coef · row,   v = β₂ⁿ · v + (1 - β₂ⁿ) · m²,

    a step of second order of the row's slow motion, row' = -rate · l2_coef · row / (√v + ε), with v as in the middle of
    the segment. So the result lies between 0 and the row as the 256 steps left it. A test holds it within 3 % of the
    row's initial size of what exact steps make of it. Without L2 the row stands still by then (β₁²⁵⁶).

    The arrays have S + 1 or more values for the steps 0 … S so far, that of step s at index s.
    """

    def __init__(self, options: AdamOptions, l2_coef: float) -> None:
        self.options = options
        self.l2_coef = l2_coef
        self.step = 0
        self.rates = np.zeros(1, np.float32)  # with both bias corrections
        self.epsilons = np.zeros(1, np.float32)  # beside a second moment that is not corrected
        self.rate_sums = np.zeros(1, np.float64)  # of the rates up to and with this one
        self.beta2_powers = np.ones(1, np.float32)  # beta2 ** n at index n

    def append(self, learning_rate: float) -> None:
        """Add the next step."""
        step = self.step + 1
        if step == self.rates.size:
            for name in ("rates", "epsilons", "rate_sums", "beta2_powers"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self.rates[step] = learning_rate * self.options.correction(step)
        self.epsilons[step] = self.options.uncorrected_epsilon(step)
        self.rate_sums[step] = self.rate_sums[step - 1] + np.float64(self.rates[step])
        self.beta2_powers[step] = self.options.beta2**step
        self.step = step

    @classmethod
    def of_steps(
        cls, options: AdamOptions, l2_coef: float, learning_rate: Callable[[int], float], num_steps: int
    ) -> StepHistory:
        """Return the history of steps 1 … num_steps."""
        history = cls(options, l2_coef)
        for step in range(1, num_steps + 1):
            history.append(learning_rate(step))
        return history

    def catch_up(self, states: States, means: RunningMean | None = None) -> None:
        """Take the missed steps up to the newest one, in place: rows and moments [U, D], last steps [U, 1] int32.

        With `means`, the rows' mean [U, D] stands before the last steps, and is taken up to the newest one as well. Of
        more than `MOST_EXACT_STEPS` missed steps, the further ones count as if the row stood at their end.
        """
        count = max(1, CACHED_VALUES // states[0].shape[1])
        for start in range(0, len(states[0]), count):
            self._catch_up(tuple(array[start : start + count] for array in states), means)

    def _catch_up(self, states: States, means: RunningMean | None) -> None:
        *arrays, last_step = states
        missed = self.step - last_step[:, 0]
        if means is not None:
            means.reach(self.step)
            means.include(arrays[0], arrays[3], last_step)
        for count in range(1, min(int(missed.max(initial=0)), MOST_EXACT_STEPS) + 1):
            behind = np.flatnonzero(missed >= count)
            steps = last_step[behind] + count
            rows, first, second, *mean = of_rows = [array[behind] for array in arrays]
            self._missed_step(rows, first, second, self.rates[steps], self.epsilons[steps])
            if means is not None:
                means.include(rows, mean[0], steps)
            for array, values in zip(arrays, of_rows, strict=True):
                array[behind] = values
        far = np.flatnonzero(missed > MOST_EXACT_STEPS)
        if far.size:
            rows, first, second, *mean = of_rows = [array[far] for array in arrays]
            exact = last_step[far] + MOST_EXACT_STEPS
            self._rest(rows, first, second, exact)
            if means is not None:
                mean[0][...] = means.of_still(rows, mean[0], exact, self.step)
            for array, values in zip(arrays, of_rows, strict=True):
                array[far] = values
        last_step[...] = self.step

    def _missed_step(
        self, rows: np.ndarray, first: np.ndarray, second: np.ndarray, rate: np.ndarray, epsilon: np.ndarray
    ) -> None:
        gradient = np.float32(self.l2_coef) * rows
        beta1, beta2 = np.float32(self.options.beta1), np.float32(self.options.beta2)
        first[...] = beta1 * first + (np.float32(1) - beta1) * gradient
        first[np.abs(first) < SMALLEST_MOMENT] = 0
        second[...] = beta2 * second + (np.float32(1) - beta2) * (gradient * gradient)
        rows -= rate * first / (np.sqrt(second) + epsilon)

    def _rest(self, rows: np.ndarray, first: np.ndarray, second: np.ndarray, from_step: np.ndarray) -> None:
        """Take the steps after `from_step` [U, 1] up to the newest one in segments, in place."""
        length, begin, l2_coef = FIRST_SEGMENT, from_step, np.float32(self.l2_coef)
        while (behind := np.flatnonzero(begin[:, 0] < self.step)).size:
            start = begin[behind]
            num_steps = np.minimum(length, self.step - start)
            row, square = rows[behind], second[behind]
            half, whole = self.beta2_powers[num_steps // 2], self.beta2_powers[num_steps]
            pull = l2_coef * row
            middle = half * square + (np.float32(1) - half) * (pull * pull)
            rate_sum = (self.rate_sums[start + num_steps] - self.rate_sums[start]).astype(np.float32)
            share = l2_coef * rate_sum / (np.sqrt(middle) + self.epsilons[start + num_steps])
            row = row / (np.float32(1) + share + np.float32(0.5) * share * share)
            pull = l2_coef * row
            rows[behind], first[behind] = row, pull
            second[behind] = whole * square + (np.float32(1) - whole) * (pull * pull)
            begin, length = begin + length, length + length // 2

    def update(self, states: States, gradient: np.ndarray) -> None:
        """Take the newest step with the loss's `gradient` [U, D], in place, on rows as after the step before it."""
        rows, first_moment, second_moment, *_, last_step = states
        total = gradient + np.float32(self.l2_coef) * rows
        rate, epsilon = float(self.rates[self.step]), float(self.epsilons[self.step])
        adam_step((rows, first_moment, second_moment), total, self.options, rate, epsilon)
        last_step[...] = self.step


def history_of_steps(
    options: TableOptimizer,
    l2_coef: float,
    learning_rate: Callable[[int], float],
    num_steps: int,
    kind: type[StepHistory] = StepHistory,
) -> StepHistory | None:
    """Return the history of steps 1 … num_steps for `adam`, None for other optimizers, whose rows miss no step."""
    if options.name != "adam":
        return None
    return kind.of_steps(options, l2_coef, learning_rate, num_steps)
