"""Metrics of logits against labels, over all rows of a stream, in bounded memory.

Up to `exact_rows` rows are kept (5 bytes each) and every metric is exact; beyond that the rows are
counted into bins of their logit, 2**16 of which span a factor of two, and ranks within a bin are ties.
Two streams' metrics merge into those of both.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from app.evaluation.score_bins import Bins, binned, entropy, ratio, sigmoid

EXACT_ROWS = 2**24

LOWER_IS_BETTER = ("log_loss", "normalized_entropy")

NEED_BOTH_CLASSES = ("auc", "pr_auc", "normalized_entropy", "grouped_auc")


@dataclass(frozen=True)
class Metrics:
    """What is said of a model on a set of rows.

    `auc`, `pr_auc` (average precision) and `normalized_entropy` are NaN where the rows have one class only.
    `normalized_entropy` is log loss over that of the click rate (He et al., ADKDD 2014); `calibration` is
    mean prediction over mean label. `grouped_auc` is the mean AUC over the values of one field, weighted by rows; NaN
    where no field was chosen.
    """

    rows: int
    click_rate: float
    auc: float
    log_loss: float
    normalized_entropy: float
    calibration: float
    pr_auc: float
    grouped_auc: float = float("nan")


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

    def bins(self) -> Bins:
        """All rows so far, counted by logit; raises ValueError where there are none."""
        if not self._sums[0]:
            raise ValueError("no rows to measure: the split is empty")
        if self._bins.keys.size and self._kept:
            self._spill()  # exact logits are not to rank beside those that were moved to the middle of their bin
        if not self._kept:
            return self._bins
        return Bins.of(np.concatenate(self._logits), np.concatenate(self._labels))

    def result(self) -> Metrics:
        """The metrics of all rows so far; raises ValueError where there are none."""
        return self.result_and_bins()[0]

    def result_and_bins(self) -> tuple[Metrics, Bins]:
        """The metrics with the counted rows that they are of: to count them is most of the work."""
        bins, (rows, clicks, cross_entropy, predictions) = self.bins(), self._sums
        return metrics_of(bins, rows, clicks, cross_entropy, predictions), bins


def metrics_of(bins: Bins, rows: float, clicks: float, cross_entropy: float, predictions: float) -> Metrics:
    """The metrics of rows counted in `bins`, with their sums of cross-entropy and predictions."""
    rate = float(clicks / rows)
    return Metrics(
        rows=int(rows),
        click_rate=rate,
        auc=bins.auc(),
        log_loss=float(cross_entropy / rows),
        normalized_entropy=ratio(cross_entropy / rows, entropy(rate)),
        calibration=ratio(predictions, clicks),
        pr_auc=bins.average_precision(),
    )


def merit(name: str, value: float) -> float:
    """The value of a metric, turned so that higher is better."""
    return -value if name in LOWER_IS_BETTER else value


def defined(metrics: Metrics) -> dict[str, float]:
    """The metrics by name, without those that these rows do not have."""
    return {name: value for name, value in asdict(metrics).items() if not np.isnan(value)}


LEVEL = 0.95

MOST_BINS = 2**14  # ranks within a bin are ties, which at this many changes no metric's spread

MEASURED = ("auc", "log_loss", "normalized_entropy", "calibration", "pr_auc")


def confidence_intervals(
    bins: Bins, replicates: int, seed: int, level: float = LEVEL
) -> dict[str, tuple[float, float]]:
    """(low, high) of each metric, by name; the same for the same bins and seed. Both classes have rows."""
    bins = bins.joined(MOST_BINS)
    keys = bins.keys.astype(np.float64)
    costs = np.logaddexp(0, keys), -keys, bins.probabilities
    rng = np.random.default_rng(seed)
    found = [asdict(_replicate(bins, costs, rng)) for _ in range(replicates)]
    tails = ((1 - level) / 2, (1 + level) / 2)
    intervals = {name: np.nanquantile([each[name] for each in found], tails) for name in MEASURED}
    return {name: (float(low), float(high)) for name, (low, high) in intervals.items()}


def _replicate(bins: Bins, costs: tuple[np.ndarray, ...], rng: np.random.Generator) -> Metrics:
    """`costs`, each [K]: the cross-entropy of a row, what a click adds to it, and the prediction."""
    drawn = Bins(bins.keys, rng.poisson(bins.negatives), rng.poisson(bins.positives))
    # Sums of products, not `@`: at this size BLAS starts its threads, which costs more than the sums.
    cross_entropy = (drawn.counts * costs[0] + drawn.positives * costs[1]).sum()
    predictions = (drawn.counts * costs[2]).sum()
    return metrics_of(drawn, drawn.counts.sum(), drawn.positives.sum(), float(cross_entropy), float(predictions))
