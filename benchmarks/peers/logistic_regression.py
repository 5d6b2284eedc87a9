"""Scores of the product's logistic regression (`python -m app baseline`), for comparisons with other models."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from app.evaluation.metrics import sigmoid
from app.training.auto.regression import MAX_ROWS, Solver, fit, read_features
from data_prep.prepared.examples import one_hot
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import read_schema


def predict(folder: Path, split: str, inverse_penalty: float) -> np.ndarray:
    """Return the log odds [rows] of a split, by a logistic regression that is fitted to all training rows."""
    schema = read_schema(folder)
    fitted = Solver(*read_features(folder, schema, "train")).fit(inverse_penalty)
    return fitted.logits(read_features(folder, schema, split)[0])


def probabilities_of(folder: Path, split: str, max_rows: int | None = None) -> np.ndarray:
    """Fit a logistic regression to the training rows. Return its click probabilities for the rows of a split.

    It is fitted to all training rows or to `max_rows` of them. The penalty is chosen on `valid`.
    """
    schema = read_schema(folder)
    fitted = fit(folder, schema, max_rows or schema.splits["train"].rows)
    blocks = read_blocks(folder, schema, split)
    return sigmoid(np.concatenate([fitted.logits(one_hot(rows, schema)) for rows in blocks]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path, help="an .npy file")
    parser.add_argument("--max-rows", type=int, default=MAX_ROWS, help="training rows to fit to")
    options = parser.parse_args()
    np.save(options.output, probabilities_of(options.folder, "test", options.max_rows))


if __name__ == "__main__":
    main()
