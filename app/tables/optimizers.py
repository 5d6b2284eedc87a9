"""Define the sparse optimizers of the tables: the state that each keeps per row, and one step of each in NumPy.

The functions of this module define what a step must compute, for every implementation of the tables (backend). Each
backend performs the same float32 operations in the same order: read the state, update the moments, compute the new
weight, write. The functions change their arrays in place. All arrays are [U, width], one row per id. The optimizer
`adam`, which also moves the rows outside the batch, is implemented by the class `StepHistory`.
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
# Weights and optimizer state of some rows of a table: one array each, in the order that `state_arrays` returns.
States = tuple[np.ndarray, ...]
ROWS, LAST_STEP, LAST_RATE = "rows", "last_step", "last_rate"
MEAN, MEAN_STEP = "mean", "mean_step"  # Names of the state arrays of the running mean of rows.
# Relative difference up to which `ftrl_linear` treats two weights as equal, and keeps the linear term of FTRL.
SAME_WEIGHT = np.float32(1e-5)
# `ftrl_arrays` computes a linear term for the learning rate of the weight's last step only if the learning rate of the
# options is less than this factor times as large. A linear term is proportional to 1 / rate. If the rate later rises by
# a factor of 100, the term becomes 100 times smaller but keeps its rounding error, which costs the weight two digits.
LARGEST_RISE = np.float32(100)
LEAST_FTRL_RATE = np.float32(2.0**-40)
MOST_EXACT_STEPS = 256
# A row misses the steps of `adam` whose batches do not have the row, and takes these steps later (`StepHistory`): the
# first MOST_EXACT_STEPS one by one, then segments of several steps in one computation. FIRST_SEGMENT is the number of
# steps in the first segment. It equals kFirstSegment in csrc/kernels/missed_steps.h.
FIRST_SEGMENT = 32
# The steps of `adam` that rows have missed are computed for blocks of this many values, so that the arrays of a block
# fit into the processor's cache.
CACHED_VALUES = 2**15
# While a row takes steps of `adam` that it has missed, first moments with an absolute value below this are set to 0,
# because arithmetic on numbers below 2⁻¹²⁶ is slow on some processors.
SMALLEST_MOMENT = np.float32(2.0**-100)


@dataclass(frozen=True)
class StateArray:
    """Name, initial value and dtype of one state array of a table.

    The array is as wide as the rows, or has one value per row if `one_a_row` is set.

    >>> StateArray("accumulator", initial=0.1)
    StateArray(name='accumulator', initial=0.1, one_a_row=False, dtype=<class 'numpy.float32'>)
    """

    name: str
    # Value of the array for a row that was never updated. It does not apply to the array `rows`, which starts with the
    # values of `initial.py`.
    initial: float = 0.0
    one_a_row: bool = False
    dtype: type[np.generic] = np.float32


def state_arrays(options: TableOptimizer) -> tuple[StateArray, ...]:
    """Return the arrays that a table with this optimizer keeps for each updated or loaded row. The first has the row's
    weights.
    """
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
    """Return the state arrays `arrays` of a table together with the arrays that a running mean of the table's rows
    needs.

    The stored mean does not yet include the row's last update. It is the mean after the step in the array `mean_step`.
    With `adam`, which has no `mean_step`, it is the mean after the step before the row's `last_step`. Arrays with one
    value per row come last.
    """
    wide = tuple(array for array in arrays if not array.one_a_row)
    narrow = tuple(array for array in arrays if array.one_a_row)
    steps = () if LAST_STEP in [array.name for array in narrow] else (StateArray(MEAN_STEP, 0.0, True, np.int32),)
    return (*wide, StateArray(MEAN), *narrow, *steps)


class RunningMean:
    """The running mean of rows with decay d, corrected for its start at 0, as Adam's moments are (Kingma & Ba, 2015).

    After step t the mean is aₜ / (1 - dᵗ), with a₀ = 0 and aₜ = d · aₜ₋₁ + (1 - d) · rowₜ. The values that rows have
    before step 1 therefore have no weight. Step t updates the mean as

        mean += (1 - d) / (1 - dᵗ) · (row - mean)

    While a row does not change, the steps s + 1 … t are one operation:

        mean = row + f · (mean - row),   f = dᵗ⁻ˢ · (1 - dˢ) / (1 - dᵗ)

    `powers` (float64) has dⁿ at index n. `rates` (float32) has the factor (1 - d) / (1 - dᵗ) at index t. Both arrays
    have `step` + 1 entries, where the attribute `step` is the last step that they cover. `reach` extends them.

    >>> means = RunningMean(decay=0.5)
    >>> mean = np.zeros((1, 1), np.float32)
    >>> means.include(np.float32([[3.0]]), mean, np.array([[1]]))  # after step 1 the mean is the row
    >>> means.include(np.float32([[6.0]]), mean, np.array([[2]]))  # weights 1/3 and 2/3
    >>> mean
    array([[5.]], dtype=float32)
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.step = -1
        self.reach(0)

    def reach(self, step: int) -> None:
        """Extend the arrays `powers` and `rates`, indexed by step, so that they cover the steps 0 … `step`."""
        if step <= self.step:
            return
        self.step = 2 * step + 1000
        # A cumulative product has the same bits on every machine, which `np.power` does not promise.
        self.powers = np.cumprod(np.r_[1.0, np.full(self.step, self.decay)])
        with np.errstate(divide="ignore"):
            self.rates = ((1 - self.decay) / (1 - self.powers)).astype(np.float32)
        self.rates[0] = 0

    def of_still(self, rows: np.ndarray, mean: np.ndarray, mean_step: np.ndarray, step: int) -> np.ndarray:
        """Return the running mean, after step number `step`, of rows that have not changed since `mean_step`, float32
        [U, D].

        `rows` and `mean` are [U, D], `mean_step` is [U, 1]. Nothing is modified.
        """
        self.reach(step)
        weight_before = self.powers[step - mean_step] * (1 - self.powers[mean_step])
        factor = np.where(mean_step > 0, weight_before / max(1 - self.powers[step], np.finfo(np.float64).tiny), 0)
        return rows + factor.astype(np.float32) * (mean - rows)

    def include(self, rows: np.ndarray, mean: np.ndarray, steps: np.ndarray) -> None:
        """Move the running means `mean` [U, D] toward `rows` [U, D], in place.

        `steps` [U, 1] are the numbers of the steps after which the rows have these values.
        """
        mean += self.rates[steps] * (rows - mean)


