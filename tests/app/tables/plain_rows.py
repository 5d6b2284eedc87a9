"""A simple second implementation of the tables, to which tests compare the real ones.

Every optimizer is written in float64 as its paper or MindSpore's documentation defines it. No code is shared with
`app`. For each value, `error` is a bound of the rounding errors that float32 may make in it, so that a comparison is as
strict as float32 allows, whatever the gradients were. Letters: V rows, D width.

The definitions are those of Duchi et al. 2011 (Adagrad), McMahan et al. 2013 (FTRL-proximal, with l2 counted twice as
in MindSpore), Kingma & Ba 2015 (Adam), and MindSpore's FusedSparseLazyAdam (epsilon is added to the root of the second
moment without bias correction).
"""

import copy
import math

import numpy as np

# Bounds of a few rounding errors of float32: relative for usual values, absolute for values near 0 (subnormal numbers).
EPS, TINY = 2.0**-22, 2.0**-146
LEAST_RATE = 2.0**-40  # With a lower learning rate FTRL, which divides by it, takes no step.
ONE_A_ROW = ("rowwise_adagrad", "partial_rowwise_adam")


def rate_of(options, step, drops=()):
    """Return the learning rate of step number `step` (from 1 on). `drops` are the steps after which a plateau schedule
    has lowered the rate.
    """
    schedule, base = options.schedule, options.learning_rate
    after, rate = step - schedule.warmup_steps, base
    if after <= 0:
        rate = base * step / schedule.warmup_steps
    elif schedule.name == "cosine":
        part = min(after / schedule.decay_steps, 1)
        rate = base * (schedule.final_factor + (1 - schedule.final_factor) * (1 + math.cos(math.pi * part)) / 2)
    elif schedule.name == "step":
        rate = base * schedule.drop_factor ** ((after - 1) // schedule.every_steps)
    fallen = sum(drop < step for drop in drops)
    return max(rate * schedule.drop_factor**fallen, min(1e-6, base)) if fallen else rate


class PlainTable:
    """One table of V rows with its optimizer.

    With `adam`, the real tables take up to `most_exact` missed steps of a row one by one, and further ones
    approximately.
    """

    def __init__(self, options, initial, l2, most_exact):
        self.options, self.l2, self.most_exact = options, l2, most_exact
        self.step = self.steps_before = 0
        self.drops = []
        self.rows = initial.astype(np.float64)
        zeros = np.zeros_like(self.rows)
        self.error = np.abs(self.rows) * EPS
        # In the letters of the papers: G of Adagrad, n of FTRL, v of Adam.
        self.squares = zeros + getattr(options, "initial_accumulator", 0.0)
        self.sums, self.sums_error = zeros.copy(), zeros.copy()  # In the letters of the papers: z of FTRL, m of Adam.
        self.last_rate = zeros.copy()  # FTRL only: the learning rate for which the row's z was computed.
        self.touched = np.zeros(len(initial), bool)
        self.last_touch = np.zeros(len(initial), int)
        self.is_exact = True  # False if the real tables round rows to bfloat16, which this class does not.
        self.left = self.rows.copy()  # With `adam`: each row as it was after at most `most_exact` missed steps.

    def copy(self):
        return copy.deepcopy(self)

    @property
    def rate(self):
        """Return the learning rate of the next step in float32."""
        return float(np.float32(rate_of(self.options, self.step + 1, self.drops)))

    def far(self):
        """Return a mask of the rows that have missed more than `most_exact` steps of `adam`, so that the real tables
        have taken some of these steps approximately.
        """
        return (self.step - self.last_touch > self.most_exact) & (self.options.name == "adam")

    def update(self, summed, at):
        """Take one step. `at` [V] is the mask of the batch's rows, and `summed` [V, D] their gradients (0 for other
        rows).
        """
        with np.errstate(all="ignore"):
            self._update(summed, at)

    def _update(self, summed, at):
        rate, options = self.rate, self.options
        self.step += 1
        if options.name == "adam":
            self._adam(summed, slice(None), rate)
        elif options.name in ("lazy_adam", "partial_rowwise_adam"):
            self._adam(summed, at, rate)
        elif options.name == "ftrl":
            self._ftrl(summed, at, rate)
        else:
            self._descend(summed, at, rate)
        self.touched |= at
        self.last_touch[at] = self.step
        now = self.step - self.last_touch <= self.most_exact
        self.left[now] = self.rows[now]

    def _gradient(self, summed, at):
        """Return the gradients of the rows `at`, with that of the L2 penalty added, and bounds of their float32
        errors.
        """
        gradient = summed[at]
        total = gradient + self.l2 * self.rows[at]
        wrong = EPS * (np.abs(gradient) + self.l2 * np.abs(self.rows[at])) + self.l2 * self.error[at]
        return total, wrong + TINY

    def _move(self, at, rows, error):
        self.rows[at] = rows
        self.error[at] = error + EPS * np.abs(rows) + TINY

    def _descend(self, summed, at, rate):
        gradient, wrong = self._gradient(summed, at)
        share = 1.0
        if self.options.name != "sgd":
            square = gradient * gradient
            if self.options.name in ONE_A_ROW:
                square = square.mean(axis=1, keepdims=True)
            self.squares[at] += square
            share = 1 / (np.sqrt(self.squares[at]) + self.options.epsilon)
        error = self.error[at] + share * (rate * (2 * wrong + 4 * EPS * np.abs(gradient)) + TINY)
        self._move(at, self.rows[at] - rate * share * gradient, error)

    def _ftrl(self, summed, at, rate):
        options, rows = self.options, self.rows[at]
        if rate < LEAST_RATE:
            return
        gradient, wrong = self._gradient(summed, at)
        old_root = np.sqrt(self.squares[at])
        self.squares[at] += gradient * gradient
        root = np.sqrt(self.squares[at])
        old_share = old_root / np.where(self.last_rate[at] > 0, self.last_rate[at], rate)
        sums = self.sums[at] + gradient - (root / rate - old_share) * rows
        terms = np.abs(self.sums[at]) + np.abs(sums) + (root / rate + old_share) * np.abs(rows)
        sums_error = self.sums_error[at] + wrong + np.abs(root / rate - old_share) * self.error[at] + EPS * terms + TINY
        self.sums[at], self.sums_error[at], self.last_rate[at] = sums, sums_error, rate
        denominator = root / rate + 2 * options.l2
        new = np.where(np.abs(sums) > options.l1, (np.sign(sums) * options.l1 - sums) / denominator, 0)
        self._move(at, new, (sums_error + EPS * options.l1) / denominator)

    def _adam(self, summed, at, rate):
        options, step = self.options, self.step + self.steps_before
        beta1, beta2 = (float(np.float32(beta)) for beta in (options.beta1, options.beta2))  # 1 - beta2 is 1.3e-5 off
        gradient, wrong = self._gradient(summed, at)
        sums = beta1 * self.sums[at] + (1 - beta1) * gradient
        square = gradient * gradient
        if options.name in ONE_A_ROW:
            square = square.mean(axis=1, keepdims=True)
        squares = beta2 * self.squares[at] + (1 - beta2) * square
        terms = beta1 * np.abs(self.sums[at]) + (1 - beta1) * np.abs(gradient)
        sums_error = beta1 * self.sums_error[at] + (1 - beta1) * wrong + EPS * terms + 2.0**-100
        scale = rate * math.sqrt(1 - options.beta2**step) / (1 - options.beta1**step)
        epsilon = options.epsilon
        if options.name in ("adam", "partial_rowwise_adam"):  # epsilon stands beside the corrected root
            epsilon *= math.sqrt(1 - options.beta2**self.step)  # that of this run's steps
        scale /= np.sqrt(squares) + epsilon
        self.sums[at], self.sums_error[at], self.squares[at] = sums, sums_error, squares
        self._move(at, self.rows[at] - scale * sums, self.error[at] + 3 * scale * sums_error)

    def take_over(self, place, state):
        """Copy the rows `place` [n] and their moments from the real tables' `state`, because the rows have missed too
        many steps of `adam` to be computed exactly.
        """
        self.rows[place], self.sums[place], self.squares[place] = state
        self.error[place], self.sums_error[place] = (EPS * np.abs(array[place]) for array in (self.rows, self.sums))
        self.left[place] = self.rows[place]

    def remove(self, at, initial):
        """Give the rows `at` [V] the values and the state that they had before the first step."""
        fresh = PlainTable(self.options, initial, self.l2, self.most_exact)
        for name in ("rows", "error", "squares", "sums", "sums_error", "last_rate", "touched", "last_touch", "left"):
            getattr(self, name)[at] = getattr(fresh, name)[at]

    def warm_start(self, source, origins, to, with_optimizer):
        """Begin a new run from the table `source`: each row r in `to` gets the values of the row `origins[r]` there.

        With `with_optimizer` it also gets the state of the optimizer.
        """
        here = origins[to]
        self.is_exact = self.is_exact and source.is_exact
        self.rows[to], self.error[to] = source.rows[here], source.error[here] + EPS * np.abs(source.rows[here])
        if with_optimizer:
            for name in ("squares", "sums", "sums_error", "last_rate"):
                getattr(self, name)[to] = getattr(source, name)[here]
            self.steps_before = source.step + source.steps_before
        if self.options.name == "ftrl":
            # Compute the sums (z) that yield these rows. Those of a row of 0 are within ±l1.
            new = self.last_rate[to] == 0
            self.last_rate[to] = np.where(new, self.options.learning_rate, self.last_rate[to])
            share = np.sqrt(self.squares[to]) / self.last_rate[to] + 2 * self.options.l2
            made = -self.rows[to] * share - np.sign(self.rows[to]) * self.options.l1
            still = np.clip(self.sums[to], -self.options.l1, self.options.l1)
            self.sums[to] = np.where(self.rows[to] != 0, made, still)
            self.sums_error[to] = share * self.error[to] + EPS * np.abs(self.sums[to])
        self.touched[to] = True
        self.left = self.rows.copy()

    def differs(self, found):
        """Return by how much the rows `found` [V, D] of the real table differ most from these rows, as a multiple of
        the tolerance, and the index of the row.
        """
        with np.errstate(all="ignore"):
            allowed = 4 * self.error
            excess = np.abs(found.astype(np.float64) - self.rows) / allowed
            far = self.far()
            beyond = np.maximum(-found * np.sign(self.left), np.abs(found) - np.abs(self.left)) / allowed
            excess[far] = np.maximum(beyond[far], 0)
        excess[~np.isfinite(found)] = math.inf
        excess[np.isnan(excess)] = 0  # The bound is infinite, because the row has been out of the range of float32.
        return excess.max(), excess.max(axis=1).argmax()
