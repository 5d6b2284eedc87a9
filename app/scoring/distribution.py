"""Count the held-out rows of a model, so that rows scored later can be compared with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from app.scoring.bundle_model import DISTRIBUTION, BundleModel
from data_prep.prepared.schema import Schema

SCORE_BINS = 20
# Bins for the values of a field: one for unknown values, then one per power of 2 of the value's frequency rank.
VALUE_BINS = 34
NUMBER_BINS = 33  # Bins for a numeric column: one for zero, then by sign and power of 2.
# Lower bound for the share of a bin, because an empty bin would make the PSI infinite.
_LEAST_SHARE = 1e-4


class Distribution:
    """Counts of rows by score, by the values of each field, and by the numbers of each numeric column."""

    def __init__(self, schema: Schema) -> None:
        """Start with no rows. `schema` describes the fields and numeric columns."""
        fields = schema.categorical
        self.names = [field.name for field in fields] + [field.name for field in schema.numeric]
        of_position = np.repeat(np.arange(len(fields)), [field.max_length for field in fields])
        self._field = of_position
        self._unknown = np.array([field.oov_ids for field in fields], np.int64)[of_position]  # [P, 2]
        first = [field.id_ranges[0][0] if field.id_ranges else field.oov_ids[0] for field in fields]
        self._first = np.array(first, np.int64)[of_position]
        self.scores = np.zeros(SCORE_BINS, np.int64)
        self.values = np.zeros((len(fields), VALUE_BINS), np.int64)
        self.numbers = np.zeros((schema.num_numeric, NUMBER_BINS), np.int64)

    @property
    def num_rows(self) -> int:
        """Number of rows counted so far."""
        return int(self.scores.sum())

    def add(self, ids: np.ndarray, numeric: np.ndarray, logits: np.ndarray) -> None:
        """Count n rows: `ids` [n, P] (-1 fills a list after its last value), `numeric` [n, N] and `logits` [n]."""
        self.scores += count_scores(logits)
        is_unknown = (ids >= self._unknown[:, 0]) & (ids < self._unknown[:, 1])
        rank = np.maximum(ids - self._first, 0) + 1
        bins = np.where(is_unknown, 0, np.frexp(rank.astype(np.float64))[1].clip(1, VALUE_BINS - 1))
        _count(self.values, (self._field * VALUE_BINS + bins)[ids >= 0])
        power = np.frexp(np.abs(numeric))[1].clip(-7, 8) + 8
        bins = np.where(numeric == 0, 0, power + 16 * (numeric < 0))
        _count(self.numbers, (np.arange(numeric.shape[1]) * NUMBER_BINS + bins).reshape(-1))

    def drift_from(self, expected: Distribution) -> list[dict[str, Any]]:
        """Return the drift of each field and numeric column from `expected`, sorted by PSI, largest first.

        For fields, the shares of unknown values in both distributions are included.
        """
        psi = [*stability_index(self.values, expected.values), *stability_index(self.numbers, expected.numbers)]
        unseen, there = (_shares(counts.values)[:, 0] for counts in (self, expected))
        drifts: list[dict[str, Any]] = []
        for place, name in enumerate(self.names):
            is_field = place < len(unseen)
            shares = (float(unseen[place]), float(there[place])) if is_field else (None, None)
            drifts.append({"field": name, "psi": float(psi[place]), "unseen": shares[0], "unseen_there": shares[1]})
        return sorted(drifts, key=lambda field: -field["psi"])

    def write(self, folder: Path) -> None:
        """Write the counts into a bundle."""
        counts = {name: getattr(self, name).tolist() for name in ("scores", "values", "numbers")}
        (folder / DISTRIBUTION).write_text(json.dumps(counts) + "\n", encoding="utf-8")


def count_scores(logits: np.ndarray) -> np.ndarray:
    """Count the logits [n] in SCORE_BINS bins of equal width of the click probability."""
    bins = (SCORE_BINS / (1 + np.exp(-logits.astype(np.float64)))).astype(np.int64)
    return np.bincount(bins.clip(0, SCORE_BINS - 1), minlength=SCORE_BINS)


def held_out_rows(model: BundleModel) -> Distribution | None:
    """Return the counts of a bundle's held-out rows, or None if the bundle has none or they do not fit its fields."""
    if not model.held_out_counts:
        return None
    distribution = Distribution(model.schema)
    for name, counts in model.held_out_counts.items():
        if counts.shape != getattr(distribution, name).shape:
            return None
        setattr(distribution, name, counts)
    return distribution


def _count(counts: np.ndarray, bins: np.ndarray) -> None:
    counts += np.bincount(bins, minlength=counts.size).reshape(counts.shape)


def _shares(counts: np.ndarray) -> np.ndarray:
    shares: np.ndarray = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def stability_index(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return the population stability index (PSI) [k] between counts `here` and `there`, [k, bins] each.

    PSI = Σ (p - q) ln(p / q) over the bins, where p and q are the shares in `here` and `there`.
    """
    p, q = (np.maximum(_shares(counts), _LEAST_SHARE) for counts in (here, there))
    psi: np.ndarray = ((p - q) * np.log(p / q)).sum(axis=1)
    return psi
