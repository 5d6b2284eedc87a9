"""AUC within each value of one field, and their mean weighted by rows ("GAUC": Zhu et al., KDD 2017).

A ranking is of use among rows that compete with each other; AUC over all rows also rewards knowing which groups click.

Rows are counted by (value's id, logit). Up to `most_cells` such pairs are told apart and every AUC is exact; beyond
that logits are rounded, a bit at a time, until they fit; logits that fall together are ties.

Letters: n rows, G values of the field.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.evaluation.score_bins import ordered_bits

MOST_CELLS = 2**23  # 24 bytes each
PENDING_ROWS = 2**22
COARSEST_SHIFT = 23  # sign and exponent are left of a float32
MOST_IDS = 2**32


@dataclass(frozen=True)
class GroupedAuc:
    """`ids` [G] of the field's values, by falling rows; of each `rows`, `clicks` and `auc` (NaN: one class only)."""

    ids: np.ndarray
    rows: np.ndarray
    clicks: np.ndarray
    auc: np.ndarray

    @property
    def weighted_mean(self) -> float:
        """Σ rows · AUC / Σ rows over the values that have both classes; NaN where none has."""
        both = ~np.isnan(self.auc)
        return float(np.average(self.auc[both], weights=self.rows[both])) if both.any() else float("nan")

    @property
    def rows_covered(self) -> float:
        """The share of rows whose value has both classes."""
        return float(self.rows[~np.isnan(self.auc)].sum() / self.rows.sum())


class GroupedAucStream:
    """Takes a field's ids, logits and labels batch by batch; `result` gives the AUC of each id."""

    def __init__(self, most_cells: int = MOST_CELLS) -> None:
        self._most_cells = most_cells
        self._shift = 0
        self._pending: list[tuple[np.ndarray, np.ndarray]] = []  # cells of rows, and their labels
        self._num_pending = 0
        self._cells = np.zeros(0, np.uint64)  # id, then the logit's 32 bits in its order; ascending
        self._negatives = np.zeros(0, np.int64)
        self._positives = np.zeros(0, np.int64)

    def add(self, ids: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> None:
        """`ids` [n] whole numbers of 0 … 2**32 - 1, `logits` [n] finite float32, `labels` [n] 0 or 1."""
        if len(ids) and int(ids.max()) >= MOST_IDS:
            raise ValueError(f"AUC per value is for ids below 2**32, found {ids.max()}")
        cells = ids.astype(np.uint64) << np.uint64(32) | ordered_bits(logits).astype(np.uint64)
        self._pending.append((cells, labels.astype(bool)))
        self._num_pending += len(ids)
        if self._num_pending >= PENDING_ROWS:
            self._count()

    def merge(self, other: GroupedAucStream) -> None:
        """Take in the rows of another stream; logits are then as coarse as those of the coarser one."""
        self._count()
        other._count()
        self._shift = max(self._shift, other._shift)
        self._put_together(
            np.concatenate([self._cells, other._cells]),
            np.concatenate([self._negatives, other._negatives]),
            np.concatenate([self._positives, other._positives]),
        )

    def result(self) -> GroupedAuc:
        """The AUC of each id so far."""
        self._count()
        ids, starts, sizes = np.unique(self._cells >> np.uint64(32), return_index=True, return_counts=True)
        if not len(ids):
            return GroupedAuc(ids.astype(np.int64), *(np.zeros(0, np.int64),) * 2, np.zeros(0))
        negatives, positives = (np.add.reduceat(counts, starts) for counts in (self._negatives, self._positives))
        before = np.cumsum(self._negatives) - self._negatives
        below = before - np.repeat(before[starts], sizes)
        above = np.add.reduceat(self._positives * (below + 0.5 * self._negatives), starts)
        pairs = negatives.astype(np.float64) * positives
        auc = np.divide(above, pairs, out=np.full(len(ids), np.nan), where=pairs > 0)
        order = np.argsort(-(negatives + positives), kind="stable")
        return GroupedAuc(ids.astype(np.int64)[order], (negatives + positives)[order], positives[order], auc[order])

    def _count(self) -> None:
        """Count the pending rows among the cells."""
        if not self._pending:
            return
        cells, labels = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._num_pending = [], 0
        self._put_together(
            np.concatenate([self._cells, cells]),
            np.concatenate([self._negatives, ~labels]),
            np.concatenate([self._positives, labels]),
        )

    def _put_together(self, cells: np.ndarray, negatives: np.ndarray, positives: np.ndarray) -> None:
        """Sum the counts of equal cells, on logits rounded until there are few enough of them."""
        while True:
            shift = np.uint64(self._shift)
            self._cells, inverse = np.unique(cells >> shift << shift, return_inverse=True)
            self._negatives, self._positives = (
                np.bincount(inverse, counts, len(self._cells)).astype(np.int64) for counts in (negatives, positives)
            )
            if len(self._cells) <= self._most_cells or self._shift == COARSEST_SHIFT:
                return
            cells, negatives, positives = self._cells, self._negatives, self._positives
            self._shift += 1
