"""Count rows in bins of their scores, values and numbers, and sum how far their vectors are from the training mean. A
bundle stores the counts of the rows on which it was evaluated (held-out rows), and the counts of rows that are scored
later are compared with these counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from app.scoring.bundle_model import DISTRIBUTION, BundleModel
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import PIECE, Schema, vector_distances, vector_slices

SCORE_BINS = 20
# Bins for the values of a field: bin 0 for unknown values, then bin k for values whose rank by frequency is from
# 2^(k-1) to 2^k - 1.
VALUE_BINS = 34
# Number of bins for the numbers of a numeric column after its transform (such as standardization): bin 0 for zero, then
# 16 bins by power of 2 for positive numbers and 16 for negative numbers.
NUMBER_BINS = 33
# Least share of the rows that a bin is taken to have. A lower share is replaced by this least share, because an empty
# bin would make the population stability index infinite.
_LEAST_SHARE = 1e-4
CHANGE = 0.25  # A population stability index (PSI) above this counts as a change of the distribution.
# No PSI is reported if the PSI that chance alone is expected to cause exceeds this value. Up to this value, a PSI
# caused by chance stays below CHANGE in 999 of 1,000 cases.
_MOST_BY_CHANCE = CHANGE / 5


COUNTS = ("scores", "values", "numbers", "vectors")  # Names of the arrays of `Distribution`.


class Distribution:
    """Counts of rows in bins: of the score (`scores`), of each categorical field's values (`values`), and of each
    numeric column's numbers after its transform (`numbers`).

    For each vector, `vectors` float64 [F, 2] has the sum of the distances of the rows' vectors from the training mean,
    and the number of rows without the vector.
    """

    def __init__(self, schema: Schema) -> None:
        """Start with no rows counted. `schema` says which fields and numeric columns the rows have."""
        fields = schema.categorical
        self.names = [field.name for field in fields] + [field.name for field in schema.numeric]
        # Fields and numeric columns that depend on a column with the same value in all rows to score (`serve_as`), and
        # the pieces of numbers, which only repeat what the number's own column shows.
        served = schema.log_format.serve_as
        self._left_out = {each.name for each in schema.numeric if each.source in served or each.transform == PIECE}
        for field in fields:
            columns = {name for part in field.cross or (field.name,) for name in (part, part.removesuffix("_bucket"))}
            self._left_out |= {field.name} if columns & served.keys() else set()
        self.vector_fields = schema.vectors
        of_position = np.repeat(np.arange(len(fields)), [field.max_length for field in fields])
        self._field = of_position
        self._unknown = np.array([field.oov_ids for field in fields], np.int64)[of_position]  # [P, 2]
        first = [field.id_ranges[0][0] if field.id_ranges else field.oov_ids[0] for field in fields]
        self._first = np.array(first, np.int64)[of_position]
        self.scores = np.zeros(SCORE_BINS, np.int64)
        self.values = np.zeros((len(fields), VALUE_BINS), np.int64)
        self.numbers = np.zeros((schema.num_numeric, NUMBER_BINS), np.int64)
        self.vectors = np.zeros((len(schema.vectors), 2))

    @property
    def num_rows(self) -> int:
        """Number of rows that have been counted so far."""
        return int(self.scores.sum())

    def add(self, rows: Examples, logits: np.ndarray) -> None:
        """Add n encoded rows to the counts, given their `logits` [n]. A field with lists has a fixed number of
        positions in `rows.ids`. The entry -1 fills the positions that a shorter list leaves empty, and is not counted.
        """
        ids, numeric = rows.ids, rows.numeric
        self.scores += count_scores(logits)
        is_unknown = (ids >= self._unknown[:, 0]) & (ids < self._unknown[:, 1])
        rank = np.maximum(ids - self._first, 0) + 1
        bins = np.where(is_unknown, 0, np.frexp(rank.astype(np.float64))[1].clip(1, VALUE_BINS - 1))
        _count(self.values, (self._field * VALUE_BINS + bins)[ids >= 0])
        power = np.frexp(np.abs(numeric))[1].clip(-7, 8) + 8
        bins = np.where(numeric == 0, 0, power + 16 * (numeric < 0))
        _count(self.numbers, (np.arange(numeric.shape[1]) * NUMBER_BINS + bins).reshape(-1))
        for sums, field, part in zip(self.vectors, self.vector_fields, vector_slices(self.vector_fields), strict=True):
            is_missing = rows.vectors[:, part.stop] > 0
            sums += vector_distances(field, rows.vectors[~is_missing, part]).sum(), is_missing.sum()

    def vector_figures(self) -> np.ndarray:
        """Return two figures of each vector column, [F, 2]: the mean distance of its vectors from the training mean,
        and the share of rows without a vector.

        The distance of one vector is the root mean square of its components' distances in standard deviations, which is
        about 1 for rows like the training rows. The mean is 0 if all rows lack the vector.
        """
        sums, missing = self.vectors.T
        distances = sums / np.maximum(self.num_rows - missing, 1)
        return np.stack([distances, missing / max(self.num_rows, 1)], axis=1)

    def drift_from(self, expected: Distribution) -> list[dict[str, Any]]:
        """Return for each field, numeric column and vector how much its distribution in `self` differs from that in
        `expected`. The entry with the largest difference comes first.

        Each entry has the name (`field`), the population stability index (`psi`, see `stability_index`), and for a
        categorical field the shares of unknown values in `self` (`unseen`) and in `expected` (`unseen_there`). Both are
        None for a numeric column. `psi` is None if it could be large by chance, because there are few rows.

        The entry of a vector has these figures as None. It has the `vector_figures` `distance` and `missing`, and those
        in `expected` as `distance_there` and `missing_there`. It is sorted by the difference of the distances.

        Fields that depend on a column with the same value in all rows to score are left out, and so are pieces of
        numbers.
        """
        pairs = (self.values, expected.values), (self.numbers, expected.numbers)
        psi = [
            None if by_chance > _MOST_BY_CHANCE else float(index)
            for here, there in pairs
            for index, by_chance in zip(stability_index(here, there), expected_by_chance(here, there), strict=True)
        ]
        unseen, there = (_shares(counts.values)[:, 0] for counts in (self, expected))
        drifts: list[dict[str, Any]] = []
        for place, name in enumerate(self.names):
            if name in self._left_out:
                continue
            is_field = place < len(unseen)
            shares = (float(unseen[place]), float(there[place])) if is_field else (None, None)
            drifts.append({"field": name, "psi": psi[place], "unseen": shares[0], "unseen_there": shares[1]})
        vectors = zip(self.vector_fields, self.vector_figures(), expected.vector_figures(), strict=True)
        for field, ours, theirs in vectors:
            figures = zip(("distance", "missing", "distance_there", "missing_there"), [*ours, *theirs], strict=True)
            entry = {"field": field.name, "psi": None, "unseen": None, "unseen_there": None}
            drifts.append(entry | {name: float(figure) for name, figure in figures})
        return sorted(drifts, key=_size_of_drift, reverse=True)

    def write(self, folder: Path) -> None:
        """Write the counts as distribution.json into a bundle's folder."""
        # Leave out the key "vectors" if the log has no vectors, so that the file has the same bytes as in earlier
        # releases.
        counts = {name: getattr(self, name).tolist() for name in COUNTS if name != "vectors" or self.vector_fields}
        (folder / DISTRIBUTION).write_text(json.dumps(counts) + "\n", encoding="utf-8")