def table_step(states: States, gradient: np.ndarray, options: TableOptimizer, learning_rate: float, step: int) -> None:
    """Take step number `step` (from 1 on) of any optimizer but `adam`. Change `states` in place.

    `gradient` [U, width] already includes the gradient of the L2 penalty.
    """
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


def sgd_step(states: States, gradient: np.ndarray, learning_rate: float) -> None:
    """Take one step of stochastic gradient descent, in place.

    >>> rows = np.float32([[1.0, 2.0]])
    >>> sgd_step((rows,), np.float32([[10.0, 0.0]]), learning_rate=0.05)
    >>> rows
    array([[0.5, 2. ]], dtype=float32)
    """
    (rows,) = states
    rows -= np.float32(learning_rate) * gradient


def adagrad_step(states: States, gradient: np.ndarray, options: AdagradOptions, learning_rate: float) -> None:
    """Take one Adagrad step (Duchi, Hazan & Singer, 2011), in place.

    `states` are rows and accumulator, both [U, D].

    >>> rows, accumulator = np.float32([[1.0]]), np.float32([[0.0]])
    >>> adagrad_step((rows, accumulator), np.float32([[4.0]]), AdagradOptions(), learning_rate=0.5)
    >>> rows, accumulator  # 1 - 0.5 · 4 / √16
    (array([[0.5]], dtype=float32), array([[16.]], dtype=float32))
    """
    rows, accumulator = states
    accumulator += gradient * gradient
    rows -= np.float32(learning_rate) * gradient / (np.sqrt(accumulator) + np.float32(options.epsilon))


