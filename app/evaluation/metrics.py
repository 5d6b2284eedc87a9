"""Compute metrics of logits against labels, over all rows of a stream, in bounded memory.

Up to `exact_rows` rows are kept in memory (5 bytes each), and every metric is exact. If there are more, rows are
counted in bins of similar logits. There are 2**16 bins between a logit and its double; logits in the same bin count as
ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from app.evaluation.groups import GroupedRows, auc_in_groups
from app.evaluation.score_bins import Bins, binned, entropy, ratio, sigmoid
from common.process import num_cores

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
