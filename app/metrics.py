"""Metrics of logits against labels, over all rows of a stream, in bounded memory.

Up to `exact_rows` rows are kept (5 bytes each) and every metric is exact; beyond that the rows are
counted into bins of their logit, 2**16 of which span a factor of two, and ranks within a bin are ties.
Two streams' metrics merge into those of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EXACT_ROWS = 2**24
BIN_SHIFT = 7  # of a float32's 32 bits the top 25 name its bin: sign, exponent and 16 bits of the fraction


@dataclass(frozen=True)
class Metrics:
    """What is said of a model on a set of rows.

    `auc` and `pr_auc` (average precision) are NaN where the rows have one class only.
    `normalized_entropy` is log loss over that of the click rate (He et al., ADKDD 2014); `calibration` is
    mean prediction over mean label.
    """

    rows: int
    click_rate: float
    auc: float
    log_loss: float
    normalized_entropy: float
    calibration: float
    pr_auc: float


class MetricStream:
    """Takes logits and labels batch by batch; `result` gives the metrics of all of them."""

    def __init__(self, exact_rows: int = EXACT_ROWS) -> None:
        self._exact_rows = exact_rows
        self._logits: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._kept = 0
        self._bins = Bins.empty()
        self._sums = np.zeros(4)  # rows, clicks, Σ cross-entropy, Σ prediction

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """`logits` [n] float32, `labels` [n] 0 or 1.

        Raises FloatingPointError where a logit is not finite.
        """
        bad = np.flatnonzero(~np.isfinite(logits))
        if len(bad):
            raise FloatingPointError(f"the logit of row {int(self._sums[0]) + bad[0]} is {logits[bad[0]]}")
        wide_logits = logits.astype(np.float64)
        cross_entropy = np.logaddexp(0, wide_logits) - labels * wide_logits
        self._sums += (len(logits), labels.sum(), cross_entropy.sum(), sigmoid(wide_logits).sum())
        self._logits.append(logits.astype(np.float32))
        self._labels.append(labels.astype(bool))
        self._kept += len(logits)
        if self._kept > self._exact_rows:
            self._spill()

    def merge(self, other: MetricStream) -> None:
        """Take in the rows of another stream."""
        self._sums += other._sums
        self._logits += other._logits
        self._labels += other._labels
        self._kept += other._kept
        self._bins = self._bins.plus(other._bins)
        if self._kept > self._exact_rows:
            self._spill()

    def _spill(self) -> None:
        """Count the kept rows into bins and let them go."""
        kept = Bins.of(binned(np.concatenate(self._logits)), np.concatenate(self._labels))
        self._bins = self._bins.plus(kept)
        self._logits, self._labels, self._kept = [], [], 0

    def result(self) -> Metrics:
        """The metrics of all rows so far; raises ValueError where there are none."""
        rows, clicks, cross_entropy, predictions = self._sums
        if not rows:
            raise ValueError("no rows to measure: the split is empty")
        if self._bins.keys.size and self._kept:
            self._spill()  # beside bins, exact logits would rank above those that were moved to their bin's edge
        counts = self._bins
        if self._kept:
            counts = Bins.of(np.concatenate(self._logits), np.concatenate(self._labels))
        rate = clicks / rows
        return Metrics(
            rows=int(rows),
            click_rate=rate,
            auc=counts.auc(),
            log_loss=cross_entropy / rows,
            normalized_entropy=_ratio(cross_entropy / rows, entropy(rate)),
            calibration=_ratio(predictions, clicks),
            pr_auc=counts.average_precision(),
        )


@dataclass(frozen=True)
class Bins:
    """Rows counted by distinct logit (or bin of logits): `keys` ascending, `negatives` and `positives` int64."""

    keys: np.ndarray
    negatives: np.ndarray
    positives: np.ndarray

    @staticmethod
    def empty() -> Bins:
        """No rows."""
        return Bins(np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64))

    @staticmethod
    def of(logits: np.ndarray, labels: np.ndarray) -> Bins:
        """Count `logits` [n] by value, with `labels` [n] bool."""
        keys, inverse = np.unique(logits, return_inverse=True)
        positives = np.bincount(inverse, weights=labels, minlength=len(keys)).astype(np.int64)
        return Bins(keys, np.bincount(inverse, minlength=len(keys)) - positives, positives)

    def plus(self, other: Bins) -> Bins:
        """The rows of both."""
        if not self.keys.size or not other.keys.size:
            return self if self.keys.size else other
        keys, inverse = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        negatives, positives = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        np.add.at(negatives, inverse, np.concatenate([self.negatives, other.negatives]))
        np.add.at(positives, inverse, np.concatenate([self.positives, other.positives]))
        return Bins(keys, negatives, positives)

    def auc(self) -> float:
        """P(a click scores above a non-click) + ½ P(they tie), by the rank sum (Mann-Whitney U)."""
        below = np.cumsum(self.negatives) - self.negatives
        pairs = float(self.negatives.sum()) * float(self.positives.sum())
        return _ratio(float((self.positives * (below + 0.5 * self.negatives)).sum()), pairs)

    def average_precision(self) -> float:
        """Σ precision · (increase of recall) over falling thresholds, as scikit-learn defines it."""
        if not self.positives.sum() or not self.negatives.sum():
            return float("nan")
        positives, negatives = self.positives[::-1], self.negatives[::-1]
        found = np.cumsum(positives)
        precision = found / (found + np.cumsum(negatives))
        return float((precision * positives).sum() / positives.sum())


def binned(logits: np.ndarray) -> np.ndarray:
    """Each float32 logit moved to the smallest magnitude of its bin."""
    return ((logits.view(np.uint32) >> BIN_SHIFT) << BIN_SHIFT).view(np.float32)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x) without overflow, in the dtype of `logits`."""
    return np.exp(-np.logaddexp(0, -logits))


def entropy(rate: float) -> float:
    """Log loss of predicting `rate` for rows that click at `rate`; 0 for rates 0 and 1."""
    if rate <= 0 or rate >= 1:
        return 0.0
    return float(-rate * np.log(rate) - (1 - rate) * np.log(1 - rate))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")
