"""The tables once more, plainly: every optimizer as its paper or MindSpore's documentation states it, in float64.

It shares no code with `app`. Beside each value stands a bound of what float32 may have made of it (`error`), so that a
comparison is as sharp as the arithmetic allows, whatever the gradients were. Letters: V rows, D width.

Duchi et al. 2011 (Adagrad), McMahan et al. 2013 (FTRL-proximal; l2 counts twice as in MindSpore's), Kingma & Ba 2015
(Adam), MindSpore's FusedSparseLazyAdam (epsilon beside the root that is not corrected).
"""

import copy
import math

import numpy as np

EPS, TINY = 2.0**-22, 2.0**-146  # a few roundings of float32: of its values, and of those too small for all its digits
LEAST_RATE = 2.0**-40  # below it FTRL, which divides by its rate, takes no step
ONE_A_ROW = ("rowwise_adagrad", "partial_rowwise_adam")


def rate_of(options, step, drops=()):
    """The learning rate of step 1, 2, …; `drops` are the steps after which a plateau's rate fell."""
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
    """A table of V rows; `most_exact` is the number of missed steps of `adam` that the tables take one by one."""

    def __init__(self, options, initial, l2, most_exact):
        self.options, self.l2, self.most_exact = options, l2, most_exact
        self.step = self.steps_before = 0
        self.drops = []
        self.rows = initial.astype(np.float64)
        zeros = np.zeros_like(self.rows)
        self.error = np.abs(self.rows) * EPS
        self.squares = zeros + getattr(options, "initial_accumulator", 0.0)  # Adagrad's G, FTRL's n, Adam's v
        self.sums, self.sums_error = zeros.copy(), zeros.copy()  # FTRL's z, Adam's m
        self.last_rate = zeros.copy()  # of FTRL's z
        self.touched = np.zeros(len(initial), bool)
        self.last_touch = np.zeros(len(initial), int)
        self.is_exact = True  # False if rows are rounded to bfloat16, as these are not
        self.left = self.rows.copy()  # what `adam` had made of the row after `most_exact` missed steps

    def copy(self):
        return copy.deepcopy(self)

    @property
    def rate(self):
        """Return the learning rate of the next step in float32."""
        return float(np.float32(rate_of(self.options, self.step + 1, self.drops)))

    def far(self):
        """Rows of `adam` whose missed steps are no longer exact."""
        return (self.step - self.last_touch > self.most_exact) & (self.options.name == "adam")

    def update(self, summed, at):
        """Take one step; `summed` [V, D] are the gradients, 0 outside `at` [V], the rows of the batch."""
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
        """The batch's gradient with L2, and how wrong float32 may be about it."""
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
        """Rows of `adam` that were too far behind to be exact: what the tables made of them, [n] places."""
        self.rows[place], self.sums[place], self.squares[place] = state
        self.error[place], self.sums_error[place] = (EPS * np.abs(array[place]) for array in (self.rows, self.sums))
        self.left[place] = self.rows[place]

    def remove(self, at, initial):
        """Make the rows `at` [V] what they were before any step."""
        fresh = PlainTable(self.options, initial, self.l2, self.most_exact)
        for name in ("rows", "error", "squares", "sums", "sums_error", "last_rate", "touched", "last_touch", "left"):
            getattr(self, name)[at] = getattr(fresh, name)[at]

    def warm_start(self, source, origins, to, with_optimizer):
        """Begin as a new run with rows of `source`: each row in `to` is the one that was `origins` of it there."""
        here = origins[to]
        self.is_exact = self.is_exact and source.is_exact
        self.rows[to], self.error[to] = source.rows[here], source.error[here] + EPS * np.abs(source.rows[here])
        if with_optimizer:
            for name in ("squares", "sums", "sums_error", "last_rate"):
                getattr(self, name)[to] = getattr(source, name)[here]
            self.steps_before = source.step + source.steps_before
        if self.options.name == "ftrl":  # the sums that these rows are made of; that of a row of 0 is within l1
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
        """Return the largest error of a row of `found` [V, D] in units of the tolerance, and its index."""
        with np.errstate(all="ignore"):
            allowed = 4 * self.error
            excess = np.abs(found.astype(np.float64) - self.rows) / allowed
            far = self.far()
            beyond = np.maximum(-found * np.sign(self.left), np.abs(found) - np.abs(self.left)) / allowed
            excess[far] = np.maximum(beyond[far], 0)
        excess[~np.isfinite(found)] = math.inf
        excess[np.isnan(excess)] = 0  # an infinite bound: the row has been beyond float32
        return excess.max(), excess.max(axis=1).argmax()
