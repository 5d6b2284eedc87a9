"""Count rows by group, and rank them within each group. A group is one value of a field, such as a user.

AUC within groups measures how well a model ranks rows that compete with each other, such as the ads for one user. AUC
over all rows also rewards a model that only knows which users click often. Rows whose value is missing, or has no id of
its own, belong to no group. They are left out, and their number is recorded.

A cell is a pair (id of the group, logit), and rows are counted by cell. With up to `most_cells` distinct cells, logits
are exact. Beyond that, the lowest bits of all float32 logits are set to 0, one more bit at a time, until there are at
most `most_cells` cells. Rows of a group whose logits become equal by this rounding count as ranked equally.
"""

from __future__ import annotations

import functools

import numpy as np

from app.evaluation.score_bins import ordered_bits

MOST_CELLS = 2**23  # Upper bound of the distinct pairs of group and logit (cells) in memory. A cell takes 24 bytes.
PENDING_ROWS = 2**22
# Logits are rounded by at most this number of bits, after which only the sign and the exponent of a float32 remain.
COARSEST_SHIFT = 23
MOST_IDS = 2**32


class GroupedRows:
    """Rows counted by group and logit.

    A cell is a pair (id of the group, logit). `negatives` and `positives` [K] are the numbers of rows with label 0 and
    1 in each cell, or sums of weights if rows have weights. Cells ascend by the id of their group, then by logit.
    Arrays with one value per group [G], such as `ids`, begin with the group that has the most rows. `left_out` is the
    number of rows without a group.

    >>> cells = np.uint64([5, 5, 9]) << np.uint64(32) | np.uint64([1, 2, 1])
    >>> rows = GroupedRows(cells, negatives=np.array([0, 2, 6]), positives=np.array([1, 1, 0]))
    >>> rows.ids, rows.rows, rows.clicks, rows.above(rows.positives)
    (array([9, 5]), array([6, 4]), array([0, 2]), array([1, 0, 0]))
    """

    def __init__(self, cells: np.ndarray, negatives: np.ndarray, positives: np.ndarray, left_out: float = 0.0) -> None:
        """Store the counts of rows in each of the K cells (pairs of group and logit). `cells` [K] uint64 ascend. A cell
        is a number with the group's id in its upper 32 bits, and `ordered_bits` of the logit in its lower 32 bits.
        """
        self.negatives, self.positives, self.left_out = negatives, positives, left_out
        ids, self._starts = np.unique(cells >> np.uint64(32), return_index=True)
        self._order = np.argsort(-np.add.reduceat(negatives + positives, self._starts), kind="stable")
        self.ids = ids.astype(np.int64)[self._order]

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return for each group [G] the sum of `values`, one for each cell (group and logit) [K], over the cells of the
        group.
        """
        return np.add.reduceat(values, self._starts)[self._order]

    def above(self, values: np.ndarray) -> np.ndarray:
        """Return for each cell (group and logit) [K] the sum of `values` [K] over the cells of the same group with
        higher logits.
        """
        up_to = np.cumsum(values)
        group_ends = (up_to - values)[self._starts] + np.add.reduceat(values, self._starts)
        return np.repeat(group_ends, np.diff(self._starts, append=len(values))) - up_to

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """The number of rows in each group, or the sum of their weights, [G]."""
        return self.sums(self.negatives + self.positives)

    @functools.cached_property
    def clicks(self) -> np.ndarray:
        """The number of rows with label 1 in each group, or the sum of their weights, [G]."""
        return self.sums(self.positives)

    @functools.cached_property
    def has_both_classes(self) -> np.ndarray:
        """For each group, True if it has rows of both labels, [G] bool. Other groups have no AUC."""
        return (self.clicks > 0) & (self.sums(self.negatives) > 0)

    @property
    def rows_covered(self) -> float:
        """The fraction of all rows, including those without a group, that are in groups with both labels."""
        return float(self.rows[self.has_both_classes].sum() / (self.rows.sum() + self.left_out))

    @property
    def share_left_out(self) -> float:
        """The number of rows without a group, as a fraction of all rows."""
        return float(self.left_out / (self.rows.sum() + self.left_out)) if self.left_out else 0.0

    def mean(self, values: np.ndarray) -> float:
        """Return the mean of `values` [G], which has a value for each group, over the groups that have rows of both
        labels. A group's weight is its number of rows.

        The mean is NaN if no group has both labels.
        """
        both = self.has_both_classes
        return float(np.average(values[both], weights=self.rows[both])) if both.any() else float("nan")


def auc_in_groups(rows: GroupedRows) -> np.ndarray:
    """Return the AUC within each group, [G]. It is NaN for a group whose rows all have the same label.

    The mean of the AUC over the groups is known as GAUC (Zhu et al., KDD 2017).
    """
    ranked = rows.sums(rows.negatives * (rows.above(rows.positives) + 0.5 * rows.positives))
    pairs = rows.sums(rows.negatives).astype(np.float64) * rows.clicks
    return np.divide(ranked, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


class GroupStream:
    """Counts rows by group and logit, batch by batch, in bounded memory. `result` returns the counts."""

    def __init__(self, most_cells: int = MOST_CELLS) -> None:
        self._most_cells = most_cells
        self._shift = 0
        # Batches that are not counted yet, each a tuple of three arrays with one value per row. The first is the row's
        # cell, a uint64: the id of its group in the upper 32 bits, and its exact float32 logit, as `ordered_bits`
        # encodes it, in the lower 32. The second is the row's weight (or 1) if its label is 0, else 0. The third is its
        # weight (or 1) if its label is 1, else 0.
        self._pending: list[tuple[np.ndarray, ...]] = []
        self._num_pending = 0
        self._left_out = 0.0  # Number of rows without a group, or the sum of their weights.
        # The distinct pairs of group and logit (cells) of the counted rows, ascending: a uint64 with the id of the
        # group in the upper 32 bits and the encoded logit in the lower 32. The lowest `_shift` bits of the logits were
        # set to 0, so that similar logits share a cell.
        self._cells = np.zeros(0, np.uint64)
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
        """Add n rows: `ids` [n] of groups in 0 … 2**32 - 1, `logits` [n] finite float32, `labels` [n] 0 or 1.

        `weights` [n] >= 0 must be given in every call or in none. Rows of weight 0 do not count. Rows for which
        `has_group` [n] is False are left out. If `has_group` is None, all rows have a group.
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
            raise ValueError(f"a group needs ids below 2**32, found {ids.max()}")
        cells = ids.astype(np.uint64) << np.uint64(32) | ordered_bits(logits).astype(np.uint64)
        clicked = labels.astype(bool)
        counted = (~clicked, clicked) if weights is None else (weights * ~clicked, weights * clicked)
        self._pending.append((cells, *counted))
        self._num_pending += len(ids)
        if self._num_pending >= PENDING_ROWS:
            self._count()

    def result(self) -> GroupedRows:
        """Return all rows added so far, counted by group and logit."""
        self._count()
        return GroupedRows(self._cells, self._negatives, self._positives, self._left_out)

    def _count(self) -> None:
        """Count the rows in `_pending` by cell (pair of group and logit) and add them to the earlier counts. While
        there are more than `most_cells` cells, set one more of the lowest bits of all logits to 0.
        """
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
    """Maps 64-bit keys (hashes of the texts in a column of kind id, such as user ids) to the numbers 0, 1, …
    `GroupStream` takes these numbers as ids of groups. Keys get them in the order in which they first occur.
    """

    def __init__(self) -> None:
        self._keys = np.zeros(0, np.int64)  # Ascending keys.
        self._numbers = np.zeros(0, np.int64)

    def of(self, keys: np.ndarray) -> np.ndarray:
        """Return for each key in `keys` [n] int64 the number that stands for it. Keys that occur for the first time get
        the next numbers.
        """
        distinct, inverse = np.unique(keys, return_inverse=True)
        new = np.setdiff1d(distinct, self._keys, assume_unique=True)
        everything = np.concatenate([self._keys, new])
        order = np.argsort(everything)
        self._numbers = np.concatenate([self._numbers, len(self._keys) + np.arange(len(new))])[order]
        self._keys = everything[order]
        return self._numbers[np.searchsorted(self._keys, distinct)][inverse]

    def keys_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the keys [n] int64 to which `of` has given the numbers `numbers` [n]."""
        return self._keys[np.argsort(self._numbers)][numbers]
