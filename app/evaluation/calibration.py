"""Calibrate a model by Platt's scaling: fit its probabilities to the click rates of rows that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.evaluation.score_bins import Bins


@dataclass(frozen=True)
class Calibration:
    """A linear map of logits, slope · logit + intercept, fitted to `rows` rows of the split valid.

    >>> Calibration(slope=0.5, intercept=1.0, rows=100)(np.float32([2.0, -2.0]))
    array([2., 0.], dtype=float32)
    """

    slope: float
    intercept: float
    rows: int

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """Return the calibrated logits, float32."""
        return (np.float32(self.slope) * logits + np.float32(self.intercept)).astype(np.float32)

    def __str__(self) -> str:
        sign = "-" if self.intercept < 0 else "+"
        return f"{self.slope:.4f} · logit {sign} {abs(self.intercept):.4f}, fitted to {self.rows:,} rows of valid"


def fit_calibration(bins: Bins, rows: int) -> Calibration:
    """Return the calibration whose slope and intercept fit the rows of valid that `bins` counts by logit.

    `rows` is the number of these rows. The counts in `bins` may instead be sums of the rows' weights.

    The fit is a logistic regression without a penalty. Raise ValueError if all rows have the same label, or if the
    fitted slope is not above 0, which means that the logits rank the rows no better than chance.
    """
    if not (bins.positives.any() and bins.negatives.any()):
        raise ValueError(f"nothing to calibrate on: the {rows:,} rows of valid have one class only")
    from sklearn.linear_model import LogisticRegression  # The import takes a second, so it is done only when needed.

    logits = bins.keys.astype(np.float64)
    labels = np.repeat([0, 1], len(logits))
    weights = np.concatenate([bins.negatives, bins.positives])
    fitted = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000)
    fitted.fit(np.tile(logits, 2)[:, None], labels, sample_weight=weights)
    slope, intercept = float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
    if not slope > 0:
        raise ValueError(
            f"the model cannot be calibrated: on the {rows:,} rows of valid the best slope of its logits is "
            f"{slope:.3g}, expected above 0; it ranks them no better than chance"
        )
    return Calibration(slope, intercept, rows)
