"""The bundle as MLflow's python_function, as its MLmodel names it: `mlflow models serve -m BUNDLE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.scoring.predictor import Predictor

if TYPE_CHECKING:
    import pandas as pd


class ScoringModel:
    """Model with the method that MLflow calls."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> list[float]:
        """Return the click probability of each row."""
        return [float(score) for score in self._predictor.score(model_input)]


def _load_pyfunc(path: str) -> ScoringModel:
    """Open the bundle at `path`, as MLflow asks for it."""
    return ScoringModel(Predictor.open(path))
