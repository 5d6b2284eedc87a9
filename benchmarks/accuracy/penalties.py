"""Compare logistic regression with one L2 penalty for all values to one with a penalty for each group of values.

    python -m benchmarks.accuracy.penalties PREPARED … [--max-rows N]

Groups are the values whose number of training rows lies between the same powers of two, or the values of one field.
The penalty of a group is 1 / variance of its weights, which is estimated from the training rows alone: each of ROUNDS
fits gives new variances, by MacKay's rule (Bayesian Interpolation, 1992, eq. 4.3). A common factor of all penalties is
then chosen on the valid rows, as the single penalty is. A line shows AUC and log loss on test, and the variances.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from app.training.auto.regression import MAX_ROWS, FittedRegression, Solver, fit_best, read_features
from data_prep.prepared.schema import Schema, read_schema

ROUNDS = 6
LEAST_VARIANCE, LARGEST_VARIANCE = 1e-5, 10.0
# A group keeps its variance if the rows determine fewer weights of it than this: the sum of `determined` (see
# `estimate`).
LEAST_PARAMETERS = 0.5
NUMBERS = -1  # The group of numeric columns.


class Rows:
    """The rows of a split as features, whose columns can be scaled."""

    def __init__(self, folder: Path, schema: Schema, split: str, max_rows: int | None = None) -> None:
        self.features, self.labels, self.weights = read_features(folder, schema, split, max_rows)
        self._values = self.features.data.copy()

    def scale(self, factors: np.ndarray) -> None:
        """Multiply each column, as it was read, by its factor. With a penalty of 1, a weight then has the penalty
        1 / factor².
        """
        self.features.data = self._values * factors[self.features.indices].astype(np.float32)

    def log_loss(self, fitted: FittedRegression) -> float:
        logits = fitted.logits(self.features).astype(np.float64)
        return float(np.average(np.logaddexp(0, logits) - self.labels * logits, weights=self.weights))


def groups_of(schema: Schema, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return the number of the group of each column, for the two kinds of groups: by count and by field.

    `counts` has, for each column, the number of training rows whose value in it is not 0.
    """
    first = len(counts) - schema.vocabulary_size
    by_field = np.full(len(counts), NUMBERS)
    for number, field in enumerate(schema.categorical):
        for begin, end in (field.oov_ids, *field.id_ranges):
            by_field[first + begin : first + end] = number
    by_count = np.floor(np.log2(np.maximum(counts, 1))).astype(int)
    by_count[:first] = NUMBERS
    return {"count": by_count, "field": by_field}


def estimate(train: Rows, group: np.ndarray, counts: np.ndarray, variance: float) -> np.ndarray:
    """Return, for each column, the estimated variance of the weights of its group.

    `group` is the group of each column, and `counts` are the training rows of each column, as in `groups_of`. All
    groups start with `variance`.
    """
    variances = np.full(len(group), variance)
    for _ in range(ROUNDS):
        train.scale(np.sqrt(variances))
        fitted = Solver(train.features, train.labels, train.weights).fit(1.0)
        probability = 1 / (1 + np.exp(-fitted.logits(train.features).astype(np.float64)))
        curvature = probability * (1 - probability) * (1 if train.weights is None else train.weights)
        squares: Any = train.features.copy()
        squares.data = squares.data.astype(np.float64) ** 2
        # For each weight, how far the rows determine it, from 0 (only the penalty does) to 1, by the Hessian's
        # diagonal.
        determined = 1 - 1 / (1 + squares.T @ curvature)
        squared_weights = variances * fitted.weights**2
        for number in np.unique(group[counts > 0]):
            of_group = (counts > 0) & (group == number)
            if (parameters := determined[of_group].sum()) > LEAST_PARAMETERS:
                found = squared_weights[of_group].sum() / parameters
                variances[of_group] = np.clip(found, LEAST_VARIANCE, LARGEST_VARIANCE)
    return variances


def compare(folder: Path, max_rows: int) -> None:
    schema = read_schema(folder)
    train, valid, test = (Rows(folder, schema, split, max_rows) for split in ("train", "valid", "test"))
    counts = np.asarray((train.features != 0).sum(axis=0)).ravel()

    def tested(factors: np.ndarray) -> tuple[float, float, float]:
        """Multiply the columns by `factors`, the roots of their weights' variances, and fit the regression.

        Return the common factor of all variances that is best on valid, and AUC and log loss on test.
        """
        for rows in (train, valid, test):
            rows.scale(factors)
        best = fit_best(Solver(train.features, train.labels, train.weights), valid.log_loss)
        auc = roc_auc_score(test.labels, best.logits(test.features), sample_weight=test.weights)
        return best.inverse_penalty, float(auc), test.log_loss(best)

    single, auc, loss = tested(np.ones(len(counts)))
    print(f"{folder}: one penalty, C {single:.3g}: {auc:.5f} / {loss:.5f}", flush=True)
    for name, group in groups_of(schema, counts).items():
        variances = estimate(train, group, counts, single)
        _, grouped_auc, grouped_loss = tested(np.sqrt(variances))
        present = counts > 0
        of_group = {int(n): float(f"{variances[present & (group == n)][0]:.3g}") for n in np.unique(group[present])}
        print(f"    by {name}: {grouped_auc - auc:+.5f} / {grouped_loss - loss:+.5f}; variances {of_group}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="PREPARED")
    parser.add_argument("--max-rows", type=int, default=MAX_ROWS, help="rows of each split that are read")
    options = parser.parse_args()
    for folder in options.folders:
        compare(folder, options.max_rows)


if __name__ == "__main__":
    main()
