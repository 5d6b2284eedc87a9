"""Platt's scaling finds the line that made the labels, and leaves the order of the rows alone."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from app.evaluation.calibration import Calibration, fit_calibration, fit_temperature
from app.evaluation.metrics import Bins, sigmoid


@pytest.fixture(scope="module")
def overconfident():
    """Logits twice as far from -1 as they should be, and labels."""
    generator = np.random.default_rng(1)
    true = generator.normal(-1, 1, 200_000)
    labels = generator.random(len(true)) < sigmoid(true)
    return (2 * true + 0.5).astype(np.float32), labels


def test_the_line_that_made_the_labels_is_found(overconfident):
    logits, labels = overconfident
    found = fit_calibration(Bins.of(logits, labels), len(logits))
    assert (found.slope, found.intercept) == pytest.approx((0.5, -0.25), abs=0.02)
    assert found.rows == len(logits)
    predicted = sigmoid(found(logits).astype(np.float64))
    assert predicted.mean() == pytest.approx(labels.mean(), abs=1e-6)  # as the intercept has no penalty
    assert Bins.of(found(logits), labels).auc() == pytest.approx(Bins.of(logits, labels).auc(), abs=1e-7)


def test_the_fit_has_the_least_log_loss(overconfident):
    logits, labels = overconfident[0][:500].astype(np.float64), overconfident[1][:500]

    def loss(line):
        moved = line[0] * logits + line[1]
        return (np.logaddexp(0, moved) - labels * moved).sum()

    best = minimize(loss, [1.0, 0.0])
    found = fit_calibration(Bins.of(logits.astype(np.float32), labels), len(logits))
    assert [found.slope, found.intercept] == pytest.approx(best.x, abs=1e-3)


@pytest.mark.parametrize("scale", [1e-9, 1, 1e6])
def test_weights_count_by_their_shares_whatever_they_add_up_to(overconfident, scale):
    logits, labels = overconfident
    weights = np.where(logits > 0, 2, 0.5).astype(np.float32)
    found = fit_calibration(Bins.of(logits, labels, weights * np.float32(scale)), len(logits))
    expected = LogisticRegression(C=np.inf, tol=1e-8).fit(logits[:, None], labels, sample_weight=weights)
    assert [found.slope, found.intercept] == pytest.approx([expected.coef_[0, 0], expected.intercept_[0]], abs=1e-3)
    assert found.rows == len(logits)


@pytest.mark.parametrize("weight", [None, 3.0])
def test_a_temperature_is_used_only_beyond_its_error(overconfident, weight):
    logits, labels = overconfident
    weights = None if weight is None else np.full(len(logits), weight, np.float32)
    found = fit_temperature(Bins.of(logits, labels, weights), len(logits))
    best = LogisticRegression(C=np.inf, tol=1e-8, fit_intercept=False).fit(logits[:, None], labels)
    assert (found.slope, found.intercept) == (pytest.approx(best.coef_[0, 0], abs=1e-3), 0)
    sound = np.random.default_rng(3).normal(-1, 1, (40, 500)).astype(np.float32)
    chance = np.random.default_rng(4).random(sound.shape) < sigmoid(sound.astype(np.float64))
    used = [fit_temperature(Bins.of(*rows), 500) for rows in zip(sound, chance, strict=True)]
    assert sum(each is not None for each in used) <= 6  # The factor found is near 1, and gains by chance alone.
    for others in ((-logits, labels), (logits, np.zeros_like(labels)), (logits, logits > 0)):
        assert fit_temperature(Bins.of(*others), len(logits)) is None


@pytest.mark.parametrize("label", [False, True])
def test_one_class_cannot_be_calibrated_on(label):
    with pytest.raises(ValueError, match="the 3 rows of valid have one class only"):
        fit_calibration(Bins.of(np.float32([1, 2, 3]), np.full(3, label)), 3)


def test_a_model_that_ranks_worse_than_chance_is_refused(overconfident):
    logits, labels = overconfident
    with pytest.raises(ValueError, match="expected above 0; it ranks them no better than chance"):
        fit_calibration(Bins.of(-logits, labels), len(logits))


def test_a_calibration_in_words():
    assert str(Calibration(0.9, -0.05, 1234)) == "0.9000 · logit - 0.0500, fitted to 1,234 rows of valid"
