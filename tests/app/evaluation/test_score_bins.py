"""Curves, deciles and histograms of counted rows, against scikit-learn's over the rows themselves."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, average_precision_score, roc_auc_score
from sklearn.metrics import precision_recall_curve as their_precision_recall_curve
from sklearn.metrics import roc_curve as their_roc_curve

from app.evaluation.metrics import Bins, binned, entropy, sigmoid
from app.evaluation.results import calibration_deciles, precision_recall_curve, roc_curve, score_histogram


@pytest.fixture(scope="module")
def rows():
    """5,000 rows of overlapping classes, a third of them tied with others."""
    rng = np.random.default_rng(2)
    labels = rng.random(5_000) < 0.25
    logits = rng.normal(labels - 1.5, 1.2)
    return np.where(rng.random(5_000) < 0.3, logits.round(1), logits).astype(np.float32), labels


def test_the_roc_curve_is_scikit_learn_s(rows):
    logits, labels = rows
    false_rate, true_rate, _ = their_roc_curve(labels, logits, drop_intermediate=False)
    np.testing.assert_allclose(roc_curve(Bins.of(*rows), most=10**6), (false_rate, true_rate), atol=1e-12)


def test_the_precision_recall_curve_is_scikit_learn_s(rows):
    """Theirs starts at the lowest threshold, and has a point (0, 1) besides."""
    precision, recall, _ = their_precision_recall_curve(rows[1], rows[0])
    found = precision_recall_curve(Bins.of(*rows), most=10**6)
    np.testing.assert_allclose(found, (recall[-2::-1], precision[-2::-1]), atol=1e-12)


def test_few_points_enclose_the_area_of_all(rows):
    bins = Bins.of(*rows)
    false_rate, true_rate = roc_curve(bins, most=200)
    assert len(false_rate) <= 200
    assert (false_rate[0], true_rate[0], false_rate[-1], true_rate[-1]) == (0, 0, 1, 1)
    assert auc(false_rate, true_rate) == pytest.approx(roc_auc_score(rows[1], rows[0]), abs=1e-3)
    recall, precision = precision_recall_curve(bins, most=200)
    assert len(recall) <= 200
    assert auc(recall, precision) == pytest.approx(average_precision_score(rows[1], rows[0]), abs=5e-3)


tied_logits = st.one_of(st.sampled_from([-2.0, 0.0, 0.5]), st.floats(-15, 15, width=32))


@given(
    rows=st.lists(st.tuples(tied_logits, st.booleans()), min_size=2, max_size=60).filter(
        lambda r: len({b for _, b in r}) == 2
    )
)
@settings(max_examples=60)
def test_calibration_by_decile_is_scikit_learn_s(rows):
    logits = np.array([logit for logit, _ in rows], np.float32)
    labels = np.array([label for _, label in rows])
    bins = Bins.of(logits, labels)
    rates, predictions = calibration_curve(
        labels, sigmoid(logits.astype(np.float64)), n_bins=10, strategy="quantile", pos_label=True
    )
    found = calibration_deciles(bins)
    assert sum(each.rows for each in found) == len(rows)
    np.testing.assert_allclose([each.click_rate for each in found], rates, atol=1e-9)
    np.testing.assert_allclose([each.mean_prediction for each in found], predictions, atol=1e-9)


def test_the_histogram_counts_every_row_by_label(rows):
    logits, labels = rows
    predictions = sigmoid(logits.astype(np.float64))
    negatives, positives = score_histogram(Bins.of(*rows), parts=20)
    for found, chosen in ((negatives, ~labels), (positives, labels)):
        np.testing.assert_array_equal(found, np.histogram(predictions[chosen], bins=20, range=(0, 1))[0])
    assert score_histogram(Bins.of(np.array([100.0]), np.array([True])), parts=20)[1][-1] == 1  # a prediction of 1


def test_joined_bins_keep_rows_classes_and_nearly_all_of_the_ranking(rows):
    bins = Bins.of(*rows)
    few = bins.coarsened(500)
    assert len(few.keys) <= 500
    assert (few.negatives.sum(), few.positives.sum()) == (bins.negatives.sum(), bins.positives.sum())
    assert (np.diff(few.keys) > 0).all()
    assert few.auc() == pytest.approx(bins.auc(), abs=2e-5)
    assert bins.coarsened(10**6) is bins


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_bin_is_narrow_and_keeps_the_sign(logit):
    value = np.array([logit], np.float32)
    moved = binned(value)
    assert np.signbit(moved) == np.signbit(value + np.float32(0))
    # half of 2^-16 of a power of two; the smallest numbers have fewer bits, and lie within the first bin
    assert abs(float(value[0]) - float(moved[0])) <= max(abs(logit) * 2.0**-17, 2.0**-126)


def test_minus_zero_and_zero_share_a_bin():
    assert binned(np.array([-0.0], np.float32)) == binned(np.array([0.0], np.float32))


def test_sigmoid_and_entropy_at_their_edges():
    assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0, 0.5, 1]
    assert [entropy(rate) for rate in (0.0, 1.0, 0.5)] == pytest.approx([0, 0, math.log(2)])