def rowwise_adagrad_step(
    states: States, gradient: np.ndarray, options: RowwiseAdagradOptions, learning_rate: float
) -> None:
    """Take one row-wise Adagrad step, in place.

    `states` are rows [U, D] and one accumulator per row [U, 1].

    >>> rows, accumulator = np.float32([[1.0, 1.0]]), np.float32([[0.0]])
    >>> rowwise_adagrad_step((rows, accumulator), np.float32([[4.0, 2.0]]), RowwiseAdagradOptions(), learning_rate=0.5)
    >>> accumulator, rows.round(3)  # the mean square of the gradient is (16 + 4) / 2
    (array([[10.]], dtype=float32), array([[0.368, 0.684]], dtype=float32))
    """
    rows, accumulator = states
    accumulator += mean_square(gradient)
    rate = np.float32(learning_rate) / (np.sqrt(accumulator) + np.float32(options.epsilon))
    rows -= rate * gradient


def mean_square(gradient: np.ndarray) -> np.ndarray:
    """Return the mean of gradient² over each row, [U, 1].

    Column c is added to partial sum number c mod 16, and then the 16 partial sums are added in order, so that the
    vectorized kernels get the same bits.
    """
    lanes = np.zeros((gradient.shape[0], 16), np.float32)
    for begin in range(0, gradient.shape[1], 16):
        part = gradient[:, begin : begin + 16]
        lanes[:, : part.shape[1]] += part * part
    total = np.zeros(gradient.shape[0], np.float32)
    for lane in range(16):
        total += lanes[:, lane]
    return (total / np.float32(gradient.shape[1]))[:, None]


def ftrl_step(states: States, gradient: np.ndarray, options: FtrlOptions, learning_rate: float) -> None:
    """Take one FTRL step, in place (McMahan et al., "Ad Click Prediction", KDD 2013, Algorithm 1).

    `states` are rows, accumulator and linear term and, with a schedule, the last rate, all [U, D]. `l2` counts twice
    in the denominator, as in the FTRL of MindSpore and TensorFlow.

    The linear term contains √accumulator / learning rate. If the rate has a schedule, each value keeps the rate of
    its last step (0: none yet), and the term is rescaled to the new rate. Otherwise a falling rate would shrink
    every weight by the same factor. With a rate below `LEAST_FTRL_RATE` nothing changes: no weight would move
    noticeably, and 1 / rate does not fit into float32.

    >>> rows, accumulator, linear = np.float32([[0.0]]), np.float32([[1.0]]), np.float32([[0.0]])
    >>> ftrl_step((rows, accumulator, linear), np.float32([[-2.0]]), FtrlOptions(l1=1.0, l2=0.0), learning_rate=0.5)
    >>> linear, rows.round(3)  # (2 - l1) / (√5 / 0.5)
    (array([[-2.]], dtype=float32), array([[0.224]], dtype=float32))
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
    """Return FTRL's weights, computed from linear terms and the square roots of accumulators, all float32."""
    l1, l2 = np.float32(options.l1), np.float32(options.l2)
    shrunk = (np.sign(linear) * l1 - linear) / (root / rate + np.float32(2) * l2)
    return np.where(np.abs(linear) > l1, shrunk, np.float32(0))


def ftrl_linear(
    rows: np.ndarray, accumulator: np.ndarray, linear: np.ndarray, learning_rate: Floats, options: FtrlOptions
) -> np.ndarray:
    """Return float32 linear terms for which FTRL computes the weights `rows` at the given learning rate.

    A value of `linear` that already yields its weight is kept. Many linear terms yield the weight 0. Of these, the
    function chooses the term nearest to the value of `linear`. All arrays have the same shape and are float32.
    """
    present_rows = _ftrl_rows(linear, np.sqrt(accumulator), learning_rate, options)
    l1, root = np.float32(options.l1), np.sqrt(accumulator, dtype=np.float64)
    fitted = -np.sign(rows) * options.l1 - rows * (root / learning_rate + 2 * options.l2)
    fitted = np.where(rows == 0, np.clip(linear, -l1, l1), fitted).astype(np.float32)
    return np.where(np.abs(present_rows - rows) <= SAME_WEIGHT * np.abs(rows), linear, fitted)


