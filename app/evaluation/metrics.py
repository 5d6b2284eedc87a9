"""Count rows by logit, and by group and logit, and compute metrics of logits against labels from the counts.

`MetricStream` takes the rows of a split batch by batch, in bounded memory. Up to `exact_rows` rows are kept (5 bytes
each), and every metric is exact. If there are more, rows are counted in bins of similar logits. There are 2**16 bins
between a logit and its double; logits in the same bin count as ties.

A group is one value of a field, such as a user. AUC within groups measures how well a model ranks rows that compete
with each other, such as the ads for one user. AUC over all rows also rewards a model that only knows which users click
often. Rows whose value is missing, or has no id of its own, belong to no group. They are left out, and their number is
recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from common.process import num_cores

# The number of a bin is the upper 25 of the 32 bits of a float32 logit: sign, exponent and 16 bits of the fraction.
BIN_SHIFT = 7


@dataclass(frozen=True)
class Bins:
    """Rows counted by logit.

    `keys` [K] are distinct float logits, ascending. `negatives` and `positives` [K] int64 are the numbers of rows
    with label 0 and 1. If rows have weights, `negatives` and `positives` are sums of weights, float64, and `squares`
    are the sums of squared weights for label 0 and 1.

    >>> bins = Bins.of(np.float32([-2, -1, 0, 1, 1]), np.array([False, True, False, True, True]))
    >>> bins.positives, bins.auc()
    (array([0, 1, 0, 2]), 0.8333333333333334)
    """

    keys: np.ndarray
    negatives: np.ndarray
    positives: np.ndarray
    squares: tuple[np.ndarray, np.ndarray] | None = None

    @staticmethod
    def empty() -> Bins:
        """Return bins without rows."""
        return Bins(np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64))

    @staticmethod
    def of(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> Bins:
        """Return the rows counted by logit. `logits` is [n] float32, `labels` [n] bool. With `weights` [n], the weights
        of the rows are added up instead of counting each row as 1.
        """
        if not len(logits):
            return Bins.empty()
        if weights is not None:
            bits, places = np.unique(ordered_bits(logits), return_inverse=True)
            exact = weights.astype(np.float64)
            sums = [np.bincount(places, each * of, len(bits)) for each in (exact, exact**2) for of in (~labels, labels)]
            return Bins(from_ordered_bits(bits), sums[0], sums[1], (sums[2], sums[3]))
        # Sort integers that contain both logit and label. This is many times as fast as np.unique with return_inverse.
        cells = np.sort(ordered_bits(logits).astype(np.uint64) << np.uint64(1) | labels.astype(np.uint64))
        bits = (cells >> np.uint64(1)).astype(np.uint32)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(bits)) + 1])
        positives = np.add.reduceat((cells & np.uint64(1)).astype(np.int64), starts)
        return Bins(from_ordered_bits(bits[starts]), np.diff(starts, append=len(cells)) - positives, positives)

    @property
    def has_both_classes(self) -> bool:
        """True if there are rows with label 0 and rows with label 1."""
        return bool(self.negatives.any() and self.positives.any())

    @property
    def counts(self) -> np.ndarray:
        """For each logit, the number of rows or the sum of their weights, [K]."""
        return self.negatives + self.positives

    @property
    def probabilities(self) -> np.ndarray:
        """Click probability that each distinct logit predicts, the sigmoid of the logit, [K] float64."""
        return sigmoid(self.keys.astype(np.float64))

    def plus(self, other: Bins) -> Bins:
        """Return the counts of all rows that `self` or `other` counts, by logit."""
        if not self.keys.size or not other.keys.size:
            return self if self.keys.size else other
        keys, inverse = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        sums = [np.zeros(len(keys), each.dtype) for each in self._counted]
        for total, *parts in zip(sums, self._counted, other._counted, strict=True):
            np.add.at(total, inverse, np.concatenate(parts))
        return Bins._with(keys, sums)

    @property
    def _counted(self) -> tuple[np.ndarray, ...]:
        return self.negatives, self.positives, *(self.squares or ())

    @staticmethod
    def _with(keys: np.ndarray, counted: Sequence[np.ndarray]) -> Bins:
        negatives, positives, *squares = counted
        return Bins(keys, negatives, positives, (squares[0], squares[1]) if squares else None)

    def drawn(self, rng: np.random.Generator) -> Bins:
        """Return a bootstrap sample of the rows: each row occurs a random number of times, drawn from Poisson(1).

        For weighted rows, each sum of weights is drawn with the mean and the variance that it has in such a sample.
        """
        if self.squares is None:
            return Bins(self.keys, rng.poisson(self.negatives), rng.poisson(self.positives))
        draws = []
        for sums, squares in zip((self.negatives, self.positives), self.squares, strict=True):
            weight = np.divide(squares, sums, out=np.ones_like(sums), where=sums > 0)
            draws.append(weight * rng.poisson(sums / weight))
        return Bins(self.keys, draws[0], draws[1])

    def coarsened(self, most: int) -> Bins:
        """Return the counts of the same rows in at most `most` bins, which have about equal numbers of rows.

        The key of a bin is the mean logit of its rows.
        """
        if len(self.keys) <= most:
            return self
        counts = self.counts
        bin_numbers = (np.cumsum(counts) - counts) * most // counts.sum()
        starts = np.flatnonzero(np.diff(bin_numbers, prepend=-1))
        weighted = np.add.reduceat(self.keys.astype(np.float64) * counts, starts)
        sums = [np.add.reduceat(each, starts) for each in self._counted]
        return Bins._with(weighted / (sums[0] + sums[1]), sums)

    def auc(self) -> float:
        """Return the probability that a click scores above a non-click, where ties count ½ (Mann-Whitney U).

        The result is NaN if all rows have the same class.
        """
        below = np.cumsum(self.negatives) - self.negatives
        pairs = float(self.negatives.sum()) * float(self.positives.sum())
        return ratio(float((self.positives * (below + 0.5 * self.negatives)).sum()), pairs)

    def average_precision(self) -> float:
        """Return the average precision, the sum of precision · (increase of recall) over falling thresholds, as
        scikit-learn defines it.

        The result is NaN if all rows have the same class.
        """
        positives, negatives = self.positives[::-1], self.negatives[::-1]
        clicks = np.cumsum(positives)
        rows = clicks + np.cumsum(negatives)
        if not len(rows) or not 0 < clicks[-1] < rows[-1]:
            return float("nan")
        precision = np.divide(clicks, rows, out=np.zeros(len(rows)), where=rows > 0)
        return float((precision * positives).sum() / clicks[-1])


def ordered_bits(logits: np.ndarray) -> np.ndarray:
    """Convert float32 logits to numbers, uint32 [n], that have the same order as the logits. 0 and -0 become equal."""
    bits = (logits.astype(np.float32) + np.float32(0)).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def from_ordered_bits(bits: np.ndarray) -> np.ndarray:
    """Convert the result of `ordered_bits` back to logits."""
    return np.where(bits >> 31, bits & np.uint32((1 << 31) - 1), ~bits).view(np.float32)


def binned(logits: np.ndarray) -> np.ndarray:
    """Return each float32 logit rounded to the middle of its bin (see BIN_SHIFT)."""
    # Add 0, which turns -0 into 0, so that the two count as equal logits.
    bits = (logits + np.float32(0)).view(np.uint32)
    return (bits >> BIN_SHIFT << BIN_SHIFT | 1 << BIN_SHIFT - 1).view(np.float32)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-x) without overflow, in the dtype of `logits`."""
    return np.exp(-np.logaddexp(0, -logits))


