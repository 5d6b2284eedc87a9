"""Define the distribution of the synthetic log's fields: missing cells and values.

It is built from published figures of the real log (configs/data/criteo_facts.json), and from value counts fitted to
them (configs/data/criteo_shape.json, by the command that the file names). All rows are drawn from the same
distribution. Because its tails are long, new values still appear late in a log of any length, at the real log's rate
(`unseen_in_last_seventh…` in the facts).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
