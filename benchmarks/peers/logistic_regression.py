"""Scores of the product's logistic regression (`python -m app baseline`), for comparisons with other models."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.cli.baseline import Solver, fit, read_features
from app.evaluation.score_bins import sigmoid
from data_prep.prepared.schema import read_schema


def predict(folder: Path, split: str, inverse_penalty: float) -> np.ndarray:
    """Log odds [rows] by a regression fitted to all of `train`."""
    schema = read_schema(folder)
    fitted = Solver(*read_features(folder, schema, "train")).fit(inverse_penalty)
    return fitted.logits(read_features(folder, schema, split)[0])


def probabilities_of(folder: Path, split: str) -> np.ndarray:
    """Fit to all of `train`, with the penalty chosen on `valid`. Return the probabilities [rows] of a split."""
    schema = read_schema(folder)
    fitted = fit(folder, schema, max_rows=schema.splits["train"].rows)
    return sigmoid(fitted.logits(read_features(folder, schema, split)[0]))