def _size_of_drift(entry: dict[str, Any]) -> float:
    return abs(entry.get("distance", 0.0) - entry.get("distance_there", 0.0)) + (entry["psi"] or 0.0)


def count_scores(logits: np.ndarray) -> np.ndarray:
    """Return how many of the `logits` [n] fall into each of SCORE_BINS bins, which divide click probabilities from 0 to
    1 equally, int64 [SCORE_BINS].
    """
    bins = (SCORE_BINS / (1 + np.exp(-logits.astype(np.float64)))).astype(np.int64)
    return np.bincount(bins.clip(0, SCORE_BINS - 1), minlength=SCORE_BINS)


def held_out_rows(model: BundleModel) -> Distribution | None:
    """Return the counts of the rows on which a bundle was evaluated. Return None if the bundle stores no counts, or if
    they have other shapes than its fields need.
    """
    if not model.held_out_counts:
        return None
    distribution = Distribution(model.schema)
    for name, counts in model.held_out_counts.items():
        expected = getattr(distribution, name)
        if counts.size != expected.size:
            return None
        # Reshape, because the counts of no fields are stored as [].
        setattr(distribution, name, counts.reshape(expected.shape))
    return distribution


def _count(counts: np.ndarray, bins: np.ndarray) -> None:
    counts += np.bincount(bins, minlength=counts.size).reshape(counts.shape)


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def stability_index(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return the population stability index (PSI), [k], between `here` and `there`, which hold the counts [k, bins] of
    k columns.

    PSI = Σ (p - q) ln(p / q) over the bins, where p and q are the bin's shares of all rows in `here` and `there`.
    Shares below _LEAST_SHARE are raised to it.
    """
    p, q = (np.maximum(_shares(counts), _LEAST_SHARE) for counts in (here, there))
    return ((p - q) * np.log(p / q)).sum(axis=1)


def expected_by_chance(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return the expected PSI [k] of counts [k, bins] of rows that are drawn from the same distribution.

    Near p = q, PSI is a sum of (p - q)² / q, which is χ² / n. Its expectation for samples of n and m rows is therefore
    (bins - 1) (1 / n + 1 / m).
    """
    num_here, num_there = (np.maximum(counts.sum(axis=1), 1) for counts in (here, there))
    return (here.shape[1] - 1) * (1 / num_here + 1 / num_there)
