"""Define the click model of the synthetic log: the log odds of a click for each row.

    log odds = bias + frequent values + rare values + interactions + numbers

Each value of a categorical field adds its own effect, which belongs to `frequent` or `rare` values by the value's
share of the rows. A few fields interact in pairs, by the inner product of latent vectors (`interactions`; a
factorization machine, Rendle 2010, eq. 1). Each number adds a line and a wave, or a constant if it is missing. All
effects are hashes of (seed, field, value), so that ten million values need no table. The weights of the four parts
are solved on separate rows, such that click rate, best possible AUC and the parts' shares of the variance are the
same for every seed.

Array shapes are written with these letters: N numeric fields, C categorical fields, n rows, m interacting fields, L
latent width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from common.hashing import GOLDEN, mix64
from data_prep.sources.drift import UNIT_UNIFORM, Drift, hash_values, hashed_uniform
from data_prep.sources.shape import CATEGORICAL_NAMES, NUM_NUMERIC, NUMERIC_NAMES, LogShape

# Parts of the log odds -> their shares of its variance, chosen so that the log is as hard to learn as the real one
# (benchmarks/results/accuracy.md).
PART_SHARES = {"frequent": 0.34, "rare": 0.275, "interactions": 0.05, "numbers": 0.335}
BEST_AUC = 0.81
RARE_SHARE = 1e-4  # Values with a smaller share of all rows are rare: fewer than 100 of a million rows have them.
# Interacting fields have few values, so that most pairs of values occur often enough in a few hundred thousand rows
# to be learned.
INTERACTING_NUMBERS = ("I6", "I7")
INTERACTING_FIELDS = ("C6", "C14", "C17", "C23")
LATENT_WIDTH = 4
LARGEST_NUMBER = 2.5  # Bound of standardized numbers, so that no outlier decides a row.
# An effect fades with the value's share s as s / (s + half), separately for frequent and rare values. So a few
# million rows teach what 94,000 rows cannot, and there is little that no log could teach.
HALF_FREQUENT = 2e-2
HALF_RARE = 2e-5
WAVE = 0.4  # Weight of a number's non-linear effect. Its linear effect has weight 1.

# Purposes of a hash, used as its key together with (seed, field).
_EFFECT, _LATENT, _SLOPE, _WAVE, _MISSING = range(5)


@dataclass(frozen=True)
class Now:
    """The times of rows [n] of a log that drifts, in days, and the values [C, n] that these rows have."""

    drift: Drift
    days: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class PlantedClicks:
    """The click model of a synthetic log: hashes of `seed`, and solved weights.

    `latent_means` [m, L] are subtracted from latent vectors, so that an interaction depends on both fields.
    `weights` [4] multiply the parts of the log odds.
    """

    seed: int
    shape: LogShape
    latent_means: np.ndarray
    weights: np.ndarray
    bias: float

    def logit_parts(
        self, numbers: np.ndarray, ranks: np.ndarray, number_missing: np.ndarray, now: Now | None = None
    ) -> np.ndarray:
        """Return the parts of the log odds, [4, n] in the order of `PART_SHARES`, without the bias."""
        scaled = self.standardized(numbers, number_missing)
        shares = self.shape.value_shares(ranks)
        values = ranks if now is None else now.values
        effects = np.stack(
            [self.value_effects(field, values[field], shares[field], now) for field in range(len(ranks))]
        )
        is_rare = shares < RARE_SHARE
        latents = self.latents(scaled, values, shares) - self.latent_means[:, None, :]
        # The sum over pairs a < b of <latent a, latent b> is half of (sum)² - (sum of squares).
        sum_of_pairs = ((latents.sum(axis=0) ** 2).sum(axis=1) - (latents**2).sum(axis=(0, 2))) / 2
        return np.stack(
            [
                np.where(is_rare, 0, effects).sum(axis=0),
                np.where(is_rare, effects, 0).sum(axis=0),
                self.weights[2] * sum_of_pairs,
                self.weights[3] * self._number_effects(scaled, number_missing),
            ]
        )

    def value_effects(self, field: int, values: np.ndarray, shares: np.ndarray, now: Now | None = None) -> np.ndarray:
        """Return what the values [n] of a categorical field add to the log odds [n].

        `shares` [n] are their shares of all rows. `now` is given for a log that drifts.
        """
        strength = np.where(
            shares < RARE_SHARE,
            self.weights[1] * shares / (shares + HALF_RARE),
            self.weights[0] * shares / (shares + HALF_FREQUENT),
        )
        key = _key(self.seed, NUM_NUMERIC + field, _EFFECT)
        if now is None:
            return strength * hashed_uniform(key, values)
        return strength * now.drift.effects(field, key, values, now.days)

    def latents(self, scaled: np.ndarray, values: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return the latent vectors [m, n, L] of the interacting fields. Rare values have the vector 0."""
        of_rows = []
        for name in INTERACTING_NUMBERS:
            field = NUMERIC_NAMES.index(name)
            direction = _hashed_vector(_key(self.seed, field, _LATENT), np.zeros(1, dtype=np.int64))
            of_rows.append(scaled[field][:, None] * direction)
        for name in INTERACTING_FIELDS:
            field = CATEGORICAL_NAMES.index(name)
            vectors = _hashed_vector(_key(self.seed, NUM_NUMERIC + field, _LATENT), values[field])
            of_rows.append(vectors * (shares[field] >= RARE_SHARE)[:, None])
        return np.stack(of_rows)

    def _number_effects(self, scaled: np.ndarray, missing: np.ndarray) -> np.ndarray:
        total = np.zeros(scaled.shape[1])
        for field in range(len(scaled)):
            slope, wave, constant = (
                hashed_uniform(_key(self.seed, field, purpose), np.zeros(1, dtype=np.int64))
                for purpose in (_SLOPE, _WAVE, _MISSING)
            )
            effect = slope * scaled[field] + WAVE * wave * np.cos(2 * scaled[field])
            total += np.where(missing[field], constant, effect)
        return total

    def standardized(self, numbers: np.ndarray, missing: np.ndarray) -> np.ndarray:
        """Return numbers [N, n] on a logarithmic scale from about -1 to 1. Missing numbers are 0."""
        scaled = np.stack(
            [shape.standardize(of_field) for shape, of_field in zip(self.shape.numbers, numbers, strict=True)]
        )
        return np.where(missing, 0, np.clip(scaled, -LARGEST_NUMBER, LARGEST_NUMBER))