def entropy(rate: float) -> float:
    """Return the log loss of predicting `rate` for rows whose click rate is `rate`. It is 0 for the rates 0 and 1."""
    if rate <= 0 or rate >= 1:
        return 0.0
    return float(-rate * np.log(rate) - (1 - rate) * np.log(1 - rate))


def ratio(numerator: float, denominator: float) -> float:
    """Return `numerator` divided by `denominator`, or NaN if the denominator is 0."""
    return float(numerator / denominator) if denominator else float("nan")


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
    """Counts rows by group and logit, batch by batch, in bounded memory. `result` returns the counts.

    Rows are counted by cell, a pair (id of the group, logit). With up to `most_cells` distinct cells, logits are exact.
    Beyond that, the lowest bits of all float32 logits are set to 0, one more bit at a time, until there are at most
    `most_cells` cells. Rows of a group whose logits become equal by this rounding count as ranked equally.
    """

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


EXACT_ROWS = 2**24


@dataclass(frozen=True)
class CountedRows:
    """Rows counted by logit, and sums over these rows, from which all metrics are computed.

    `weight` is the sum of the rows' weights. `clicks`, `cross_entropy` and `predictions` are the weighted sums of
    labels, losses and predicted probabilities. If rows have no weights, each counts 1.
    """

    bins: Bins
    weight: float
    clicks: float
    cross_entropy: float
    predictions: float

    @property
    def click_rate(self) -> float:
        return float(self.clicks / self.weight)

    @property
    def log_loss(self) -> float:
        return float(self.cross_entropy / self.weight)


