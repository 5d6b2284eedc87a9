"""Measure how well a single column of a log predicts the label, on rows to which the predictor was not fitted.

The column is used as a category or as a number. A column that predicts the label almost alone is a leak.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from data_prep.checks.first_rows import Column
from data_prep.prepared.truth import area_under_curve

MOST_ROWS = 20_000
# The click rate of a value is smoothed: to the rows that have the value, a number of imaginary rows with the mean click
# rate is added. This number is the strength. Each of these strengths is tried, and the one with the lowest loss is
# used.
_STRENGTHS = (2.0, 10.0, 50.0)
# To predict the label from a column of numbers, the numbers are divided into bins. Each of these numbers of bins is
# tried, and the one with the lowest log loss is used.
_BINS = (4, 8, 16, 32)
# A number of bins is only tried if the column has at least this many distinct numbers per bin. With fewer, the bins
# would treat the numbers as categories.
_VALUES_A_BIN = 3
_NEWTON_STEPS = 8
# A single column with a higher AUC is a leak. For comparison: on public click logs, the best models reach an AUC of 0.8
# from all columns.
_LEAK_AUC = 0.95
# An AUC is only computed with at least this many clicks and this many other rows. The AUC of a column that predicts
# nothing is then within 0.5 ± 0.2.
_MIN_TEST_ROWS = 50
_LARGEST = 1e15  # Numbers above this are replaced by it, so that their squares do not overflow in the regression.


def some_rows(good: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the indices of at most `MOST_ROWS` evenly spaced rows among those for which `good` [n] is True."""
    rows = np.flatnonzero(good)
    return rows[:: -(-len(rows) // MOST_ROWS) or 1]


def entropy(labels: NDArray[np.bool_]) -> float:
    """Return the mean log loss if the label of every row is predicted by the mean click rate of the rows."""
    rate = float(labels.mean())
    return 0.0 if rate in (0.0, 1.0) else -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)


def category_losses(codes: NDArray[np.int64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the log loss of each row [n] if the row's label is predicted from its value of one column, as a category.

    The prediction is the smoothed click rate of the other rows with the same value. `codes` [n] are the indices of the
    values, or -1 for a missing cell. Of several strengths of smoothing, the one with the lowest mean loss is used.
    """
    # Rows with the same value and label have the same loss, so losses are computed for each value [V] and label [2].
    clicked, values = np.array([False, True]), codes + 1
    num_others = np.bincount(values)[:, None] - 1
    clicks = np.bincount(values, labels)[:, None] - clicked
    mean = (labels.sum() - clicked) / max(len(labels) - 1, 1)
    losses = (_losses((clicks + strength * mean) / (num_others + strength), clicked) for strength in _STRENGTHS)
    return _best(each[values, labels.astype(np.int64)] for each in losses)


def number_losses(numbers: NDArray[np.float64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the log loss of each row [n] if the row's label is predicted from its number in one column.

    A missing number is NaN. The prediction comes from bins of the numbers or from a smooth curve, whichever has the
    lower mean loss.
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
    """Return the log loss of each row [n] for a logistic regression on a number, its logarithm and the squares of both.

    `present` [n] marks the rows in which the number is not missing. The regression is fitted to the same rows, so the
    losses include a correction that raises their mean to what it would be on other rows.
    """
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
    # The regression is fitted to the rows that it predicts, so the mean of their losses is too low. On other rows the
    # mean is higher by about the number of weights divided by the number of rows (Akaike), which is added here.
    optimism: NDArray[np.float64] = _losses(rates, labels) + columns.shape[1] / len(labels)
    return optimism


def _losses(rates: NDArray[np.float64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    rates = np.clip(rates, 1e-6, 1 - 1e-6)
    return -np.log(np.where(labels, rates, 1 - rates))


def _best(losses: Iterator[NDArray[np.float64]]) -> NDArray[np.float64]:
    return min(losses, key=lambda each: float(each.mean()))


def deviations(worse: NDArray[np.float64], better: NDArray[np.float64]) -> float:
    """Return by how many standard errors the mean of the losses `worse` [n] exceeds that of the losses `better` [n].

    `better` and `worse` are losses of the same rows, so the standard error is computed from the difference of the two
    losses of each row.
    """
    difference = worse - better
    error = float(difference.std()) / math.sqrt(len(difference))
    return float(difference.mean()) / error if error > 0 else 0.0


def leaking_columns(
    columns: Iterable[Column], labels: NDArray[np.bool_], good: NDArray[np.bool_]
) -> Iterator[tuple[str, float]]:
    """Yield the name of each column that alone predicts the label with an AUC above 0.95, and this AUC.

    `labels` [n] is True for clicks. `good` [n] is True for rows with a valid label; only these rows are used. With too
    few clicks or too few other rows, nothing is yielded.
    """
    labels = labels[good]
    is_test = np.random.default_rng(1).random(len(labels)) < 0.5
    num_clicks = int(labels[is_test].sum())
    if min(num_clicks, int(is_test.sum()) - num_clicks) < _MIN_TEST_ROWS:
        return
    for column in columns:
        # The number of rows, and of clicks, by the rank of the value. Sorting values takes less time than sorting rows.
        ranks = column.ranks[good]
        rows, clicks = np.bincount(ranks), np.bincount(ranks, labels)
        test_rows, test_clicks = (np.bincount(ranks, each, len(rows)) for each in (is_test, is_test & labels))
        auc = area_under_curve(_click_rates(rows - test_rows, clicks - test_clicks), test_clicks, test_rows)
        # A missing cell has rank 0, below all numbers. The AUC therefore also shows whether missing cells predict the
        # label.
        if column.numbers is not None:
            by_number = area_under_curve(np.arange(len(rows)), clicks, rows)
            auc = max(auc, by_number, 1 - by_number)
        if auc > _LEAK_AUC:
            yield column.name, auc


def _click_rates(rows: np.ndarray, clicks: np.ndarray) -> np.ndarray:
    """Return a click rate for each value of a column [V]: that of the training rows with this value.

    `rows` [V] and `clicks` [V] are the numbers of training rows and of clicks among them. Click rates are shrunk toward
    the click rate of all training rows. Therefore a value that occurs only once, such as the identifier of a row,
    predicts nothing.
    """
    return (clicks + clicks.sum() / rows.sum()) / (rows + 1)