def plant(
    seed: int, shape: LogShape, numbers: np.ndarray, ranks: np.ndarray, number_missing: np.ndarray
) -> PlantedClicks:
    """Return the click model of `seed`, with weights solved on the given rows, which `draw_fields` has drawn."""
    members = len(INTERACTING_NUMBERS) + len(INTERACTING_FIELDS)
    plain = PlantedClicks(seed, shape, np.zeros((members, LATENT_WIDTH)), np.ones(len(PART_SHARES)), bias=0.0)
    means = plain.latents(plain.standardized(numbers, number_missing), ranks, shape.value_shares(ranks)).mean(axis=1)
    centered = replace(plain, latent_means=means)
    parts = centered.logit_parts(numbers, ranks, number_missing)
    weights = np.sqrt(list(PART_SHARES.values())) / parts.std(axis=1)
    scale, bias = solve_scale_and_bias(weights @ parts, shape.click_rate, BEST_AUC)
    return replace(centered, weights=weights * scale, bias=bias)


def solve_scale_and_bias(scores: np.ndarray, click_rate: float, best_auc: float) -> tuple[float, float]:
    """Return (scale, bias) such that sigmoid(scale · scores + bias) has mean `click_rate` and AUC `best_auc`."""
    ordered = np.sort(scores)
    # Bounds of the standard deviation of the log odds. 0.1 is close to chance, 10 close to certainty.
    low, high = 0.1, 10.0
    for _ in range(24):
        scale = np.sqrt(low * high)
        bias = _solve_bias(scale * ordered, click_rate)
        if expected_auc(sigmoid(scale * ordered + bias)) < best_auc:
            low = scale
        else:
            high = scale
    return float(scale), bias


def expected_auc(ordered: np.ndarray) -> float:
    """Return the expected AUC of scoring rows by their true click probabilities [n], given in ascending order.

    A click scores above a non-click with the probability Σ_i p_i Σ_{j<i} (1 - p_j) / (Σ p · Σ (1 - p)), where pairs
    of a row with itself are left out of the denominator.
    """
    below = np.cumsum(1 - ordered) - (1 - ordered)
    pairs = ordered.sum() * (1 - ordered).sum() - (ordered * (1 - ordered)).sum()
    return float(ordered @ below / pairs)


def sigmoid(logit: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-logit))."""
    return 1 / (1 + np.exp(-logit))


def _solve_bias(logit: np.ndarray, click_rate: float) -> float:
    low, high = -30.0, 30.0
    for _ in range(32):
        bias = (low + high) / 2
        if sigmoid(logit + bias).mean() < click_rate:
            low = bias
        else:
            high = bias
    return bias


def _key(seed: int, field: int, purpose: int) -> np.ndarray:
    """Return the hash key [1] for one purpose of one field. Fields are numbered, numeric ones first."""
    key = mix64(np.array([seed], dtype=np.uint64) + GOLDEN)
    return mix64(key + np.uint64(field * 16 + purpose) + GOLDEN)


def _hashed_vector(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return vectors [n, L] of uniform numbers with mean 0 and variance 1, each made from 16 bits of one hash."""
    bits = hash_values(key, values)
    columns = [(bits >> np.uint64(16 * column)) & np.uint64(0xFFFF) for column in range(LATENT_WIDTH)]
    return (np.stack(columns, axis=1) * 2.0**-15 - 1) * UNIT_UNIFORM