def top_decile_lift(rows: CountedRows) -> float:
    """Return the click rate among the tenth of the rows with the highest scores, divided by the click rate of all rows.

    If only a fraction of the rows with equal scores fits into the tenth, each of these rows counts with that fraction.
    """
    counts, clicks = rows.bins.counts[::-1], rows.bins.positives[::-1]
    in_tenth = np.clip(counts.sum() / 10 - (np.cumsum(counts) - counts), 0, counts)
    share_in_tenth = np.divide(in_tenth, counts, out=np.zeros(len(counts)), where=counts > 0)
    return ratio(10 * float((clicks * share_in_tenth).sum()), float(clicks.sum()))


@dataclass(frozen=True)
class Metric:
    """Title and formula of a metric, and how to read its values.

    `of` is the function that computes the metric from all rows. A metric of groups, such as users, has the function
    `in_groups` instead, which returns a value for each group [G]. The metric is then the mean of the values of those
    groups that have rows of both labels, weighted by their numbers of rows. `better` says whether higher or lower
    values mean a better model, and is "" if neither do. `at_one` says what a value of 1 means, such as "predicting
    the click rate" for the normalized entropy, and `note` how the metric is computed, such as "mean prediction / mean
    label".

    >>> bins = Bins.of(np.float32([-2, -1, 0, 1]), np.array([False, True, False, True]))
    >>> rows = CountedRows(bins, weight=4, clicks=2, cross_entropy=2.5, predictions=1.5)
    >>> for name in MEASURED:
    ...     print(f"{name} {METRICS[name].of(rows):.3f}")
    auc 0.750
    log_loss 0.625
    normalized_entropy 0.902
    calibration 0.750
    pr_auc 0.833
    top_decile_lift 2.000
    """

    title: str
    of: Callable[[CountedRows], float] | None = None
    in_groups: Callable[[GroupedRows], np.ndarray] | None = None
    better: Literal["higher", "lower", ""] = "higher"
    needs_both_classes: bool = True
    at_one: str = ""
    note: str = ""

    @property
    def title_in_group(self) -> str:
        """The title of the metric's value in a single group: for "grouped AUC" it is "AUC"."""
        return self.title.removeprefix("grouped ")


METRICS = {
    "auc": Metric("AUC", lambda rows: rows.bins.auc()),
    "log_loss": Metric("log loss", lambda rows: rows.log_loss, better="lower", needs_both_classes=False),
    "normalized_entropy": Metric(
        "normalized entropy",
        lambda rows: ratio(rows.log_loss, entropy(rows.click_rate)),
        better="lower",
        at_one="predicting the click rate",
    ),
    "calibration": Metric(
        "calibration",
        lambda rows: ratio(rows.predictions, rows.clicks),
        better="",
        needs_both_classes=False,
        at_one="predictions sum to the clicks",
        note="mean prediction / mean label",
    ),
    "pr_auc": Metric("PR-AUC", lambda rows: rows.bins.average_precision()),
    "top_decile_lift": Metric("top-decile lift", top_decile_lift, at_one="scores without use"),
    "grouped_auc": Metric("grouped AUC", in_groups=auc_in_groups),
}
MEASURED = tuple(name for name, metric in METRICS.items() if metric.of)  # The metrics of all rows.