def ftrl_arrays(arrays: dict[str, np.ndarray], options: FtrlOptions) -> dict[str, np.ndarray]:
    """Return a complete FTRL state for the weights `arrays["rows"]`, so that the next step starts from these weights.

    `arrays` may also contain other state arrays of a table that FTRL trained with other options. Missing arrays get the
    initial values of `options`.

    The returned linear terms are computed for one learning rate per value. With a schedule, it is the rate of the
    value's last step (`last_rate`), unless that is more than `LARGEST_RISE` times smaller than `options.learning_rate`.
    Otherwise it is `options.learning_rate`. A schedule never exceeds `options.learning_rate`, so the linear terms lose
    no digits when the rate changes later.
    """
    initial = {array.name: np.full_like(arrays[ROWS], array.initial) for array in state_arrays(options)}
    states = initial | {name: values for name, values in arrays.items() if name in initial}
    rate = np.full_like(arrays[ROWS], options.learning_rate)
    if options.is_scheduled:
        is_near = states[LAST_RATE] > rate / LARGEST_RISE
        rate = states[LAST_RATE] = np.where(is_near, states[LAST_RATE], rate)
    # `arrays` may hold values that are negative or not finite, for which NumPy would warn. The caller checks these
    # values when it writes the arrays.
    with np.errstate(invalid="ignore"):
        states["linear"] = ftrl_linear(states[ROWS], states["accumulator"], states["linear"], rate, options)
    return states


def lazy_adam_step(
    states: States, gradient: np.ndarray, options: LazyAdamOptions, learning_rate: float, step: int
) -> None:
    """Take Adam step number `step` (from 1 on) of the run, only for the rows of the batch, in place.

    `states` are rows, first moment and second moment, each [U, D].

    >>> states = tuple(np.zeros((1, 1), np.float32) for _ in range(3))
    >>> lazy_adam_step(states, np.float32([[4.0]]), LazyAdamOptions(), learning_rate=0.5, step=1)
    >>> states[0].round(3)  # the first step of Adam has the size of the learning rate
    array([[-0.5]], dtype=float32)
    """
    rate = learning_rate * options.correction(step)
    adam_step(states, gradient, options, rate, options.epsilon)


def adam_step(
    states: States, gradient: np.ndarray, options: LazyAdamOptions | AdamOptions, rate: float, epsilon: float
) -> None:
    """Update the moments and the rows by Adam's formula, in place, without bias correction.

    `states` are rows, first moment and second moment, each [U, D]. The caller has already multiplied the bias
    correction into `rate`.
    """
    rows, first_moment, second_moment = states
    beta1, beta2 = np.float32(options.beta1), np.float32(options.beta2)
    first_moment[...] = beta1 * first_moment + (np.float32(1) - beta1) * gradient
    second_moment[...] = beta2 * second_moment + (np.float32(1) - beta2) * (gradient * gradient)
    rows -= np.float32(rate) * first_moment / (np.sqrt(second_moment) + np.float32(epsilon))


def partial_rowwise_adam_step(
    states: States, gradient: np.ndarray, options: PartialRowwiseAdamOptions, learning_rate: float, step: int
) -> None:
    """Take one Adam step with one second moment per row, in place (`partial_rowwise_adam` of FBGEMM).

    `states` are rows [U, D], first moment [U, D] and second moment [U, 1].

    >>> rows, first, second = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32), np.zeros((1, 1), np.float32)
    >>> options, gradient = PartialRowwiseAdamOptions(), np.float32([[3.0, 4.0]])
    >>> partial_rowwise_adam_step((rows, first, second), gradient, options, learning_rate=0.5, step=1)
    >>> rows.round(3)  # 0.5 · gradient / √12.5, the root mean square of the gradient
    array([[-0.424, -0.566]], dtype=float32)
    """
    rows, first_moment, second_moment = states
    beta1, beta2 = np.float32(options.beta1), np.float32(options.beta2)
    second_moment[...] = beta2 * second_moment + (np.float32(1) - beta2) * mean_square(gradient)
    first_moment[...] = beta1 * first_moment + (np.float32(1) - beta1) * gradient
    root = np.sqrt(second_moment) + np.float32(options.uncorrected_epsilon(step))
    rows -= np.float32(learning_rate * options.correction(step)) * first_moment / root


