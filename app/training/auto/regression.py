"""Fit a logistic regression on a prepared folder with scikit-learn, as a baseline for the model.

Features are the one-hot ids of the categorical fields, the numeric columns and the components of vectors. The training
rows are held in memory. Rows of valid and test are read in batches. Shapes use N for the number of numeric columns, K
for the inputs of vectors and V for the vocabulary size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.evaluation.metrics import Metrics, MetricStream
from data_prep.prepared.examples import Examples, concatenate, one_hot
from data_prep.prepared.reader import read_blocks, read_spread
from data_prep.prepared.schema import Schema

log = logging.getLogger("app")

# Rows as features, sparse float32 [n, N + K + V], their labels [n], and their weights [n] or None.
Features = tuple[Any, NDArray[np.float32], NDArray[np.float32] | None]

MAX_ROWS = 1_000_000
MAX_VALUES = 150_000_000  # Upper bound of training rows times feature values per row. So many values take 1.2 GB.
# Inverse L2 penalty C: the first value tried, the factor between values, and the limits of the search.
FIRST_C, STEP_OF_C, SMALLEST_C, LARGEST_C = 10**-1.5, 10**0.5, 1e-4, 1e2
MAX_NEWTON_STEPS = 100
MOST_TOLERANCE = 1e-5


@dataclass(frozen=True)
class FittedRegression:
    """A fitted logistic regression, the inverse penalty C that was best on valid rows, and the number of
    training rows.
    """

    # Weights of the numeric columns, then of the vectors' inputs, then of the ids, [N + K + V].
    weights: NDArray[np.float64]
    intercept: float
    inverse_penalty: float
    train_rows: int

    def logits(self, features: Any) -> NDArray[np.float32]:
        """Return the logits, float32 [n], of n rows. `features` [n, N + K + V] is sparse, from `read_features`."""
        return features @ np.float32(self.weights) + np.float32(self.intercept)


def fit(folder: Path, schema: Schema, max_rows: int = MAX_ROWS) -> FittedRegression:
    """Fit a logistic regression to the training rows of a prepared folder, and return it.

    The penalty is chosen by the log loss on the valid rows. Without valid rows it is FIRST_C. At most about `max_rows`
    training rows are used, see `most_rows`. Raise ValueError if all training rows have the same label.
    """
    features, labels, weights = read_features(folder, schema, "train", most_rows(schema, max_rows))
    if len(np.unique(labels)) < 2:
        raise ValueError(
            f"the {len(labels):,} training rows of {folder} have one class only; there is nothing to learn"
        )
    log.info("logistic regression on %s of %s training rows", f"{len(labels):,}", f"{schema.splits['train'].rows:,}")
    solver = Solver(features, labels, weights)
    if not schema.splits["valid"].rows:
        return solver.fit(FIRST_C)

    def valid_loss(fitted: FittedRegression) -> float:
        loss = float(evaluate(fitted, folder, schema, "valid").log_loss)
        log.info("inverse penalty C %.2g: log loss %.6f on valid rows", fitted.inverse_penalty, loss)
        return loss

    return fit_best(solver, valid_loss)


def fit_best(solver: Solver, valid_loss: Callable[[FittedRegression], float]) -> FittedRegression:
    """Fit with one penalty after another, in steps of STEP_OF_C, and return the fit with the smallest `valid_loss`."""
    first = best = solver.fit(FIRST_C)
    least = valid_loss(best)
    # Raise C until the loss gets worse. If the first raise already makes the loss worse, lower C in the same way.
    for factor in (STEP_OF_C, 1 / STEP_OF_C):
        while SMALLEST_C <= best.inverse_penalty * factor <= LARGEST_C:
            fitted = solver.fit(best.inverse_penalty * factor)
            loss = valid_loss(fitted)
            if loss >= least:
                break
            best, least = fitted, loss
        if best is not first:
            break
    return best


def log_losses(logits: NDArray[np.float32], labels: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the log loss of each row [n]."""
    losses: NDArray[np.float64] = np.logaddexp(0.0, logits.astype(np.float64)) - labels * logits
    return losses


def fit_rows(train: Features, valid: Features) -> FittedRegression:
    """Fit to the rows `train` with the penalty whose log loss on the rows `valid` is the smallest."""
    features, labels, weights = valid

    def valid_loss(fitted: FittedRegression) -> float:
        return float(np.average(log_losses(fitted.logits(features), labels), weights=weights))

    return fit_best(Solver(*train), valid_loss)


class Solver:
    """Fits logistic regressions to the same rows with different L2 penalties, using scikit-learn.

    A fit minimizes Σ weight · log loss + |w|² / 2C, without a penalty on the intercept. Each fit starts from the
    solution of the previous one.
    """

    def __init__(self, *rows: *Features) -> None:
        from sklearn.linear_model import LogisticRegression

        self._rows = rows
        # scikit-learn compares the tolerance with the gradient of the mean loss. A categorical value that occurs in few
        # rows contributes little to this gradient. With scikit-learn's default tolerance, a fit with a changed C would
        # often end before its first step.
        self._model = LogisticRegression(
            solver="newton-cg", warm_start=True, max_iter=MAX_NEWTON_STEPS, tol=min(MOST_TOLERANCE, 1 / len(rows[1]))
        )

    def fit(self, inverse_penalty: float) -> FittedRegression:
        """Fit the logistic regression with the inverse penalty C to the rows, and return it."""
        model = self._model.set_params(C=inverse_penalty).fit(*self._rows)
        weights = model.coef_[0].astype(np.float64)
        return FittedRegression(weights, float(model.intercept_[0]), inverse_penalty, len(self._rows[1]))


def evaluate(fitted: FittedRegression, folder: Path, schema: Schema, split: str) -> Metrics:
    """Return the metrics of the regression `fitted` on all rows of a split, reading one block at a time."""
    stream = MetricStream()
    for rows in read_blocks(folder, schema, split):
        stream.add(fitted.logits(one_hot(rows, schema)), rows.labels, rows.weights)
    return stream.result()


def most_rows(schema: Schema, max_rows: int) -> int:
    """Return `max_rows`, or a smaller number if `max_rows` rows would have more than MAX_VALUES values in all."""
    return min(max_rows, MAX_VALUES // (schema.num_numeric + schema.vector_inputs + schema.num_positions))


def read_features(folder: Path, schema: Schema, split: str, max_rows: int | None = None) -> Features:
    """Return the rows of a split: their features as a sparse matrix [rows, N + K + V] (numbers, inputs of vectors, and
    a column for each id), their labels [rows], and their weights [rows], or None if they have none.

    With `max_rows`, read only about that many rows, in blocks spread over the split. Rows with weight 0 are left out.
    """
    from scipy import sparse

    blocks = list(read_spread(folder, schema, split, max_rows))
    features = sparse.vstack([one_hot(rows, schema) for rows in blocks], format="csr")
    rows = concatenate([Examples(rows.ids[:, :0], rows.numeric[:, :0], rows.labels, rows.weights) for rows in blocks])
    return features, rows.labels, rows.weights