@dataclass(frozen=True)
class Metrics:
    """The metrics of a model on a set of rows.

    `auc`, `pr_auc` (average precision) and `normalized_entropy` are NaN if all rows have the same class.
    `normalized_entropy` is the log loss divided by the log loss of predicting the click rate for every row (He et
    al., ADKDD 2014). `calibration` is the mean prediction divided by the mean label. `top_decile_lift` is the click
    rate among the tenth of the rows with the highest scores, divided by that of all rows. `grouped_auc` is the mean of
    the AUCs within the groups of rows that have the same value of `eval.group_field`, weighted by rows, or NaN if that
    setting is empty. If rows have weights, each counts with its weight, except in `rows`; rows of weight 0 are ignored.

    >>> stream = MetricStream()
    >>> stream.add(np.float32([-2, -1, 0, 1]), labels=np.array([0, 1, 0, 1]))
    >>> metrics = stream.result()
    >>> metrics.rows, metrics.auc, round(metrics.log_loss, 4), round(metrics.calibration, 4)
    (4, 0.75, 0.6116, 0.8096)
    """

    rows: int
    click_rate: float
    auc: float
    log_loss: float
    normalized_entropy: float
    calibration: float
    pr_auc: float
    top_decile_lift: float = float("nan")
    grouped_auc: float = float("nan")


class NothingToMeasureError(ValueError):
    """Raised if no row has a weight above 0, for example because the labels are not known yet."""


