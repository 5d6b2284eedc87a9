"""Count rows by their logit, and compute the metrics and curves that follow from the counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
