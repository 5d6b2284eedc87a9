"""Rows counted by their logit: what every metric and curve is computed from, and what streams merge.

Letters: K distinct logits, n rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BIN_SHIFT = 7  # of a float32's 32 bits the top 25 name its bin: sign, exponent and 16 bits of the fraction
CURVE_POINTS = 400
HISTOGRAM_BINS = 50


@dataclass(frozen=True)
class Bins:
    """`keys` [K] float logits, ascending; of each the rows with label 0 and 1: `negatives`, `positives` [K] int64."""

    keys: np.ndarray
    negatives: np.ndarray
    positives: np.ndarray

    @staticmethod
    def empty() -> Bins:
        """No rows."""
        return Bins(np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64))

    @staticmethod
    def of(logits: np.ndarray, labels: np.ndarray) -> Bins:
        """Count `logits` [n] float32 by value, with `labels` [n] bool."""
        if not len(logits):
            return Bins.empty()
        # Whole numbers that hold logit and label are sorted many times as fast as np.unique finds logits with places.
        cells = np.sort(ordered_bits(logits).astype(np.uint64) << np.uint64(1) | labels.astype(np.uint64))
        bits = (cells >> np.uint64(1)).astype(np.uint32)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(bits)) + 1])
        positives = np.add.reduceat((cells & np.uint64(1)).astype(np.int64), starts)
        return Bins(from_ordered_bits(bits[starts]), np.diff(starts, append=len(cells)) - positives, positives)

    @property
    def counts(self) -> np.ndarray:
        """[K] int64: rows of each logit."""
        return self.negatives + self.positives

    @property
    def probabilities(self) -> np.ndarray:
        """[K] float64: the click probability that each logit says."""
        return sigmoid(self.keys.astype(np.float64))

    def plus(self, other: Bins) -> Bins:
        """The rows of both."""
        if not self.keys.size or not other.keys.size:
            return self if self.keys.size else other
        keys, inverse = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        negatives, positives = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        np.add.at(negatives, inverse, np.concatenate([self.negatives, other.negatives]))
        np.add.at(positives, inverse, np.concatenate([self.positives, other.positives]))
        return Bins(keys, negatives, positives)

    def joined(self, most: int) -> Bins:
        """The same rows in at most `most` bins of about equally many, each at its rows' mean logit."""
        if len(self.keys) <= most:
            return self
        counts = self.counts
        place = (np.cumsum(counts) - counts) * most // counts.sum()
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        weighted = np.add.reduceat(self.keys.astype(np.float64) * counts, starts)
        negatives, positives = np.add.reduceat(self.negatives, starts), np.add.reduceat(self.positives, starts)
        return Bins(weighted / (negatives + positives), negatives, positives)

    def auc(self) -> float:
        """P(a click scores above a non-click) + ½ P(they tie), by the rank sum (Mann-Whitney U)."""
        below = np.cumsum(self.negatives) - self.negatives
        pairs = float(self.negatives.sum()) * float(self.positives.sum())
        return ratio(float((self.positives * (below + 0.5 * self.negatives)).sum()), pairs)

    def average_precision(self) -> float:
        """Σ precision · (increase of recall) over falling thresholds, as scikit-learn defines it."""
        positives, negatives = self.positives[::-1], self.negatives[::-1]
        found = np.cumsum(positives)
        rows = found + np.cumsum(negatives)
        if not len(rows) or not 0 < found[-1] < rows[-1]:
            return float("nan")
        return float((found / np.maximum(rows, 1) * positives).sum() / found[-1])