class MetricStream:
    """Collects logits and labels batch by batch. `result` computes the metrics of all rows."""

    def __init__(self, exact_rows: int = EXACT_ROWS) -> None:
        self._exact_rows = exact_rows
        self._logits: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        # Weights of the rows whose labels are in `_labels`. Empty if rows have no weights.
        self._weights: list[np.ndarray] = []
        self._num_rows = 0
        self._num_in_memory = 0
        self._bins = Bins.empty()
        # Four sums over the rows so far, weighted by the rows' weights: of 1, of the labels, of the cross-entropies and
        # of the predicted probabilities.
        self._sums = np.zeros(4)

    def add(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add n rows: `logits` [n] float32, `labels` [n] 0 or 1, `weights` [n] 0 or more.

        `weights` must be given in every call or in none. Raise FloatingPointError for a logit that is NaN or infinite.
        """
        bad = np.flatnonzero(~np.isfinite(logits))
        if len(bad):
            raise FloatingPointError(f"the logit of row {self._num_rows + bad[0]} is {logits[bad[0]]}")
        if weights is not None:
            logits, labels, weights = (values[weights > 0] for values in (logits, labels, weights))
            self._weights.append(weights)
        wide_logits = logits.astype(np.float64)
        sums = labels, np.logaddexp(0, wide_logits) - labels * wide_logits, sigmoid(wide_logits)
        if weights is None:
            self._sums += (len(logits), *(values.sum() for values in sums))
        else:
            exact = weights.astype(np.float64)
            self._sums += (exact.sum(), *((values * exact).sum() for values in sums))
        self._num_rows += len(logits)
        self._logits.append(logits.astype(np.float32))
        self._labels.append(labels.astype(bool))
        self._num_in_memory += len(logits)
        if self._num_in_memory > self._exact_rows:
            self._spill()

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return self._num_rows

    def _spill(self) -> None:
        """Round the logits of the rows in memory, add the rows to the counts by logit in `_bins`, and remove the rows
        from memory.
        """
        self._bins = self._bins.plus(self._count_kept(binned))
        self._logits, self._labels, self._weights, self._num_in_memory = [], [], [], 0

    def _count_kept(self, move: Callable[[np.ndarray], np.ndarray]) -> Bins:
        weights = np.concatenate(self._weights) if self._weights else None
        return Bins.of(move(np.concatenate(self._logits)), np.concatenate(self._labels), weights)

    def bins(self) -> Bins:
        """Return all rows so far, counted by logit. Raise NothingToMeasureError if there are none."""
        if not self._num_rows:
            raise NothingToMeasureError("no rows to measure: the split is empty, or all weights are 0")
        if self._bins.keys.size and self._num_in_memory:
            # Some rows are in bins already. Put the rows in memory into the same bins: exact logits cannot be ranked
            # against logits that were rounded to the middle of a bin.
            self._spill()
        if not self._num_in_memory:
            return self._bins
        return self._count_kept(lambda logits: logits)

    def result(self) -> Metrics:
        """Return the metrics of all rows so far. Raise NothingToMeasureError if there are none."""
        return self.result_and_bins()[0]

    def result_and_bins(self) -> tuple[Metrics, Bins]:
        """Return the metrics of all rows so far, and the rows counted by logit.

        Counting is most of the work, so it is done once for both. Raise NothingToMeasureError if there are no rows.
        """
        bins, (weight, clicks, cross_entropy, predictions) = self.bins(), self._sums
        counted = CountedRows(bins, weight, clicks, cross_entropy, predictions)
        return Metrics(self._num_rows, counted.click_rate, **measure(counted)), bins


def measure(counted: CountedRows) -> dict[str, float]:
    """Compute the metrics that MEASURED names (all except metrics of groups) from rows counted by logit. Return the
    metrics' values by name.
    """
    return {name: metric.of(counted) for name, metric in METRICS.items() if metric.of}


def measure_groups(rows: GroupedRows) -> dict[str, np.ndarray]:
    """Return, for each metric of groups (such as the AUC within a user's rows) by name, an array [G] of its values in
    the G groups.
    """
    return {name: metric.in_groups(rows) for name, metric in METRICS.items() if metric.in_groups}


def as_score(name: str, value: float) -> float:
    """Return the value of the metric `name` as a score of which higher is better: negated if lower is better."""
    return -value if METRICS[name].better == "lower" else value


def defined(metrics: Metrics) -> dict[str, float]:
    """Return the fields of `metrics` by name, except those that are NaN because the metric is undefined for the
    measured rows.
    """
    return {name: value for name, value in asdict(metrics).items() if not np.isnan(value)}


# Confidence intervals that are computed from fewer clicks than this are too narrow, which `few_clicks_note` tells the
# user.
FEW_CLICKS = 20
LEVEL = 0.95

# Maximum number of bins of similar logits into which rows are counted for the bootstrap. Logits in the same bin count
# as equal. With this many bins, the confidence intervals are as wide as with exact logits.
MOST_BINS = 2**14


def few_clicks_note(metrics: Sequence[tuple[float, float]]) -> str:
    """Return a remark for the reader of confidence intervals that those from few clicks are too narrow, or "" if every
    set of rows in `metrics` has at least FEW_CLICKS clicks.

    `metrics` has the number of rows and the click rate of each set of rows for which intervals are shown.
    """
    if all(round(rows * click_rate) >= FEW_CLICKS for rows, click_rate in metrics):
        return ""
    return (
        f"Intervals of fewer than {FEW_CLICKS} clicks are too narrow: they contain the true value in 86 to 93 % of "
        "cases, not in 95 %."
    )


def confidence_intervals(bins: Bins, replicates: int, seed: int) -> dict[str, tuple[float, float]]:
    """Return the 95 % confidence interval (low, high) of each metric by the metric's name, computed from `replicates`
    bootstrap samples of the rows.

    The result depends only on the arguments. There must be rows of both labels.
    """
    bins = bins.coarsened(MOST_BINS)
    keys = bins.keys.astype(np.float64)
    cost_of_negative, cost_of_click, prediction = np.logaddexp(0, keys), -keys, bins.probabilities

    def replica(number: int) -> dict[str, float]:
        resampled = bins.drawn(np.random.default_rng([seed, number]))
        # The scalar product `@` is not used: for arrays of this size BLAS starts threads, which takes longer than the
        # sum of products.
        cross_entropy = float((resampled.counts * cost_of_negative + resampled.positives * cost_of_click).sum())
        predictions = (resampled.counts * prediction).sum()
        sums = (resampled.counts.sum(), resampled.positives.sum(), cross_entropy, float(predictions))
        return measure(CountedRows(resampled, *sums))

    # Each sample has random numbers of its own, so threads, which NumPy lets run at the same time, change no bit.
    with ThreadPoolExecutor(num_cores()) as threads:
        replicas = list(threads.map(replica, range(replicates)))
    tails = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    intervals = {name: np.nanquantile([each[name] for each in replicas], tails) for name in MEASURED}
    return {name: (float(low), float(high)) for name, (low, high) in intervals.items()}