class StepHistory:
    """The learning rates of all steps so far of a table with `adam`. With them, a row takes the steps that it missed
    because their batches did not have the row.

    `adam` is Adam with an L2 penalty on every row at every step, computed lazily. A row outside the batch has the
    gradient l2_coef · row, which comes from the loss term l2_coef · ½ Σ‖row‖² over the whole table (as in the recipes
    of the benchmark BARS, and λ/2 · ‖E‖² in the library FuxiCTR). This gradient needs no other row. So a row stores the
    number of its last step, and takes the missed steps when it is read next.

    Up to `MOST_EXACT_STEPS` = 256 missed steps are taken one by one, with the float32 operations and the learning
    rates of those steps. After that the first moment m follows L2 alone, and further steps are combined into
    segments of 32, 48, 72, … steps. With v the second moment and S the sum of the rates, a segment of n steps is

        u = β₂^(n/2) · v + (1 - β₂^(n/2)) · (l2_coef · row)²,   a = l2_coef · S / (√u + ε),
        row /= 1 + a + a² / 2,   m = l2_coef · row,   v = β₂ⁿ · v + (1 - β₂ⁿ) · m².

    This is a second-order step of the differential equation row' = -rate · l2_coef · row / (√v + ε), with v taken in
    the middle of the segment. The result lies between 0 and the row after the 256 exact steps. A test bounds the
    distance from exact steps to 3 % of the row's initial size. Without L2 the row does not move any more by then
    (β₁²⁵⁶ is negligible).

    The arrays `rates`, `epsilons`, `rate_sums` and `beta2_powers` have one value for each of the steps 0 … `step`, at
    the index of the step. They may be longer; later entries are unused.

    >>> options = AdamOptions()
    >>> history = StepHistory.of_steps(options, l2_coef=0.0, learning_rate=lambda step: 0.5, num_steps=1)
    >>> rows, first, second = (np.zeros((1, 1), np.float32) for _ in range(3))
    >>> last_step = np.zeros((1, 1), np.int32)
    >>> history.update((rows, first, second, last_step), np.float32([[4.0]]))
    >>> rows.round(3), last_step
    (array([[-0.5]], dtype=float32), array([[1]], dtype=int32))
    >>> history.append(0.5)  # step 2, whose batch does not contain the row
    >>> history.catch_up((rows, first, second, last_step))
    >>> rows < -0.5, last_step  # momentum moves the row on
    (array([[ True]]), array([[2]], dtype=int32))
    """

    def __init__(self, options: AdamOptions, l2_coef: float) -> None:
        self.options = options
        self.l2_coef = l2_coef
        self.step = 0
        # Learning rate of each step, multiplied by Adam's bias corrections of the first and the second moment.
        self.rates = np.zeros(1, np.float32)
        # Epsilon of each step, scaled so that the second moment needs no bias correction.
        self.epsilons = np.zeros(1, np.float32)
        self.rate_sums = np.zeros(1, np.float64)  # Sum of `rates` from step 1 up to and including each step.
        self.beta2_powers = np.ones(1, np.float32)  # beta2 ** n at index n.

    def append(self, learning_rate: float) -> None:
        """Record that one more step was taken, after `self.step`, with this learning rate. Rows take the step later."""
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
        """Return the history of a table that has taken the steps 1 … num_steps. `learning_rate` is a function from a
        step to its rate.
        """
        history = cls(options, l2_coef)
        for step in range(1, num_steps + 1):
            history.append(learning_rate(step))
        return history

    def catch_up(self, states: States, means: RunningMean | None = None) -> None:
        """Let rows take all steps after their own last step, up to the newest step of the history, in place.

        `states` are rows [U, D], both moments [U, D] and last steps [U, 1] int32. With `means`, the running mean [U, D]
        comes before the last steps, and is also brought up to the newest step. The missed steps beyond
        `MOST_EXACT_STEPS` enter the mean as if the row had had its final value in all these steps.
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
        """Let rows take the steps after `from_step` [U, 1] up to the newest step in place, with many steps combined
        into one segment.
        """
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
        """Take the newest step of the history for the rows of that step's batch, in place.

        `gradient` [U, D] is the gradient of the loss without the L2 penalty, which is added here. The rows must have
        taken all earlier steps.
        """
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
    """Return the history of steps 1 … num_steps for `adam`. Return None for other optimizers, which move only the rows
    of the batch, so that no history is needed.

    `learning_rate` is a function of the step. `kind` is the class of the result.
    """
    if options.name != "adam":
        return None
    return kind.of_steps(options, l2_coef, learning_rate, num_steps)
