"""Compute the curves and histograms of a report from rows that are counted by logit (`score_bins.Bins`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.evaluation.score_bins import Bins

CURVE_POINTS = 400
HISTOGRAM_BINS = 50


def roc_curve(bins: Bins, most: int = CURVE_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays, the false positive rates and the true positive rates of the points of the ROC curve, from the
    point (0, 0) to (1, 1).

    There are at most `most` points, at about equal steps along the curve. There must be rows of both labels.
    """
    false_rate, true_rate = (
        np.concatenate([[0], np.cumsum(counts[::-1]) / counts.sum()]) for counts in (bins.negatives, bins.positives)
    )
    places = _thinned(false_rate + true_rate, most)
    return false_rate[places], true_rate[places]


def precision_recall_curve(bins: Bins, most: int = CURVE_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return the recalls and the precisions of the precision-recall curve, at about equal steps of recall.

    There are at most `most` points. At least one row must be a click.
    """
    clicks = np.cumsum(bins.positives[::-1])
    recall, precision = clicks / clicks[-1], clicks / np.cumsum(bins.counts[::-1])
    places = _thinned(recall, most)
    return recall[places], precision[places]


def _thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Choose at most `most` of the ascending `values` that are about equally far apart, and return their indices.

    The first and the last of `values` are always chosen.
    """
    if len(values) <= most:
        return np.arange(len(values))
    return np.unique([*np.searchsorted(values, np.linspace(values[0], values[-1], most - 1)), len(values) - 1])


@dataclass(frozen=True)
class CalibrationBin:
    """Rows with similar predictions: their number, mean predicted probability and click rate."""

    rows: int
    mean_prediction: float
    click_rate: float


def calibration_deciles(bins: Bins, parts: int = 10) -> list[CalibrationBin]:
    """Sort the rows by predicted probability and divide them into `parts` parts with about equal numbers of rows.
    Return the number of rows, the mean prediction and the click rate of each part.

    As in scikit-learn's `calibration_curve(strategy="quantile")`, rows with equal predictions are in the same part, and
    a part without rows is left out.
    """
    probabilities, counts = bins.probabilities, bins.counts
    edges = _quantiles(probabilities, counts, np.arange(1, parts) / parts)
    part_of_key = np.searchsorted(edges, probabilities)
    rows, clicks, predicted = (
        np.bincount(part_of_key, weights, parts) for weights in (counts, bins.positives, counts * probabilities)
    )
    return [
        CalibrationBin(round(rows[part]), float(predicted[part] / rows[part]), float(clicks[part] / rows[part]))
        for part in np.flatnonzero(rows)
    ]


def _quantiles(values: np.ndarray, counts: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Return the quantiles at `fractions` (such as 0.5 for the median) of a quantity of rows that takes the ascending
    `values`: counts[i] rows have values[i].

    Quantiles are interpolated as `numpy.quantile` does. If `counts` are sums of weights, they are not interpolated.
    """
    ends = np.cumsum(counts)
    if counts.dtype != np.int64:  # The counts are weights.
        return values[np.minimum(np.searchsorted(ends, fractions * ends[-1]), len(values) - 1)]
    rank = fractions * (ends[-1] - 1)
    low, high = (values[np.searchsorted(ends, index, side="right")] for index in (np.floor(rank), np.ceil(rank)))
    return low + (high - low) * (rank - np.floor(rank))


def score_histogram(bins: Bins, parts: int = HISTOGRAM_BINS) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of rows with label 0 [parts] and with label 1 [parts] in intervals of the prediction.

    There are `parts` intervals, which divide the probabilities from 0 to 1 evenly.
    """
    part_of_key = np.minimum((bins.probabilities * parts).astype(np.int64), parts - 1)
    negatives, positives = (np.bincount(part_of_key, counts, parts) for counts in (bins.negatives, bins.positives))
    return negatives.astype(bins.negatives.dtype), positives.astype(bins.positives.dtype)
