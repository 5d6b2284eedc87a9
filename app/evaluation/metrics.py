"""Metrics of logits against labels, over all rows of a stream, in bounded memory.

Up to `exact_rows` rows are kept (5 bytes each) and every metric is exact. Beyond that the rows are counted into bins of
their logit, 2**16 of which span a factor of two. Logits of one bin are ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from app.evaluation.score_bins import Bins, binned, entropy, ratio, sigmoid

EXACT_ROWS = 2**24


@dataclass(frozen=True)
class CountedRows:
    """Rows counted by logit, and their sums: of weights (rows, if they have none), clicks, losses and predictions."""

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
    """Compute the click rate of the tenth of the rows with the highest scores over that of all rows.

    If rows of one score are only partly in the tenth, each counts with that part.
    """
    counts, clicks = rows.bins.counts[::-1], rows.bins.positives[::-1]
    in_tenth = np.clip(counts.sum() / 10 - (np.cumsum(counts) - counts), 0, counts)
    share_in_tenth = np.divide(in_tenth, counts, out=np.zeros(len(counts)), where=counts > 0)
    return ratio(10 * float((clicks * share_in_tenth).sum()), float(clicks.sum()))


@dataclass(frozen=True)
class Metric:
    """Title and formula of a metric, and its meaning.

    `of` is None if it does not follow from counted rows. `better` is "" for a metric that is no reason to prefer a
    model. `at_one` says what a value of 1 means, `note` how the metric is made.
    """

    title: str
    of: Callable[[CountedRows], float] | None
    better: Literal["higher", "lower", ""] = "higher"
    needs_both_classes: bool = True
    at_one: str = ""
    note: str = ""


METRICS = {
    "auc": Metric("AUC", lambda rows: rows.bins.auc()),
    "log_loss": Metric("log loss", lambda rows: rows.log_loss, "lower", needs_both_classes=False),
    "normalized_entropy": Metric(
        "normalized entropy",
        lambda rows: ratio(rows.log_loss, entropy(rows.click_rate)),
        "lower",
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
    "grouped_auc": Metric("grouped AUC", of=None),
}
MEASURED = tuple(name for name, metric in METRICS.items() if metric.of)


@dataclass(frozen=True)
class Metrics:
    """The metrics of a model on a set of rows.

    `auc`, `pr_auc` (average precision) and `normalized_entropy` are NaN if the rows have one class only.
    `normalized_entropy` is log loss over that of the click rate (He et al., ADKDD 2014). `calibration` is
    mean prediction over mean label. `top_decile_lift` is the click rate of the tenth of the rows with the highest
    scores over that of all. `grouped_auc` is the mean AUC over the values of one field, weighted by rows, or NaN
    without a field. Weighted rows count by their weight, except in `rows`. Rows of weight 0 do not count.
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
    """No row has a weight above 0, as before the labels have come."""


class MetricStream:
    """Accumulates logits and labels batch by batch. `result` computes the metrics of all of them."""

    def __init__(self, exact_rows: int = EXACT_ROWS) -> None:
        self._exact_rows = exact_rows
        self._logits: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []  # as many as there are labels, or none
        self._num_rows = 0
        self._num_in_memory = 0
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
        self._num_in_memory += len(logits)
        if self._num_in_memory > self._exact_rows:
            self._spill()

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return self._num_rows

    def _spill(self) -> None:
        """Count the kept rows into bins, and drop them."""
        self._bins = self._bins.plus(self._count_kept(binned))
        self._logits, self._labels, self._weights, self._num_in_memory = [], [], [], 0

    def _count_kept(self, move: Callable[[np.ndarray], np.ndarray]) -> Bins:
        weights = np.concatenate(self._weights) if self._weights else None
        return Bins.of(move(np.concatenate(self._logits)), np.concatenate(self._labels), weights)

    def bins(self) -> Bins:
        """Return all rows so far, counted by logit. Raises NothingToMeasureError if there are none."""
        if not self._num_rows:
            raise NothingToMeasureError("no rows to measure: the split is empty, or all weights are 0")
        if self._bins.keys.size and self._num_in_memory:
            self._spill()  # exact logits must not rank beside those that were moved to the middle of their bin
        if not self._num_in_memory:
            return self._bins
        return self._count_kept(lambda logits: logits)

    def result(self) -> Metrics:
        """Compute the metrics of all rows so far. Raises NothingToMeasureError if there are none."""
        return self.result_and_bins()[0]

    def result_and_bins(self) -> tuple[Metrics, Bins]:
        """Return the metrics and the counted rows, as counting them is most of the work."""
        bins, (weight, clicks, cross_entropy, predictions) = self.bins(), self._sums
        counted = CountedRows(bins, weight, clicks, cross_entropy, predictions)
        return Metrics(self._num_rows, counted.click_rate, **measure(counted)), bins


def measure(counted: CountedRows) -> dict[str, float]:
    """Compute each metric that follows from counted rows."""
    return {name: metric.of(counted) for name, metric in METRICS.items() if metric.of}


def as_score(name: str, value: float) -> float:
    """Return the value of a metric, negated if lower is better."""
    return -value if METRICS[name].better == "lower" else value


def defined(metrics: Metrics) -> dict[str, float]:
    """Return the metrics by name, without those that are undefined on these rows."""
    return {name: value for name, value in asdict(metrics).items() if not np.isnan(value)}


LEVEL = 0.95

MOST_BINS = 2**14  # logits of one bin are ties; with this many bins no metric's spread changes


def confidence_intervals(bins: Bins, replicates: int, seed: int) -> dict[str, tuple[float, float]]:
    """Bootstrap (low, high) by metric, the same for the same bins and seed. Both classes must have rows."""
    bins = bins.coarsened(MOST_BINS)
    keys = bins.keys.astype(np.float64)
    cost_of_negative, cost_of_click, prediction = np.logaddexp(0, keys), -keys, bins.probabilities
    rng, replicas = np.random.default_rng(seed), []
    for _ in range(replicates):
        resampled = bins.drawn(rng)
        # Sums of products, not `@`: at this size BLAS starts its threads, which costs more than the sums.
        cross_entropy = float((resampled.counts * cost_of_negative + resampled.positives * cost_of_click).sum())
        predictions = (resampled.counts * prediction).sum()
        sums = (resampled.counts.sum(), resampled.positives.sum(), cross_entropy, float(predictions))
        replicas.append(measure(CountedRows(resampled, *sums)))
    tails = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    intervals = {name: np.nanquantile([each[name] for each in replicas], tails) for name in MEASURED}
    return {name: (float(low), float(high)) for name, (low, high) in intervals.items()}
