"""The shape of the synthetic log: how often a field is missing and how its values spread.

Built from the published figures of the real log (configs/data/criteo_facts.json) and from the value counts
that were fitted to them (configs/data/criteo_shape.json, by benchmarks/accuracy/fit_synthetic_shape.py). Every row is
drawn from the same distribution: new values arrive late in the log because the tails are long, at
the real log's rate (see `unseen_in_last_seventh…` in the facts), whatever the number of rows.

Letters: N numeric fields, C categorical fields, n rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FACTS_FILE = Path(__file__).parents[2] / "configs" / "data" / "criteo_facts.json"
SHAPE_FILE = FACTS_FILE.with_name("criteo_shape.json")
NUM_NUMERIC = 13
NUM_CATEGORICAL = 26
MISSING_RANK = -1
EXACT_RANKS = 300  # a bin of its own for each of the most frequent values …
TAIL_BINS = 600  # … and this many bins, of even width in log rank, for all others
QUANTILES = (0.01, 0.25, 0.50, 0.75, 0.99)


@dataclass(frozen=True)
class ValueShape:
    """How the rows spread over the values of one categorical field, which are known by their rank.

    Rank 0 is the most frequent value. `edges` [b + 1] cut the ranks into bins, whose values have the same
    share of all rows, `share_of_bin` [b]; `cumulative` [b + 1] is the share of the rows, among those where
    the field is not missing, that lies below each edge. `rescaled` is what the knots' shares had to be
    divided by to add up.
    """

    knot_ranks: np.ndarray
    knot_shares: np.ndarray
    edges: np.ndarray
    share_of_bin: np.ndarray
    cumulative: np.ndarray
    rescaled: float

    @classmethod
    def from_knots(cls, ranks: np.ndarray, shares: np.ndarray, live: float) -> ValueShape:
        """Straight lines over (log rank, log share) through the knots, ranks counted from 1.

        `live` is the share of the rows where the field is not missing. The top value's share is kept as it
        is, all others are scaled so that the sum is `live`.
        """
        last = int(ranks[-1])
        first_bins = np.arange(1, min(last, EXACT_RANKS) + 1)
        tail = np.geomspace(first_bins[-1] + 1, last + 1, TAIL_BINS).round() if last > EXACT_RANKS else [last + 1]
        edges = np.unique(np.concatenate([first_bins, tail])).astype(np.float64)
        values = np.diff(edges)
        middle = np.sqrt(edges[:-1] * (edges[1:] - 1))
        share = np.exp(np.interp(np.log(middle), np.log(ranks), np.log(shares)))
        rescaled = float((share * values)[1:].sum() / (live - share[0]))
        share[1:] /= rescaled
        cumulative = np.concatenate([[0], np.cumsum(share * values)]) / live
        return cls(ranks, shares, edges - 1, share, cumulative / cumulative[-1], rescaled)

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Ranks [n] int64 for uniform numbers [n] of [0, 1)."""
        # A value's share is even within its bin, so the rank is a straight line of the cumulative share.
        return np.interp(uniform, self.cumulative, self.edges).astype(np.int64)

    def share(self, ranks: np.ndarray) -> np.ndarray:
        """Share [n] of all rows that each rank [n] holds; missing counts as frequent as the top value."""
        return self.share_of_bin[np.searchsorted(self.edges, np.maximum(ranks, 0), side="right") - 1]


