"""Calibrate a model by Platt's scaling or by a temperature: fit its probabilities to the click rates of rows that it
was not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.evaluation.metrics import Bins

# Upper bound of the factor for logits that `fit_temperature` fits. A larger factor means that the split valid has too
# few rows to fit one.
LARGEST_FACTOR = 10.0
# Method by which scores are fitted to the click rates of the split valid. True stands for "platt", False for none.
Calibrate = bool | Literal["platt", "auto"]


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
    if not bins.has_both_classes:
        raise ValueError(f"nothing to calibrate on: the {rows:,} rows of valid have one class only")
    slope, intercept = _fit_line(bins, has_intercept=True)
    if not slope > 0:
        raise ValueError(
            f"the model cannot be calibrated: on the {rows:,} rows of valid the best slope of its logits is "
            f"{slope:.3g}, expected above 0; it ranks them no better than chance"
        )
    return Calibration(slope, intercept, rows)


def fit_temperature(bins: Bins, rows: int) -> Calibration | None:
    """Fit a factor for the logits (1 / temperature) to the rows counted in `bins`, as in Guo et al., "On Calibration of
    Modern Neural Networks" (ICML 2017). Return it as a calibration with intercept 0.

    Return None if all rows have the same label, if the factor is not between 0 and LARGEST_FACTOR, or unless it lowers
    the mean log loss of these rows by more than the standard error of that difference. `rows` is the number of rows.
    """
    if not bins.has_both_classes:
        return None
    slope, _ = _fit_line(bins, has_intercept=False)
    logits = bins.keys.astype(np.float64)
    # For each logit, the log loss of a row without a click minus its log loss after the logit is multiplied by `slope`.
    of_negative = np.logaddexp(0, logits) - np.logaddexp(0, slope * logits)
    gains = np.concatenate([of_negative, of_negative + (slope - 1) * logits])
    weights = np.concatenate([bins.negatives, bins.positives])
    squares = weights if bins.squares is None else np.concatenate(bins.squares)
    gain = np.average(gains, weights=weights)
    error = np.sqrt(squares @ (gains - gain) ** 2) / weights.sum()
    return Calibration(slope, 0.0, rows) if 0 < slope <= LARGEST_FACTOR and gain > error else None


def _fit_line(bins: Bins, has_intercept: bool) -> tuple[float, float]:
    """Return slope and intercept of the linear map of logits after which the predicted probabilities fit the click
    rates in `bins` best.

    The rows must have both labels. Without `has_intercept`, the intercept is 0.
    """
    # scikit-learn is imported only when it is needed, because the import takes a second.
    from sklearn.linear_model import LogisticRegression

    logits = bins.keys.astype(np.float64)
    labels = np.repeat([0, 1], len(logits))
    weights = np.concatenate([bins.negatives, bins.positives])
    fitted = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000, fit_intercept=has_intercept)
    fitted.fit(np.tile(logits, 2)[:, None], labels, sample_weight=weights)
    return float(fitted.coef_[0, 0]), float(np.ravel(fitted.intercept_)[0])
