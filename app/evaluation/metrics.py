"""Metrics of logits against labels, over all rows of a stream, in bounded memory.

Up to `exact_rows` rows are kept (5 bytes each) and every metric is exact. Beyond that the rows are counted into bins of
their logit, 2**16 of which span a factor of two; logits of one bin are ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from app.evaluation.score_bins import Bins, binned, entropy, ratio, sigmoid

EXACT_ROWS = 2**24

LOWER_IS_BETTER = ("log_loss", "normalized_entropy")

NEED_BOTH_CLASSES = ("auc", "pr_auc", "normalized_entropy", "grouped_auc")


@dataclass(frozen=True)
class Metrics:
    """The metrics of a model on a set of rows.

    `auc`, `pr_auc` (average precision) and `normalized_entropy` are NaN if the rows have one class only.
    `normalized_entropy` is log loss over that of the click rate (He et al., ADKDD 2014); `calibration` is
    mean prediction over mean label. `grouped_auc` is the mean AUC over the values of one field, weighted by rows; NaN
    without a field. Rows with weights count by them everywhere but in `rows`, and those of weight 0 not at all.
    """

    rows: int
    click_rate: float
    auc: float
    log_loss: float
    normalized_entropy: float
    calibration: float
    pr_auc: float
    grouped_auc: float = float("nan")


class NothingToMeasureError(ValueError):
    """Rows of which none has a weight above 0, as where no label has come yet."""


class MetricStream:
    """Accumulates logits and labels batch by batch; `result` computes the metrics of all of them."""

    def __init__(self, exact_rows: int = EXACT_ROWS) -> None:
        self._exact_rows = exact_rows
        self._logits: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []  # as many as there are labels, or none
        self._num_rows = 0
        self._kept = 0
        self._bins = Bins.empty()
        self._sums = np.zeros(4)  # weights, clicks, Σ cross-entropy, Σ prediction

    def add(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add rows: `logits` [n] float32, `labels` [n] 0 or 1, `weights` [n] >= 0 of every row or of none.

        Raises FloatingPointError for a logit that is NaN or infinity.
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
        self._kept += len(logits)
        if self._kept > self._exact_rows:
            self._spill()

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return self._num_rows

    def _spill(self) -> None:
        """Count the kept rows into bins, and drop them."""
        self._bins = self._bins.plus(self._count_kept(binned))
        self._logits, self._labels, self._weights, self._kept = [], [], [], 0

    def _count_kept(self, move: Callable[[np.ndarray], np.ndarray]) -> Bins:
        weights = np.concatenate(self._weights) if self._weights else None
        return Bins.of(move(np.concatenate(self._logits)), np.concatenate(self._labels), weights)

    def bins(self) -> Bins:
        """Return all rows so far, counted by logit. Raises NothingToMeasureError if there are none."""
        if not self._num_rows:
            raise NothingToMeasureError("no rows to measure: the split is empty, or all weights are 0")
        if self._bins.keys.size and self._kept:
            self._spill()  # exact logits must not rank beside those that were moved to the middle of their bin
        if not self._kept:
            return self._bins
        return self._count_kept(lambda logits: logits)

    def result(self) -> Metrics:
        """Compute the metrics of all rows so far. Raises NothingToMeasureError if there are none."""
        return self.result_and_bins()[0]

    def result_and_bins(self) -> tuple[Metrics, Bins]:
        """Return the metrics and the counted rows, as counting them is most of the work."""
        bins, (weight, clicks, cross_entropy, predictions) = self.bins(), self._sums
        return replace(metrics_of(bins, weight, clicks, cross_entropy, predictions), rows=self._num_rows), bins


def metrics_of(bins: Bins, weight: float, clicks: float, cross_entropy: float, predictions: float) -> Metrics:
    """Compute the metrics of rows counted in `bins`, whose sums of cross-entropy and predictions are known.

    `weight` and `clicks` are sums of weights; without any they are numbers of rows.
    """
    rate = float(clicks / weight)
    return Metrics(
        rows=int(weight),
        click_rate=rate,
        auc=bins.auc(),
        log_loss=float(cross_entropy / weight),
        normalized_entropy=ratio(cross_entropy / weight, entropy(rate)),
        calibration=ratio(predictions, clicks),
        pr_auc=bins.average_precision(),
    )


def as_score(name: str, value: float) -> float:
    """Return the value of a metric, negated if lower is better."""
    return -value if name in LOWER_IS_BETTER else value


def defined(metrics: Metrics) -> dict[str, float]:
    """Return the metrics by name, without those that are undefined on these rows."""
    return {name: value for name, value in asdict(metrics).items() if not np.isnan(value)}


LEVEL = 0.95

MOST_BINS = 2**14  # logits of one bin are ties; with this many bins no metric's spread changes

MEASURED = ("auc", "log_loss", "normalized_entropy", "calibration", "pr_auc")


def confidence_intervals(
    bins: Bins, replicates: int, seed: int, level: float = LEVEL
) -> dict[str, tuple[float, float]]:
    """Bootstrap (low, high) by metric; the same for the same bins and seed. Both classes must have rows."""
    bins = bins.coarsened(MOST_BINS)
    keys = bins.keys.astype(np.float64)
    cost_of_negative, cost_of_click, prediction = np.logaddexp(0, keys), -keys, bins.probabilities
    rng, found = np.random.default_rng(seed), []
    for _ in range(replicates):
        drawn = bins.drawn(rng)
        # Sums of products, not `@`: at this size BLAS starts its threads, which costs more than the sums.
        cross_entropy = float((drawn.counts * cost_of_negative + drawn.positives * cost_of_click).sum())
        predictions = (drawn.counts * prediction).sum()
        metrics = metrics_of(drawn, drawn.counts.sum(), drawn.positives.sum(), cross_entropy, float(predictions))
        found.append(asdict(metrics))
    tails = ((1 - level) / 2, (1 + level) / 2)
    intervals = {name: np.nanquantile([each[name] for each in found], tails) for name in MEASURED}
    return {name: (float(low), float(high)) for name, (low, high) in intervals.items()}
