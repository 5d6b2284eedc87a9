"""Measure how well a single column predicts the label of held-out rows, as a category or as a number."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

MOST_ROWS = 20_000
# Strengths of smoothing that are tried: numbers of rows with the mean rate that are added to the rows of each value.
_STRENGTHS = (2.0, 10.0, 50.0)
_BINS = (4, 8, 16, 32)  # Numbers of bins that are tried.
_VALUES_A_BIN = 3  # Minimum number of distinct values per bin. With finer bins, a number would be a category.
_NEWTON_STEPS = 8
_LARGEST = 1e15  # Larger numbers are clipped, so that their squares do not break the regression.


def some_rows(num_rows: int) -> slice:
    """Return a slice that selects evenly spaced rows, at most `MOST_ROWS`."""
    return slice(None, None, -(-num_rows // MOST_ROWS) or 1)


def entropy(labels: NDArray[np.bool_]) -> float:
    """Return the mean log loss of predicting the mean click rate for all rows."""
    rate = float(labels.mean())
    return 0.0 if rate in (0.0, 1.0) else -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)


def category_losses(codes: NDArray[np.int64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the log loss of each row [n] if the column is a category.

    A row is predicted by the smoothed click rate of the other rows with the same value. `codes` [n] are the values,
    from -1 on. The best of several strengths of smoothing is used.
    """
    clicked, values = labels.astype(np.float64), codes + 1
    num_others = np.bincount(values)[values] - 1
    clicks = np.bincount(values, clicked)[values] - clicked
    mean = (clicked.sum() - clicked) / max(len(labels) - 1, 1)
    return _best(_losses((clicks + strength * mean) / (num_others + strength), labels) for strength in _STRENGTHS)


def number_losses(numbers: NDArray[np.float64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the log loss of each row [n] if the column is a number, which is NaN where it is missing.

    The number is predicted by bins or by a smooth curve, whichever is better.
    """
    return _best(_by_number(numbers, labels))


def _by_number(numbers: NDArray[np.float64], labels: NDArray[np.bool_]) -> Iterator[NDArray[np.float64]]:
    present = np.isfinite(numbers)
    logs = np.sign(numbers[present]) * np.log1p(np.abs(numbers[present]))
    distinct = len(np.unique(logs))
    yield _smooth_losses(numbers, present, labels)
    for bins in _BINS:
        if bins * _VALUES_A_BIN <= distinct:
            shares = np.linspace(0, 1, bins + 1)[1:-1]
            for edges in (np.quantile(logs, shares), logs.min() + shares * (logs.max() - logs.min())):
                codes = np.full(len(numbers), -1)
                codes[present] = np.searchsorted(edges, logs, side="right")
                yield category_losses(codes, labels)


def _smooth_losses(
    numbers: NDArray[np.float64], present: NDArray[np.bool_], labels: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the log losses of a logistic regression on a number, its logarithm, and the squares of both."""
    filled = np.clip(np.where(present, numbers, 0), -_LARGEST, _LARGEST)
    logs = np.sign(filled) * np.log1p(np.abs(filled))
    curve = [of for each in (filled, logs) for of in (each, (each - each.mean()) ** 2)]
    columns = np.stack([np.ones(len(numbers)), ~present, *curve], axis=1).astype(np.float64)
    scale = columns.std(axis=0)
    columns = np.where(scale > 0, (columns - columns.mean(axis=0)) / np.where(scale > 0, scale, 1), 0)
    columns[:, 0] = 1
    weights = np.zeros(columns.shape[1])
    ridge = 1e-3 * len(labels) * np.eye(columns.shape[1])
    for _ in range(_NEWTON_STEPS):
        rates = 1 / (1 + np.exp(-np.clip(columns @ weights, -30, 30)))
        curvature = columns.T @ (columns * np.maximum(rates * (1 - rates), 1e-6)[:, None]) + ridge
        weights += np.linalg.solve(curvature, columns.T @ (labels - rates) - ridge @ weights)
    rates = 1 / (1 + np.exp(-np.clip(columns @ weights, -30, 30)))
    # The regression is fitted to the same rows, so their mean loss is too low. On other rows it is higher by about the
    # number of weights divided by the number of rows (Akaike).
    optimism: NDArray[np.float64] = _losses(rates, labels) + columns.shape[1] / len(labels)
    return optimism


def _losses(rates: NDArray[np.float64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    rates = np.clip(rates, 1e-6, 1 - 1e-6)
    return -np.log(np.where(labels, rates, 1 - rates))


def _best(losses: Iterator[NDArray[np.float64]]) -> NDArray[np.float64]:
    return min(losses, key=lambda each: float(each.mean()))


def deviations(worse: NDArray[np.float64], better: NDArray[np.float64]) -> float:
    """Return by how many standard errors the mean of the losses `worse` [n] exceeds that of `better` [n].

    The losses are of the same rows, so the standard error is that of their differences.
    """
    difference = worse - better
    error = float(difference.std()) / math.sqrt(len(difference))
    return float(difference.mean()) / error if error > 0 else 0.0
