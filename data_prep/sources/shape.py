"""Define the distribution of the synthetic log: its fields, their changes over time, and its clicks.

The shares of missing cells and of values are those of the real log: published figures (configs/data/criteo_facts.json),
and value counts fitted to them (configs/data/criteo_shape.json, which names the command that fits them). Without
`Drift`, all rows are drawn from the same distribution. Because it has many rare values, new values still appear late in
a log of any length, at the real log's rate (`unseen_in_last_seventh…` in criteo_facts.json).

A rank is a value's place when the values of a field are sorted by frequency. `Drift` changes a log over time: which
value has each rank, and how much each value changes the odds of a click (its effect).

    row number -> time -> value of each rank at that time -> effect of the value at that time

Traffic and click rate have a daily rhythm. Some values die, and other values take their ranks. A part of each
value's effect is a slow random walk. On `SHOCK_DAY` two fields get new effects, and the click rate falls. Everything
is a pure function of (seed, row), so a longer log starts with the rows of a shorter one.

`PlantedClicks` gives each row the log odds of a click.

    log odds = bias + frequent values + rare values + interactions + numbers

Each value of a categorical field adds its own effect, to the part `frequent` or `rare` by the value's share of the
rows. A few fields interact in pairs, by the inner product of latent vectors (`interactions`; a factorization machine,
Rendle 2010, eq. 1). Each number adds a linear and a cosine term, or a constant if it is missing. All effects are hashes
of (seed, field, value), so that ten million values need no table. The weights of the four parts are computed from rows
outside of the log, such that click rate, best possible AUC and the parts' shares of the variance are the same for every
seed.

Array shapes are written with these letters: N numeric fields, C categorical fields, n rows, m interacting fields, L
latent width, k knots, b bins.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from common.arrays.hashing import GOLDEN, mix64

FACTS_FILE = Path(__file__).parents[2] / "configs" / "data" / "criteo_facts.json"
SHAPE_FILE = FACTS_FILE.with_name("criteo_shape.json")
NUM_NUMERIC, NUM_CATEGORICAL = 13, 26
NUMERIC_NAMES = [f"I{i}" for i in range(1, NUM_NUMERIC + 1)]
CATEGORICAL_NAMES = [f"C{i}" for i in range(1, NUM_CATEGORICAL + 1)]
MISSING_RANK = -1
EXACT_RANKS = 300  # This many values of a field, the most frequent ones, have a bin each.
TAIL_BINS = 600  # All less frequent values are in this many bins, equally wide in the logarithm of the rank.
QUANTILES = (0.01, 0.25, 0.50, 0.75, 0.99)


@dataclass(frozen=True)
class ValueShape:
    """Distribution of the values of one categorical field. Each value is named by its rank; the most frequent one is 0.

    `edges` [b + 1] divide the ranks into b bins. All values in a bin have the same share of all rows, `share_of_bin`
    [b]. `cumulative` [b + 1] is the share of rows whose value has a rank below each edge, among the rows in which the
    field is not missing.
    """

    edges: np.ndarray
    share_of_bin: np.ndarray
    cumulative: np.ndarray

    @classmethod
    def from_knots(cls, ranks: np.ndarray, shares: np.ndarray, live: float) -> ValueShape:
        """Return the distribution in which values with certain `ranks` (from 1) have the given `shares` of all rows.

        Shares of other ranks are interpolated, linearly in (log rank, log share). `live` is the share of rows in which
        the field is not missing. The most frequent value keeps its share; all other shares are scaled so that the sum
        is `live`.
        """
        last = int(ranks[-1])
        first_bins = np.arange(1, min(last, EXACT_RANKS) + 1)
        tail = np.geomspace(first_bins[-1] + 1, last + 1, TAIL_BINS).round() if last > EXACT_RANKS else [last + 1]
        edges = np.unique(np.concatenate([first_bins, tail])).astype(np.float64)
        values = np.diff(edges)
        middle = np.sqrt(edges[:-1] * (edges[1:] - 1))
        share = np.exp(np.interp(np.log(middle), np.log(ranks), np.log(shares)))
        share[1:] /= float((share * values)[1:].sum() / (live - share[0]))
        cumulative = np.concatenate([[0], np.cumsum(share * values)]) / live
        return cls(edges - 1, share, cumulative / cumulative[-1])

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Return random ranks [n] int64 with this distribution. `uniform` [n] are uniform random numbers in [0, 1)."""
        # All values in a bin have the same share. So within a bin the rank is linear in the cumulative share.
        return np.interp(uniform, self.cumulative, self.edges).astype(np.int64)

    def share(self, ranks: np.ndarray) -> np.ndarray:
        """Return, for each of `ranks` [n], the share of all rows whose value has this rank, as an array [n].

        For MISSING_RANK, return the share of the most frequent value.
        """
        return self.share_of_bin[np.searchsorted(self.edges, np.maximum(ranks, 0), side="right") - 1]


