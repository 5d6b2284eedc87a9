"""Offer a bundle as MLflow's python_function, to which its file MLmodel refers: `mlflow models serve -m BUNDLE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.scoring.predictor import Predictor

if TYPE_CHECKING:
    import pandas as pd


class ScoringModel:
    """A bundle with the method `predict` that MLflow calls."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> list[float]:
        """Return the click probability of each row."""
        return [float(score) for score in self._predictor.score(model_input)]


def _load_pyfunc(path: str) -> ScoringModel:
    """Open the bundle at `path`. MLflow calls this function."""
    return ScoringModel(Predictor.open(path))
