"""Compute curves and histograms of counted rows, for reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.evaluation.score_bins import Bins

CURVE_POINTS = 400
HISTOGRAM_BINS = 50


def roc_curve(bins: Bins, most: int = CURVE_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return false and true positive rates over falling thresholds, from (0, 0) to (1, 1).

    There are at most `most` points, at about equal steps along the curve. Both classes must have rows.
    """
    false_rate, true_rate = (
        np.concatenate([[0], np.cumsum(counts[::-1]) / counts.sum()]) for counts in (bins.negatives, bins.positives)
    )
    places = _thinned(false_rate + true_rate, most)
    return false_rate[places], true_rate[places]


def precision_recall_curve(bins: Bins, most: int = CURVE_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return recall and precision over falling thresholds, at about equal steps of recall.

    There are at most `most` points. At least one row must be a click.
    """
    clicks = np.cumsum(bins.positives[::-1])
    recall, precision = clicks / clicks[-1], clicks / np.cumsum(bins.counts[::-1])
    places = _thinned(recall, most)
    return recall[places], precision[places]


def _thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Return indices of at most `most` ascending values at about equal steps, including the first and the last."""
    if len(values) <= most:
        return np.arange(len(values))
    return np.unique([*np.searchsorted(values, np.linspace(values[0], values[-1], most - 1)), len(values) - 1])


@dataclass(frozen=True)
class CalibrationBin:
    """Rows with about equal predictions."""

    rows: int
    mean_prediction: float
    click_rate: float


def calibration_deciles(bins: Bins, parts: int = 10) -> list[CalibrationBin]:
    """Return tenths of the rows by ascending prediction.

    As in scikit-learn's `calibration_curve(strategy="quantile")`, rows with equal predictions stay together, and a
    tenth without rows is left out.
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
    """Return quantiles of ascending `values`, each of which occurs `counts` times.

    Values are interpolated as `numpy.quantile` does, unless counts are weights.
    """
    ends = np.cumsum(counts)
    if counts.dtype != np.int64:  # The counts are weights.
        return values[np.minimum(np.searchsorted(ends, fractions * ends[-1]), len(values) - 1)]
    rank = fractions * (ends[-1] - 1)
    low, high = (values[np.searchsorted(ends, index, side="right")] for index in (np.floor(rank), np.ceil(rank)))
    return low + (high - low) * (rank - np.floor(rank))


def score_histogram(bins: Bins, parts: int = HISTOGRAM_BINS) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of rows with label 0 and with label 1, by `parts` equal intervals of the predicted
    probability.
    """
    part_of_key = np.minimum((bins.probabilities * parts).astype(np.int64), parts - 1)
    negatives, positives = (np.bincount(part_of_key, counts, parts) for counts in (bins.negatives, bins.positives))
    return negatives.astype(bins.negatives.dtype), positives.astype(bins.positives.dtype)
