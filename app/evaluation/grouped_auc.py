"""AUC within each value of one field, and their mean weighted by rows ("GAUC": Zhu et al., KDD 2017).

A ranking matters among rows that compete with each other. AUC over all rows also rewards knowing which groups click.
Rows whose value is missing, or has no id of its own, belong to no group. They are left out and counted.

Rows are counted by cell: (id of the value, logit). Up to `most_cells` cells every AUC is exact. Beyond that, logits are
rounded, a bit at a time, until the cells fit. Logits that become equal are ties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.evaluation.score_bins import ordered_bits

MOST_CELLS = 2**23  # Upper bound of the cells in memory. A cell takes 24 bytes.
PENDING_ROWS = 2**22
COARSEST_SHIFT = 23  # Largest rounding of logits: only sign and exponent of the float32 remain.
MOST_IDS = 2**32


@dataclass(frozen=True)
class GroupedAuc:
    """Per value of the field [G], by falling number of rows: its id, rows, clicks and AUC (NaN: one class only).

    Rows and clicks are sums of weights if rows have weights. `left_out` is that of the rows without a group.
    """

    ids: np.ndarray
    rows: np.ndarray
    clicks: np.ndarray
    auc: np.ndarray
    left_out: float = 0

    @property
    def weighted_mean(self) -> float:
        """The mean AUC of the values that have both classes, weighted by rows. NaN if no value has both."""
        both = ~np.isnan(self.auc)
        return float(np.average(self.auc[both], weights=self.rows[both])) if both.any() else float("nan")

    @property
    def rows_covered(self) -> float:
        """The fraction of rows whose value has both classes."""
        return float(self.rows[~np.isnan(self.auc)].sum() / (self.rows.sum() + self.left_out))

    @property
    def share_left_out(self) -> float:
        """The fraction of rows without a group."""
        return float(self.left_out / (self.rows.sum() + self.left_out)) if self.left_out else 0.0


class GroupedAucStream:
    """Collects ids, logits and labels batch by batch. `result` computes the AUC of each id."""

    def __init__(self, most_cells: int = MOST_CELLS) -> None:
        self._most_cells = most_cells
        self._shift = 0
        # Arrays of cells, and of the weights of rows with label 0 and label 1.
        self._pending: list[tuple[np.ndarray, ...]] = []
        self._num_pending = 0
        self._left_out = 0.0  # rows, or the sum of their weights
        self._cells = np.zeros(0, np.uint64)  # ascending; the id above the 32 `ordered_bits` of the logit
        self._negatives: np.ndarray = np.zeros(0, np.int64)
        self._positives: np.ndarray = np.zeros(0, np.int64)

    def add(
        self,
        ids: np.ndarray,
        logits: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None = None,
        has_group: np.ndarray | None = None,
    ) -> None:
        """Add rows: `ids` [n] integers in 0 … 2**32 - 1, `logits` [n] finite float32, `labels` [n] 0 or 1.

        `weights` [n] >= 0 are of every row or of none. Rows of weight 0 do not count. Rows for which `has_group` [n] is
        False are left out. Without it all have a group.
        """
        if has_group is not None:
            others = ~has_group
            self._left_out += float(others.sum() if weights is None else weights[others].sum(dtype=np.float64))
            ids, logits, labels = ids[has_group], logits[has_group], labels[has_group]
            weights = None if weights is None else weights[has_group]
        if weights is not None:
            ids, logits, labels, weights = (values[weights > 0] for values in (ids, logits, labels, weights))
            self._negatives, self._positives = (each.astype(np.float64) for each in (self._negatives, self._positives))
        if len(ids) and int(ids.max()) >= MOST_IDS:
            raise ValueError(f"AUC per value needs ids below 2**32, found {ids.max()}")
        cells = ids.astype(np.uint64) << np.uint64(32) | ordered_bits(logits).astype(np.uint64)
        clicked = labels.astype(bool)
        counted = (~clicked, clicked) if weights is None else (weights * ~clicked, weights * clicked)
        self._pending.append((cells, *counted))
        self._num_pending += len(ids)
        if self._num_pending >= PENDING_ROWS:
            self._count()

    def result(self) -> GroupedAuc:
        """Return the AUC of each id added so far."""
        self._count()
        ids, starts, sizes = np.unique(self._cells >> np.uint64(32), return_index=True, return_counts=True)
        if not len(ids):
            return GroupedAuc(ids.astype(np.int64), *(np.zeros(0, np.int64),) * 2, np.zeros(0), self._left_out)
        negatives, positives = (np.add.reduceat(counts, starts) for counts in (self._negatives, self._positives))
        before = np.cumsum(self._negatives) - self._negatives
        below = before - np.repeat(before[starts], sizes)
        above = np.add.reduceat(self._positives * (below + 0.5 * self._negatives), starts)
        pairs = negatives.astype(np.float64) * positives
        auc = np.divide(above, pairs, out=np.full(len(ids), np.nan), where=pairs > 0)
        order = np.argsort(-(negatives + positives), kind="stable")
        rows = (negatives + positives)[order]
        return GroupedAuc(ids.astype(np.int64)[order], rows, positives[order], auc[order], self._left_out)

    def _count(self) -> None:
        """Count the pending rows into cells, and round logits further until there are at most `most_cells` cells."""
        if not self._pending:
            return
        pending_cells, *counted = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._num_pending = [], 0
        cells = np.concatenate([self._cells, pending_cells])
        dtype = self._negatives.dtype
        negatives = np.concatenate([self._negatives, counted[0]])
        positives = np.concatenate([self._positives, counted[1]])
        while True:
            shift = np.uint64(self._shift)
            cells, inverse = np.unique(cells >> shift << shift, return_inverse=True)
            negatives, positives = (
                np.bincount(inverse, counts, len(cells)).astype(dtype) for counts in (negatives, positives)
            )
            if len(cells) <= self._most_cells or self._shift == COARSEST_SHIFT:
                break
            self._shift += 1
        self._cells, self._negatives, self._positives = cells, negatives, positives


class KeyNumbers:
    """Numbers 64-bit keys 0, 1, … in the order in which they first occur. Grouped AUC counts keys by these numbers."""

    def __init__(self) -> None:
        self._keys = np.zeros(0, np.int64)  # Ascending keys.
        self._numbers = np.zeros(0, np.int64)

    def of(self, keys: np.ndarray) -> np.ndarray:
        """Return the number of each key in `keys` [n] int64. New keys get the next numbers."""
        distinct, inverse = np.unique(keys, return_inverse=True)
        new = np.setdiff1d(distinct, self._keys, assume_unique=True)
        everything = np.concatenate([self._keys, new])
        order = np.argsort(everything)
        self._numbers = np.concatenate([self._numbers, len(self._keys) + np.arange(len(new))])[order]
        self._keys = everything[order]
        numbers: np.ndarray = self._numbers[np.searchsorted(self._keys, distinct)][inverse]
        return numbers

    def keys_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the keys with the given numbers."""
        keys: np.ndarray = self._keys[np.argsort(self._numbers)][numbers]
        return keys
