"""Define the distribution of the synthetic log: its fields, their changes over time, and its clicks.

Missing cells and values are built from published figures of the real log (configs/data/criteo_facts.json), and from
value counts fitted to them (configs/data/criteo_shape.json, by the command that the file names). All rows are drawn
from the same distribution. Because its tails are long, new values still appear late in a log of any length, at the real
log's rate (`unseen_in_last_seventh…` in the facts).

`Drift` changes a log over time: which value has each rank, and what its effect is.

    row number -> time -> value of each rank at that time -> effect of the value at that time

Traffic and click rate have a daily rhythm. Some values die, and other values take their ranks. A part of each
value's effect is a slow random walk. On `SHOCK_DAY` two fields get new effects, and the click rate falls. Everything
is a pure function of (seed, row), so a longer log starts with the rows of a shorter one.

`PlantedClicks` gives each row the log odds of a click.

    log odds = bias + frequent values + rare values + interactions + numbers

Each value of a categorical field adds its own effect, which belongs to `frequent` or `rare` values by the value's
share of the rows. A few fields interact in pairs, by the inner product of latent vectors (`interactions`; a
factorization machine, Rendle 2010, eq. 1). Each number adds a line and a wave, or a constant if it is missing. All
effects are hashes of (seed, field, value), so that ten million values need no table. The weights of the four parts
are solved on separate rows, such that click rate, best possible AUC and the parts' shares of the variance are the
same for every seed.

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
EXACT_RANKS = 300  # Number of most frequent values that have a bin of their own.
TAIL_BINS = 600  # Number of bins, of equal width in log rank, for all other values.
QUANTILES = (0.01, 0.25, 0.50, 0.75, 0.99)


@dataclass(frozen=True)
class ValueShape:
    """Distribution of one categorical field over its values. Values are named by rank; the most frequent one is 0.

    `edges` [b + 1] divide the ranks into bins. Each value of a bin has the same share of all rows, `share_of_bin`
    [b]. `cumulative` [b + 1] is the share of rows below each edge, among the rows in which the field is present.
    """

    edges: np.ndarray
    share_of_bin: np.ndarray
    cumulative: np.ndarray

    @classmethod
    def from_knots(cls, ranks: np.ndarray, shares: np.ndarray, live: float) -> ValueShape:
        """Interpolate linearly in (log rank, log share) between knots. Ranks count from 1.

        `live` is the share of rows in which the field is not missing. The most frequent value keeps its share; all
        other shares are scaled so that the sum is `live`.
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
        """Return ranks [n] int64 for uniform random numbers [n] in [0, 1)."""
        # Values of a bin have equal shares, so the rank is linear in the cumulative share.
        return np.interp(uniform, self.cumulative, self.edges).astype(np.int64)

    def share(self, ranks: np.ndarray) -> np.ndarray:
        """Return the share of all rows that have each rank [n].

        For a missing value it is that of the most frequent value.
        """
        return self.share_of_bin[np.searchsorted(self.edges, np.maximum(ranks, 0), side="right") - 1]


@dataclass(frozen=True)
class NumberShape:
    """Quantile function of one numeric field.

    It interpolates linearly between `log_values` [k], on the scale of `signed_log`, at `positions` [k]. Below 1 %
    and above 99 % it is linear in the log of the remaining share, so that minimum and maximum occur once in the
    whole log and not in every sample.
    """

    positions: np.ndarray
    log_values: np.ndarray

    @classmethod
    def from_facts(cls, quantiles: list[int], minimum: int, maximum: int, log_rows: int) -> NumberShape:
        """Interpolate between the published quantiles (at `QUANTILES`) and the extremes of `log_rows` rows."""
        positions = _stretched(np.array([1 / log_rows, *QUANTILES, 1 - 1 / log_rows]))
        return cls(positions, signed_log(np.array([minimum, *quantiles, maximum])))

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Return values [n] int64 for uniform random numbers [n] in [0, 1)."""
        log_values = np.interp(_stretched(uniform), self.positions, self.log_values)
        values = np.copysign(np.expm1(np.abs(log_values)), log_values)
        return np.rint(values).astype(np.int64)

    def standardize(self, values: np.ndarray) -> np.ndarray:
        """Return values [n] on a scale on which most lie within -1 … 1.

        It is (signed log of the value - signed log of the median), divided by half the range from 1 % to 99 %.
        """
        center, half_way = self.log_values[3], (self.log_values[5] - self.log_values[1]) / 2
        return (signed_log(values) - center) / half_way


@dataclass(frozen=True)
class LogShape:
    """Distribution of all fields.

    `missing_groups` lists fields that are missing together. Fields are numbered, numeric ones first.
    """

    numbers: tuple[NumberShape, ...]
    values: tuple[ValueShape, ...]
    missing_groups: tuple[tuple[int, ...], ...]
    missing_shares: tuple[float, ...]  # Share of rows in which each group is missing.
    click_rate: float

    def value_shares(self, ranks: np.ndarray) -> np.ndarray:
        """Return the share of all rows that have the same value as each cell, [C, n]. `ranks` is [C, n]."""
        return np.stack([value.share(of_field) for value, of_field in zip(self.values, ranks, strict=True)])

    @property
    def num_uniforms(self) -> int:
        """Number of uniform random numbers that `draw_fields` needs per row."""
        return len(self.numbers) + len(self.values) + len(self.missing_groups)


def signed_log(values: np.ndarray) -> np.ndarray:
    """Return sign(x) · log(1 + |x|), a logarithm that accepts zero and negative counts."""
    return np.copysign(np.log1p(np.abs(values)), values)


def load_shape() -> LogShape:
    """Read the shape of the real log from the two files in configs/data."""
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
    """Draw one row for each column of `uniforms` [shape.num_uniforms, n].

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
    """Stretch the first and the last hundredth of positions in (0, 1) logarithmically.

    The function is 0.01 - log10(0.01 / u) below 0.01, 0.99 + log10(0.01 / (1 - u)) above 0.99, and the identity in
    between. It is continuous.
    """
    edge = QUANTILES[0]
    low = edge + np.log10(np.clip(positions, 1e-12, edge) / edge)
    high = (1 - edge) - np.log10(np.clip(1 - positions, 1e-12, edge) / edge)
    return np.where(positions < edge, low, np.where(positions > 1 - edge, high, positions))


