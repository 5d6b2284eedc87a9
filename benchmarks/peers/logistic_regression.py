"""Scores of the product's logistic regression (`python -m app baseline`), for comparisons with other models."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.cli.baseline import fit, make_model, read_features
from data_prep.prepared.schema import read_schema


def predict(folder: Path, split: str, inverse_penalty: float) -> np.ndarray:
    """Log odds [rows] by a regression fitted to all of `train`."""
    schema = read_schema(folder)
    model = make_model(inverse_penalty).fit(*read_features(folder, schema, "train"))
    odds: np.ndarray = model.decision_function(read_features(folder, schema, split)[0])
    return odds


def probabilities_of(folder: Path, split: str) -> np.ndarray:
    """Fit to all of `train`, with the penalty chosen on `valid`; return the probabilities [rows] of a split."""
    schema = read_schema(folder)
    fitted = fit(folder, schema, max_rows=schema.splits["train"].rows)
    probabilities: np.ndarray = fitted.model.predict_proba(read_features(folder, schema, split)[0])[:, 1]
    return probabilities
