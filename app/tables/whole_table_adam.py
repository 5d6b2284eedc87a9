"""`adam` on a table: Adam with L2 on every row at every step, done lazily.

A row outside the batch has the gradient l2_coef · row (of l2_coef · ½ Σ‖row‖² over the whole table, as in BARS's
recipes, where FuxiCTR writes λ/2 · ‖E‖²). Nothing of another row is in that step, so a row keeps the number of its last
step and takes the missed ones when it is looked at: one by one, the same float32 operations with the learning
rates of those steps, up to `MOST_EXACT_STEPS` = 1,000 missed steps. Of the n further ones, if any, with rate sum S,

    row *= 1 / (1 + l2_coef · S / (√v + ε)),   m = l2_coef · row,   v = β₂ⁿ · v + (1 - β₂ⁿ) · m²

is one implicit step of the row's slow motion, row' = -rate · l2_coef · row / (√v + ε), with the largest v on the way:
the result lies between 0 and the row as the 1,000 steps left it. Where those steps pull a row to 0 without crossing
it, so does the exact one, and the error is at most what they left. Without L2 a row stands still by then (β₁¹⁰⁰⁰) and
the error is 0.

Letters: U rows, D width, S steps so far.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.config.optimizers import AdamOptions
from app.tables.interface import Places, TableSnapshot
from app.tables.optimizers import LAST_STEP, ROWS, States, adam_step

MOST_EXACT_STEPS = 1000
SMALLEST_MOMENT = np.float32(2.0**-100)  # of a missed step; less is 0: numbers below 2⁻¹²⁶ are slow on some cores


class StepHistory:
    """What missed steps need to know of steps 0 … S: arrays of S + 1 or more values, that of step s at place s."""

    def __init__(self, options: AdamOptions, l2_coef: float) -> None:
        self.options = options
        self.l2_coef = l2_coef
        self.step = 0
        self.rates = np.zeros(1, np.float32)  # with both bias corrections
        self.epsilons = np.zeros(1, np.float32)  # beside a second moment that is not corrected
        self.rate_sums = np.zeros(1, np.float64)  # of the rates up to and with this one
        self.beta2_powers = np.ones(1, np.float32)  # place n has beta2 ** n

    def append(self, learning_rate: float) -> None:
        """Note the next step."""
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
        """The history of steps 1 … num_steps."""
        history = cls(options, l2_coef)
        for step in range(1, num_steps + 1):
            history.append(learning_rate(step))
        return history

    def catch_up(self, states: States) -> None:
        """Take the missed steps up to the newest one, in place: rows and moments [U, D], last steps [U, 1] int32."""
        rows, first_moment, second_moment, last_step = states
        missed = self.step - last_step[:, 0]
        for count in range(1, min(int(missed.max(initial=0)), MOST_EXACT_STEPS) + 1):
            behind = np.flatnonzero(missed >= count)
            steps = last_step[behind] + count
            arrays = rows[behind], first_moment[behind], second_moment[behind]
            self._missed_step(*arrays, self.rates[steps], self.epsilons[steps])
            rows[behind], first_moment[behind], second_moment[behind] = arrays
        far = np.flatnonzero(missed > MOST_EXACT_STEPS)
        if far.size:
            arrays = rows[far], first_moment[far], second_moment[far]
            self._rest(*arrays, last_step[far] + MOST_EXACT_STEPS)
            rows[far], first_moment[far], second_moment[far] = arrays
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
        l2_coef = np.float32(self.l2_coef)
        rate_sum = (self.rate_sums[self.step] - self.rate_sums[from_step]).astype(np.float32)
        power = self.beta2_powers[self.step - from_step]
        rows /= np.float32(1) + l2_coef * rate_sum / (np.sqrt(second) + self.epsilons[self.step])
        first[...] = l2_coef * rows
        second[...] = power * second + (np.float32(1) - power) * (first * first)

    def update(self, states: States, gradient: np.ndarray) -> None:
        """The newest step with the loss's `gradient` [U, D], in place; the rows stand at the step before it."""
        rows, first_moment, second_moment, last_step = states
        total = gradient + np.float32(self.l2_coef) * rows
        rate, epsilon = float(self.rates[self.step]), float(self.epsilons[self.step])
        adam_step((rows, first_moment, second_moment), total, self.options, rate, epsilon)
        last_step[...] = self.step


STATES = (ROWS, "first_moment", "second_moment", LAST_STEP)


class CaughtUpTable:
    """A `TableSnapshot` of a deep table as it is after the newest step of `history`.

    `saved` has each row as its last step left it.
    """

    def __init__(self, saved: TableSnapshot, history: StepHistory) -> None:
        self._saved = saved
        self._history = history
        self.row_ids, self.layout = saved.row_ids, saved.layout

    def read(self, name: str, places: Places) -> np.ndarray:
        """See `TableSnapshot.read`."""
        states = {state: self._saved.read(state, places).copy() for state in STATES}
        self._history.catch_up(tuple(states.values()))
        return states[name]
