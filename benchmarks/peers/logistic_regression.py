"""Logistic regression on the rows of a prepared folder: the floor that a Wide&Deep has to stand on.

    python -m benchmarks.peers.logistic_regression PREPARED [--split test]

Features are the one-hot ids of the categorical fields and the numeric columns, scaled to the one-hot columns' size; the
strength of the L2 penalty is the one of four with the lowest log loss on `valid`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.harness.prepared_rows import read_rows
from data_prep.prepared.schema import Schema, read_schema

# Inverse penalties C; many rare values want a strong penalty.
INVERSE_PENALTIES = (0.01, 0.03, 0.1, 0.3)
# Of the mean loss's gradient. A value that one row in a thousand has moves it by a thousandth of what it is worth: at
# 1e-3 the solver stops before most values are learned (AUC 0.748 where 1e-5 gives 0.759, on 400,000 rows).
TOLERANCE = 1e-5
MOST_ITERATIONS = 1000
NUMERIC_SCALE = 0.2  # logarithms of counts reach 16; unscaled they slow the solver down tenfold


Rows = tuple[sparse.csr_matrix, np.ndarray]  # features [rows, N + V] and labels [rows]


@dataclass(frozen=True)
class Result:
    """AUC and log loss on the split asked for, and the inverse penalty that `valid` chose."""

    auc: float
    log_loss: float
    inverse_penalty: float


def read_split(folder: Path, schema: Schema, split: str) -> Rows:
    """Features [rows, N + V] and labels [rows] of one split."""
    rows = read_rows(folder, schema, split)
    ids, numeric, labels = rows.ids, rows.numeric, rows.labels
    starts = np.arange(0, ids.size + 1, ids.shape[1])
    one_hot = sparse.csr_matrix(
        (np.ones(ids.size, np.float32), ids.reshape(-1), starts), shape=(len(ids), schema.vocabulary_size)
    )
    return sparse.hstack([sparse.csr_matrix(numeric * np.float32(NUMERIC_SCALE)), one_hot], format="csr"), labels


def make_model(inverse_penalty: float) -> LogisticRegression:
    """A regression that is solved to its end; fitted again, it goes on from where it was."""
    return LogisticRegression(C=inverse_penalty, max_iter=MOST_ITERATIONS, tol=TOLERANCE, warm_start=True)


def predict(train: Rows, rows: Rows, inverse_penalty: float) -> np.ndarray:
    """Log odds [rows] by a regression fitted to `train`."""
    odds: np.ndarray = make_model(inverse_penalty).fit(*train).decision_function(rows[0])
    return odds


@dataclass(frozen=True)
class Fitted:
    """Click probabilities and labels of the split asked for [rows], and the inverse penalty that `valid` chose."""

    probabilities: np.ndarray
    labels: np.ndarray
    inverse_penalty: float


def fit_and_predict(folder: Path, split: str = "test") -> Fitted:
    """Fit on `train`, choose the penalty on `valid`, predict `split`."""
    schema = read_schema(folder)
    train, valid, test = (read_split(folder, schema, name) for name in ("train", "valid", split))
    model, best = make_model(INVERSE_PENALTIES[0]), None
    for inverse_penalty in INVERSE_PENALTIES:  # rising: each solution is a good start for the next
        model.set_params(C=inverse_penalty).fit(*train)
        loss = log_loss(valid[1], model.predict_proba(valid[0])[:, 1])
        if best is not None and loss > best[0]:
            break
        best = loss, Fitted(model.predict_proba(test[0])[:, 1], test[1], inverse_penalty)
    assert best is not None
    return best[1]


def fit(folder: Path, split: str = "test") -> Result:
    """Fit on `train`, choose the penalty on `valid`, judge on `split`."""
    found = fit_and_predict(folder, split)
    auc, loss = (metric(found.labels, found.probabilities) for metric in (roc_auc_score, log_loss))
    return Result(float(auc), float(loss), found.inverse_penalty)


def main() -> None:
    """Print the result and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split", default="test")
    arguments = parser.parse_args()
    result = fit(arguments.folder, arguments.split)
    print(f"logistic regression: AUC {result.auc:.6f}, log loss {result.log_loss:.6f}, C {result.inverse_penalty}")
    print(json.dumps(vars(result)))


if __name__ == "__main__":
    main()