@dataclass(frozen=True)
class NumberShape:
    """The quantile function of one numeric field: `log_values` [k] at `positions` [k], linear between.

    Values are taken in `signed_log`. The outer parts (below 1 % and above 99 %) are straight in the
    log of the remaining share instead, so that minimum and maximum are met once in the whole log and not
    in every sample.
    """

    positions: np.ndarray
    log_values: np.ndarray
    minimum: int
    maximum: int

    @classmethod
    def from_facts(cls, quantiles: list[int], minimum: int, maximum: int, log_rows: int) -> NumberShape:
        """From the published quantiles (of `QUANTILES`) and extremes of `log_rows` rows."""
        positions = _stretched(np.array([1 / log_rows, *QUANTILES, 1 - 1 / log_rows]))
        return cls(positions, signed_log(np.array([minimum, *quantiles, maximum])), minimum, maximum)

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Values [n] int64 for uniform numbers [n] of [0, 1)."""
        log_values = np.interp(_stretched(uniform), self.positions, self.log_values)
        values = np.copysign(np.expm1(np.abs(log_values)), log_values)
        return np.rint(values).astype(np.int64)

    def standardize(self, values: np.ndarray) -> np.ndarray:
        """About -1 … 1 for most values: (signed log - median's) / (half the way from 1 % to 99 %)."""
        center, half_way = self.log_values[3], (self.log_values[5] - self.log_values[1]) / 2
        return (signed_log(values) - center) / half_way


@dataclass(frozen=True)
class LogShape:
    """What the log's fields look like; `missing_groups` are the fields (numeric first) missing together."""

    numbers: tuple[NumberShape, ...]
    values: tuple[ValueShape, ...]
    missing_groups: tuple[tuple[int, ...], ...]
    missing_shares: tuple[float, ...]  # of each group
    click_rate: float

    def value_shares(self, ranks: np.ndarray) -> np.ndarray:
        """Share of all rows that the value of each cell holds [C, n]; `ranks` [C, n]."""
        return np.stack([value.share(of_field) for value, of_field in zip(self.values, ranks, strict=True)])

    @property
    def num_uniforms(self) -> int:
        """Uniform numbers that `draw_fields` takes a row."""
        return len(self.numbers) + len(self.values) + len(self.missing_groups)


def signed_log(values: np.ndarray) -> np.ndarray:
    """sign(x) · log(1 + |x|): the logarithm that lets zero and negative counts in."""
    return np.copysign(np.log1p(np.abs(values)), values)


def numeric_names() -> list[str]:
    """I1 … I13."""
    return [f"I{i}" for i in range(1, NUM_NUMERIC + 1)]


def categorical_names() -> list[str]:
    """C1 … C26."""
    return [f"C{i}" for i in range(1, NUM_CATEGORICAL + 1)]


def load_shape() -> LogShape:
    """The real log's shape from the two data files of configs/data."""
    facts = json.loads(FACTS_FILE.read_text(encoding="utf-8"))
    knots = json.loads(SHAPE_FILE.read_text(encoding="utf-8"))["values"]
    integer, categorical = facts["integer"], facts["categorical"]
    groups = _missing_groups(facts)
    missing = np.array(integer["missing_percent"] + categorical["missing_percent"]) / 100
    extremes = zip(integer["quantiles_1_25_50_75_99"], integer["min"], integer["max"], strict=True)
    return LogShape(
        numbers=tuple(NumberShape.from_facts(*field, log_rows=facts["rows"]) for field in extremes),
        values=tuple(
            ValueShape.from_knots(np.array(knots[name]["ranks"]), np.array(knots[name]["shares"]), 1 - share)
            for name, share in zip(categorical_names(), missing[NUM_NUMERIC:], strict=True)
        ),
        missing_groups=groups,
        missing_shares=tuple(float(missing[group[0]]) for group in groups),
        click_rate=facts["clicks"] / facts["rows"],
    )


def draw_fields(shape: LogShape, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One log row for each column of `uniforms` [shape.num_uniforms, n].

    Returns numbers [N, n] int64, ranks [C, n] int64 (`MISSING_RANK` where missing) and which numbers are
    missing [N, n] bool.
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


def _missing_groups(facts: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    names = numeric_names() + categorical_names()
    together = [tuple(names.index(name) for name in group) for group in facts["missing_together"]]
    grouped = {field for group in together for field in group}
    missing = facts["integer"]["missing_percent"] + facts["categorical"]["missing_percent"]
    alone = [(field,) for field in range(len(names)) if missing[field] > 0 and field not in grouped]
    return (*together, *alone)


def _stretched(positions: np.ndarray) -> np.ndarray:
    """Positions of (0, 1) with the first and the last hundredth drawn out to the log of what is left.

    Steady, and the identity in between: 0.01 - log10(0.01 / u) below, 0.99 + log10(0.01 / (1 - u)) above.
    """
    edge = QUANTILES[0]
    low = edge + np.log10(np.clip(positions, 1e-12, edge) / edge)
    high = (1 - edge) - np.log10(np.clip(1 - positions, 1e-12, edge) / edge)
    return np.where(positions < edge, low, np.where(positions > 1 - edge, high, positions))