@dataclass(frozen=True)
class NumberShape:
    """Distribution of the numbers of one numeric field, given by its quantile function.

    `log_values` [k] are known quantiles, converted by `signed_log`, and `positions` [k] are their ranks in (0, 1),
    converted by `_stretched`. Between them the function is linear. Below the 1 % and above the 99 % quantile, it is
    linear in the logarithm of the remaining share of rows, so that the log's minimum and maximum occur about once in a
    whole log and not in every small sample.
    """

    positions: np.ndarray
    log_values: np.ndarray

    @classmethod
    def from_facts(cls, quantiles: list[int], minimum: int, maximum: int, log_rows: int) -> NumberShape:
        """Return the distribution of a field with the given quantiles and extremes in a log of `log_rows` rows.

        `quantiles` are the field's values at the ranks `QUANTILES`.
        """
        positions = _stretched(np.array([1 / log_rows, *QUANTILES, 1 - 1 / log_rows]))
        return cls(positions, signed_log(np.array([minimum, *quantiles, maximum])))

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Return random numbers [n] int64 with this distribution.

        `uniform` [n] are uniform random numbers in [0, 1).
        """
        log_values = np.interp(_stretched(uniform), self.positions, self.log_values)
        values = np.copysign(np.expm1(np.abs(log_values)), log_values)
        return np.rint(values).astype(np.int64)

    def standardize(self, values: np.ndarray) -> np.ndarray:
        """Return numbers `values` [n] on a logarithmic scale on which most lie within -1 … 1, as float64 [n].

        The result is (signed log of the value - signed log of the median), divided by half the difference between the
        signed logs of the 99 % and the 1 % quantile.
        """
        center, half_way = self.log_values[3], (self.log_values[5] - self.log_values[1]) / 2
        return (signed_log(values) - center) / half_way


@dataclass(frozen=True)
class LogShape:
    """The distributions of all fields of a log, and its click rate.

    `missing_groups` lists groups of fields whose cells are all missing in the same rows. Fields are given by number:
    numeric fields first, then categorical ones.
    """

    numbers: tuple[NumberShape, ...]
    values: tuple[ValueShape, ...]
    missing_groups: tuple[tuple[int, ...], ...]
    missing_shares: tuple[float, ...]  # Share of rows in which the cells of each group of `missing_groups` are missing.
    click_rate: float

    def value_shares(self, ranks: np.ndarray) -> np.ndarray:
        """Return, for each of `ranks` [C, n], the share of all rows that have the same value in this field, [C, n].

        `ranks` has the rank (place by frequency) of the value of each of the C fields in each of n rows.
        """
        return np.stack([value.share(of_field) for value, of_field in zip(self.values, ranks, strict=True)])

    @property
    def num_uniforms(self) -> int:
        """Number of uniform random numbers that `draw_fields` needs to draw one row."""
        return len(self.numbers) + len(self.values) + len(self.missing_groups)


def signed_log(values: np.ndarray) -> np.ndarray:
    """Return sign(x) · log(1 + |x|) of each value x, a logarithm that accepts zero and negative counts."""
    return np.copysign(np.log1p(np.abs(values)), values)


def load_shape() -> LogShape:
    """Return the distributions of the fields of Criteo's log, read from two files in configs/data."""
    facts = json.loads(FACTS_FILE.read_text(encoding="utf-8"))
    knots = json.loads(SHAPE_FILE.read_text(encoding="utf-8"))["values"]
    integer, categorical = facts["integer"], facts["categorical"]
    names = NUMERIC_NAMES + CATEGORICAL_NAMES
    missing = np.array(integer["missing_percent"] + categorical["missing_percent"]) / 100
    together = [tuple(names.index(name) for name in group) for group in facts["missing_together"]]
    grouped = {field for group in together for field in group}
    groups = (*together, *((int(field),) for field in np.flatnonzero(missing > 0) if field not in grouped))
    extremes = zip(integer["quantiles_1_25_50_75_99"], integer["min"], integer["max"], strict=True)
    return LogShape(
        numbers=tuple(NumberShape.from_facts(*field, log_rows=facts["rows"]) for field in extremes),
        values=tuple(
            ValueShape.from_knots(np.array(knots[name]["ranks"]), np.array(knots[name]["shares"]), 1 - share)
            for name, share in zip(CATEGORICAL_NAMES, missing[NUM_NUMERIC:], strict=True)
        ),
        missing_groups=groups,
        missing_shares=tuple(float(missing[group[0]]) for group in groups),
        click_rate=facts["clicks"] / facts["rows"],
    )