START = np.datetime64("2014-01-01T00:00:00", "s")
MAX_DAYS = 180  # Longest log. After more days the codes of values could collide.
# Amplitudes of the daily rhythms: of rows per second relative to the mean, and of the log odds.
TRAFFIC_RHYTHM, CLICK_RHYTHM = 0.6, 0.2
MORTAL_SHARE = 0.3  # Share of the values of a field that die.
SHORTEST_LIFE, LONGEST_LIFE = 3.0, 100.0  # Range of a value's life in days. Its logarithm is uniform.
WALKING_SHARE = 0.3  # Share of an effect's variance that changes over time. The rest stays constant.
# Days between the knots of a random walk -> share of the walk's variance. A sum of several walks changes at all time
# scales.
KNOTS = {16.0: 0.6, 4.0: 0.4}
SHOCK_DAY, SHOCK_LOGIT = 15, -0.3
SHOCK_FIELDS = tuple(CATEGORICAL_NAMES.index(name) for name in ("C9", "C17"))
_AFTER_SHOCK = 1 << 40  # This number is added to a value to give it another effect.
UNIT_UNIFORM = np.sqrt(3.0)  # Uniform numbers in [-√3, √3] have variance 1.


@dataclass(frozen=True)
class Drift:
    """The changes of the synthetic log with this `seed`, which has `rows_per_day` rows per day on average."""

    seed: int
    rows_per_day: int

    def days(self, row_numbers: np.ndarray) -> np.ndarray:
        """Return the time of each row [n] in days since the log's start.

        Traffic is highest at noon, lowest at midnight.
        """
        hours = np.linspace(0, 1, 24 * 12 + 1)
        rows_until = hours - TRAFFIC_RHYTHM * np.sin(2 * np.pi * hours) / (2 * np.pi)
        whole, part = np.divmod(row_numbers / self.rows_per_day, 1)
        return whole + np.interp(part, rows_until, hours)

    def logits(self, days: np.ndarray) -> np.ndarray:
        """Return what the time adds to the log odds [n]. People click most at eight in the evening."""
        return CLICK_RHYTHM * np.cos(2 * np.pi * (days - 20 / 24)) + SHOCK_LOGIT * (days >= SHOCK_DAY)

    def values(self, shape: LogShape, ranks: np.ndarray, days: np.ndarray) -> np.ndarray:
        """Return the values [C, n] that have the given ranks at the given time.

        On the first day, a value's number is its rank.
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
        """Return the effects [n] of a categorical field's values at the given time.

        Over values they have mean 0 and variance 1.
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
    """Return the hashes [n] of values [n] with a key, [1] or [n]."""
    return mix64(values.astype(np.uint64) * np.uint64(0xD1342543DE82EF95) + key + GOLDEN)


def hashed_unit(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return uniform numbers [n] in [0, 1) that depend only on (key, value)."""
    return (hash_values(key, values) >> np.uint64(11)) * 2.0**-53


def hashed_uniform(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return uniform numbers [n] with mean 0 and variance 1 that depend only on (key, value)."""
    return (2 * hashed_unit(key, values) - 1) * UNIT_UNIFORM


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