def roc_curve(bins: Bins, most: int = CURVE_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates over falling thresholds, from (0, 0) to (1, 1); both classes have rows.

    Of more than `most` points, those at about equal steps along the curve.
    """
    false_rate, true_rate = (
        np.concatenate([[0], np.cumsum(counts[::-1]) / counts.sum()]) for counts in (bins.negatives, bins.positives)
    )
    chosen = _spread(false_rate + true_rate, most)
    return false_rate[chosen], true_rate[chosen]


def precision_recall_curve(bins: Bins, most: int = CURVE_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision over falling thresholds, at about equal steps of recall; there are clicks."""
    found = np.cumsum(bins.positives[::-1])
    recall, precision = found / found[-1], found / np.cumsum(bins.counts[::-1])
    chosen = _spread(recall, most)
    return recall[chosen], precision[chosen]


def _spread(along: np.ndarray, most: int) -> np.ndarray:
    """Places of at most `most` of the ascending values, at about equal steps; the first and the last are among them."""
    if len(along) <= most:
        return np.arange(len(along))
    return np.unique([*np.searchsorted(along, np.linspace(along[0], along[-1], most - 1)), len(along) - 1])


@dataclass(frozen=True)
class CalibrationBin:
    """Rows of about equal prediction: how many, what was predicted and what share clicked."""

    rows: int
    mean_prediction: float
    click_rate: float


def calibration_deciles(bins: Bins, parts: int = 10) -> list[CalibrationBin]:
    """Tenths of the rows by rising prediction; as in scikit-learn's `calibration_curve(strategy="quantile")` rows of
    one prediction stay together, and a part without rows is left out."""
    probabilities, counts = bins.probabilities, bins.counts
    edges = _quantiles(probabilities, counts, np.arange(1, parts) / parts)
    place = np.searchsorted(edges, probabilities)
    rows, clicks, predicted = (
        np.bincount(place, weights, parts) for weights in (counts, bins.positives, counts * probabilities)
    )
    return [
        CalibrationBin(int(rows[part]), float(predicted[part] / rows[part]), float(clicks[part] / rows[part]))
        for part in np.flatnonzero(rows)
    ]


def _quantiles(values: np.ndarray, counts: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Quantiles of ascending `values` that occur `counts` times, between two of them linearly, as `numpy.quantile`."""
    last = np.cumsum(counts)
    rank = shares * (last[-1] - 1)
    low, high = (values[np.searchsorted(last, place, side="right")] for place in (np.floor(rank), np.ceil(rank)))
    return low + (high - low) * (rank - np.floor(rank))


def score_histogram(bins: Bins, parts: int = HISTOGRAM_BINS) -> tuple[np.ndarray, np.ndarray]:
    """Rows with label 0 and with label 1 in `parts` equal parts of the probabilities 0 … 1, int64 each."""
    place = np.minimum((bins.probabilities * parts).astype(np.int64), parts - 1)
    negatives, positives = (np.bincount(place, counts, parts) for counts in (bins.negatives, bins.positives))
    return negatives.astype(np.int64), positives.astype(np.int64)


def ordered_bits(logits: np.ndarray) -> np.ndarray:
    """uint32 [n] in the order of the float32 logits; 0 and -0 are one."""
    bits = (logits.astype(np.float32) + np.float32(0)).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def from_ordered_bits(bits: np.ndarray) -> np.ndarray:
    """The logits that `ordered_bits` gave these for."""
    return np.where(bits >> 31, bits & np.uint32((1 << 31) - 1), ~bits).view(np.float32)


def binned(logits: np.ndarray) -> np.ndarray:
    """Each float32 logit moved to the middle of its bin."""
    bits = (logits + np.float32(0)).view(np.uint32)  # the sum makes -0 a 0, which it ties with
    return (bits >> BIN_SHIFT << BIN_SHIFT | 1 << BIN_SHIFT - 1).view(np.float32)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x) without overflow, in the dtype of `logits`."""
    return np.exp(-np.logaddexp(0, -logits))


def entropy(rate: float) -> float:
    """Log loss of predicting `rate` for rows that click at `rate`; 0 for rates 0 and 1."""
    if rate <= 0 or rate >= 1:
        return 0.0
    return float(-rate * np.log(rate) - (1 - rate) * np.log(1 - rate))


def ratio(numerator: float, denominator: float) -> float:
    """The quotient; NaN where the denominator is 0."""
    return float(numerator / denominator) if denominator else float("nan")