def draw_fields(shape: LogShape, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a random row of the log from each column of `uniforms` [shape.num_uniforms, n], uniform numbers in [0, 1).

    Return numbers [N, n] int64, ranks [C, n] int64 (`MISSING_RANK` for a missing cell), and a mask [N, n] of missing
    numbers.
    """
    rows = uniforms.shape[1]
    missing = np.zeros((NUM_NUMERIC + NUM_CATEGORICAL, rows), dtype=bool)
    of_groups = uniforms[NUM_NUMERIC + NUM_CATEGORICAL :]
    for group, share, uniform in zip(shape.missing_groups, shape.missing_shares, of_groups, strict=True):
        missing[list(group)] = uniform < share
    numbers = np.stack([number.draw(uniforms[i]) for i, number in enumerate(shape.numbers)])
    ranks = np.stack([value.draw(uniforms[NUM_NUMERIC + i]) for i, value in enumerate(shape.values)])
    ranks[missing[NUM_NUMERIC:]] = MISSING_RANK
    return numbers, ranks, missing[:NUM_NUMERIC]


def _stretched(positions: np.ndarray) -> np.ndarray:
    """Convert ranks u in (0, 1) to a scale that is logarithmic in the lowest and in the highest hundredth.

    The result is 0.01 - log10(0.01 / u) for u below 0.01, 0.99 + log10(0.01 / (1 - u)) for u above 0.99, and u itself
    for ranks between 0.01 and 0.99.
    """
    edge = QUANTILES[0]
    low = edge + np.log10(np.clip(positions, 1e-12, edge) / edge)
    high = (1 - edge) - np.log10(np.clip(1 - positions, 1e-12, edge) / edge)
    return np.where(positions < edge, low, np.where(positions > 1 - edge, high, positions))


START = np.datetime64("2014-01-01T00:00:00", "s")
MAX_DAYS = 180  # Longest log in days. In a longer one, two values of a field could get the same 32-bit code.
# Amplitudes of the daily rhythms: of the rows per second relative to their mean, and of the log odds of a click.
TRAFFIC_RHYTHM, CLICK_RHYTHM = 0.6, 0.2
MORTAL_SHARE = 0.3  # Share of a field's values that disappear from the log after some time; other values replace them.
# Range of the time in days until a value disappears. The logarithm of the time is uniform.
SHORTEST_LIFE, LONGEST_LIFE = 3.0, 100.0
# Share of the variance of a categorical value's effect (on the log odds of a click) that comes from a part that changes
# over time. The rest comes from a constant part.
WALKING_SHARE = 0.3
# The changing part of an effect is a sum of random walks, interpolated between knots: days between two knots -> share
# of the variance. With several walks the effect changes both slowly and quickly.
KNOTS = {16.0: 0.6, 4.0: 0.4}
SHOCK_DAY, SHOCK_LOGIT = 15, -0.3
SHOCK_FIELDS = tuple(CATEGORICAL_NAMES.index(name) for name in ("C9", "C17"))
# From SHOCK_DAY on, this number is added to the values of two fields before they are hashed, so that each value gets
# another effect.
_AFTER_SHOCK = 1 << 40
UNIT_UNIFORM = np.sqrt(3.0)  # Uniform numbers in [-√3, √3] have variance 1.


@dataclass(frozen=True)
class Drift:
    """Defines how a synthetic log changes over time. `seed` seeds the random changes.

    The log has `rows_per_day` rows per day on average.
    """

    seed: int
    rows_per_day: int

    def days(self, row_numbers: np.ndarray) -> np.ndarray:
        """Return the time of each row, given the rows' numbers [n], in days since the log's start, [n].

        Traffic is highest at noon, lowest at midnight.
        """
        hours = np.linspace(0, 1, 24 * 12 + 1)
        rows_until = hours - TRAFFIC_RHYTHM * np.sin(2 * np.pi * hours) / (2 * np.pi)
        whole, part = np.divmod(row_numbers / self.rows_per_day, 1)
        return whole + np.interp(part, rows_until, hours)

    def logits(self, days: np.ndarray) -> np.ndarray:
        """Return what the times `days` [n] of rows add to the log odds of a click in these rows, [n].

        The result is a daily rhythm with its peak at eight in the evening and, from `SHOCK_DAY` on, `SHOCK_LOGIT` in
        addition.
        """
        return CLICK_RHYTHM * np.cos(2 * np.pi * (days - 20 / 24)) + SHOCK_LOGIT * (days >= SHOCK_DAY)

    def values(self, shape: LogShape, ranks: np.ndarray, days: np.ndarray) -> np.ndarray:
        """Return the values [C, n] of categorical fields that have the given `ranks` [C, n] at the times `days` [n].

        Values are named by numbers. A value that never dies has its rank as number. When a value dies, a new value
        takes its rank. The number of the new value is that of the old value plus the number of ranks of the field.
        """
        values = ranks.copy()
        for field, of_field in enumerate(ranks):
            of_life, of_phase, of_fate = (
                hashed_unit(self._key(field, purpose), of_field) for purpose in ("life", "phase", "fate")
            )
            life = SHORTEST_LIFE * (LONGEST_LIFE / SHORTEST_LIFE) ** of_life
            deaths = np.where(of_fate < MORTAL_SHARE, days / life + of_phase, 0).astype(np.int64)
            num_ranks = int(shape.values[field].edges[-1])
            values[field] = np.where(of_field == MISSING_RANK, MISSING_RANK, of_field + deaths * num_ranks)
        return values

    def effects(self, field: int, key: np.ndarray, values: np.ndarray, days: np.ndarray) -> np.ndarray:
        """Return the effects [n] that `values` [n] of a categorical field have on the log odds of a click.

        `days` [n] are the times at which they have these effects. Over all values of the field the effects have mean 0
        and variance 1. `key` is the field's hash key.
        """
        if field in SHOCK_FIELDS:
            values = values + _AFTER_SHOCK * (days >= SHOCK_DAY)
        total = np.sqrt(1 - WALKING_SHARE) * hashed_uniform(key, values)
        for period, share in KNOTS.items():
            knot, way = np.divmod(days / period, 1)
            before, after = (
                hashed_uniform(mix64(key + (number * 64 + period).astype(np.uint64) * GOLDEN), values)
                for number in (knot + 1, knot + 2)
            )
            walk = ((1 - way) * before + way * after) / np.hypot(1 - way, way)
            total += np.sqrt(WALKING_SHARE * share) * walk
        return total

    def _key(self, field: int, purpose: str) -> np.ndarray:
        name = int.from_bytes(f"{purpose}{field}".encode(), "little")
        return mix64(np.array([self.seed ^ name], dtype=np.uint64) + GOLDEN)


def hash_values(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each of `values` [n].

    `key` ([1] or [n]) selects one of many independent hash functions.
    """
    return mix64(values.astype(np.uint64) * np.uint64(0xD1342543DE82EF95) + key + GOLDEN)


def hashed_unit(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a hash of each of `values` [n] as a float64 [n]. Over all values the hashes are uniform in [0, 1).

    `key` ([1] or [n]) selects one of many independent hash functions.
    """
    return (hash_values(key, values) >> np.uint64(11)) * 2.0**-53


def hashed_uniform(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a hash of each of `values` [n] as a float64 [n]. The hashes are uniform with mean 0 and variance 1.

    `key` ([1] or [n]) selects one of many independent hash functions.
    """
    return (2 * hashed_unit(key, values) - 1) * UNIT_UNIFORM


# Part of the log odds -> its share of the variance of the log odds. The shares are chosen so that the log is as hard to
# learn as the real one (benchmarks/results/accuracy.md).
PART_SHARES = {"frequent": 0.34, "rare": 0.275, "interactions": 0.05, "numbers": 0.335}
BEST_AUC = 0.81
RARE_SHARE = 1e-4  # Values with a smaller share of all rows are rare: fewer than 100 of a million rows have them.
# Interacting fields have few values, so that most pairs of values occur often enough in a few hundred thousand rows
# to be learned.
INTERACTING_NUMBERS = ("I6", "I7")
INTERACTING_FIELDS = ("C6", "C14", "C17", "C23")
LATENT_WIDTH = 4
# Standardized numbers are cut off at this absolute value, so that an extreme number does not decide alone about a row.
LARGEST_NUMBER = 2.5
# The effect of a value is multiplied by s / (s + half), where s is the value's share of all rows, and `half` differs
# for frequent and rare values. So rarer values matter less: a model learns more from millions of rows than from
# thousands, but values that are too rare to be learned from any log have hardly an effect.
HALF_FREQUENT = 2e-2
HALF_RARE = 2e-5
WAVE = 0.4  # Weight of the cosine term in a number's effect on the log odds. The linear term has weight 1.

# What a hash is used for. The key of a hash is made of (seed, field, one of these numbers), so that the hashes for
# different purposes are independent.
_EFFECT, _LATENT, _SLOPE, _WAVE, _MISSING = range(5)


@dataclass(frozen=True)
class Now:
    """The times in days [n] and the values [C, n] of n rows of a log that changes over time (`Drift`).

    Values are named by numbers, as `Drift.values` returns them.
    """

    drift: Drift
    days: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class PlantedClicks:
    """The click model of a synthetic log, which gives the log odds of a click in each row.

    The effects of values on the log odds are hashes of (`seed`, field, value). `weights` [4] are the factors of the
    parts of the log odds. `latent_means` [m, L] are the mean latent vectors of the interacting fields. The means are
    subtracted from latent vectors, so that an interaction does not contain effects of a single field.
    """

    seed: int
    shape: LogShape
    latent_means: np.ndarray
    weights: np.ndarray
    bias: float

    def logit_parts(
        self, numbers: np.ndarray, ranks: np.ndarray, number_missing: np.ndarray, now: Now | None = None
    ) -> np.ndarray:
        """Return the four parts of the log odds of a click in n rows, [4, n], in the order of `PART_SHARES`.

        The bias is not included. `numbers` and the mask `number_missing` are [N, n], `ranks` is [C, n]. If effects
        change over time, `now` has the times of the rows and the rule of the changes; otherwise it is None.
        """
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
        """Return the numbers [n] that a categorical field adds to the log odds of a click in n rows.

        `values` [n] are the values of the field in these rows, and `shares` [n] the values' shares of all rows. If
        effects change over time, `now` has the times of the rows and the rule of the changes; otherwise it is None.
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
        """Return the latent vectors that the m interacting fields have in n rows, [m, n, L]. The fields' mean vectors,
        `latent_means`, are not subtracted.

        `scaled` [N, n] are the numbers after `NumberShape.standardize`. `values` [C, n] are the rows' categorical
        values, and `shares` [C, n] their shares of all rows. Values with a share below RARE_SHARE have the vector 0.
        """
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
        """Return `numbers` [N, n] of the numeric fields on a logarithmic scale on which most lie within -1 … 1.

        Results beyond ±LARGEST_NUMBER are cut off there. Where `missing` [N, n] is true, the result is 0.
        """
        scaled = np.stack(
            [shape.standardize(of_field) for shape, of_field in zip(self.shape.numbers, numbers, strict=True)]
        )
        return np.where(missing, 0, np.clip(scaled, -LARGEST_NUMBER, LARGEST_NUMBER))


def plant(
    seed: int, shape: LogShape, numbers: np.ndarray, ranks: np.ndarray, number_missing: np.ndarray
) -> PlantedClicks:
    """Return the click model with the given `seed`, whose weights and bias are computed from a sample of rows.

    `numbers`, `ranks` and `number_missing`, a result of `draw_fields`, are the cells of these rows. On them the model
    has the click rate of `shape`, the expected AUC `BEST_AUC` and the `PART_SHARES`.
    """
    members = len(INTERACTING_NUMBERS) + len(INTERACTING_FIELDS)
    plain = PlantedClicks(seed, shape, np.zeros((members, LATENT_WIDTH)), np.ones(len(PART_SHARES)), bias=0.0)
    means = plain.latents(plain.standardized(numbers, number_missing), ranks, shape.value_shares(ranks)).mean(axis=1)
    centered = replace(plain, latent_means=means)
    parts = centered.logit_parts(numbers, ranks, number_missing)
    weights = np.sqrt(list(PART_SHARES.values())) / parts.std(axis=1)
    scale, bias = solve_scale_and_bias(weights @ parts, shape.click_rate, BEST_AUC)
    return replace(centered, weights=weights * scale, bias=bias)


def solve_scale_and_bias(scores: np.ndarray, click_rate: float, best_auc: float) -> tuple[float, float]:
    """Return (scale, bias) such that the probabilities sigmoid(scale · scores + bias) have the mean `click_rate`.

    If these are the true click probabilities, a model that predicts them has the expected AUC `best_auc`.
    """
    ordered = np.sort(scores)
    # Bounds of the scale, which is found by bisection. At scale 0.1, clicks are almost pure chance. At scale 10, the
    # scores almost determine them.
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
    """Return the expected AUC of a model that predicts the true click probabilities, `ordered` [n], ascending.

    With these probabilities p, the expected AUC is Σ_i p_i Σ_{j<i} (1 - p_j) / Σ_{i≠j} p_i (1 - p_j): the probability
    that a random click has a higher score than a random row without a click.
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
    """Return the key [1] that selects the hash function for one purpose (`_EFFECT` and so on) and one field.

    Fields are numbered: numeric fields first, then categorical ones.
    """
    key = mix64(np.array([seed], dtype=np.uint64) + GOLDEN)
    return mix64(key + np.uint64(field * 16 + purpose) + GOLDEN)


def _hashed_vector(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a random vector of L numbers for each of `values` [n], as an array [n, L].

    The numbers are uniform with mean 0 and variance 1. Each is made from 16 bits of the value's hash.
    """
    bits = hash_values(key, values)
    columns = [(bits >> np.uint64(16 * column)) & np.uint64(0xFFFF) for column in range(LATENT_WIDTH)]
    return (np.stack(columns, axis=1) * 2.0**-15 - 1) * UNIT_UNIFORM
