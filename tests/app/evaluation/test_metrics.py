"""The metrics against scikit-learn's."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from app.evaluation.metrics import MetricStream

TOLERANCE = 1e-6


def measured(logits, labels, batch_size=7, **options):
    stream = MetricStream(**options)
    for start in range(0, len(logits), batch_size):
        stream.add(logits[start : start + batch_size], labels[start : start + batch_size])
    return stream.result()


def assert_equals_scikit_learn(metrics, logits, labels, tolerance=TOLERANCE):
    predictions = 1 / (1 + np.exp(-logits.astype(np.float64)))
    rate = labels.mean(dtype=np.float64)
    loss = log_loss(labels, predictions, labels=[0, 1])
    assert metrics.rows == len(labels)
    assert metrics.click_rate == pytest.approx(rate, abs=1e-12)
    assert metrics.log_loss == pytest.approx(loss, abs=tolerance)
    if 0 < rate < 1:
        assert metrics.auc == pytest.approx(roc_auc_score(labels, logits), abs=tolerance)
        assert metrics.pr_auc == pytest.approx(average_precision_score(labels, logits), abs=tolerance)
        base = log_loss(labels, np.full(len(labels), rate))
        assert metrics.normalized_entropy == pytest.approx(loss / base, rel=tolerance)
        assert metrics.calibration == pytest.approx(predictions.mean() / rate, rel=tolerance)
    else:
        assert math.isnan(metrics.auc)
        assert math.isnan(metrics.pr_auc)
        assert math.isnan(metrics.normalized_entropy)


# Few distinct values give ties, and the widest stay where scikit-learn's own clipping of probabilities is not seen.
logit_values = st.one_of(st.sampled_from([-2.0, -0.0, 0.0, 0.5]), st.floats(-15, 15, width=32))


@given(rows=st.lists(st.tuples(logit_values, st.booleans()), min_size=1, max_size=60), batch_size=st.integers(1, 20))
@settings(max_examples=60)
def test_metrics_are_scikit_learn_s(rows, batch_size):
    logits = np.array([logit for logit, _ in rows], np.float32)
    labels = np.array([label for _, label in rows], np.float32)
    assert_equals_scikit_learn(measured(logits, labels, batch_size), logits, labels)


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_a_loss_but_no_ranking(label):
    metrics = measured(np.array([1.0, -1.0], np.float32), np.full(2, label, np.float32))
    assert math.isnan(metrics.auc)
    assert math.isnan(metrics.pr_auc)
    assert metrics.log_loss == pytest.approx(np.log1p(np.exp([1, -1])).mean() if label == 0 else 0.8132617, abs=1e-6)


@pytest.fixture(scope="module")
def many_rows():
    """400,000 rows of overlapping classes: enough that a bin's width shows in the sixth digit, were it too wide."""
    rng = np.random.default_rng(3)
    labels = (rng.random(400_000) < 0.25).astype(np.float32)
    return rng.normal(labels - 1.5, 1.2).astype(np.float32), labels


def test_beyond_exact_rows_the_metrics_are_still_scikit_learn_s(many_rows):
    assert_equals_scikit_learn(measured(*many_rows, batch_size=16_000, exact_rows=50_000), *many_rows)


def test_beyond_exact_rows_the_batches_do_not_matter(many_rows):
    """The rows of the last batches are counted into bins like all others."""
    found = [measured(*many_rows, batch_size=size, exact_rows=50_000) for size in (16_000, 33_333)]
    assert found[0].auc == found[1].auc
    assert found[0].pr_auc == found[1].pr_auc


@pytest.mark.parametrize("exact_rows", [(10**6, 10**6), (1000, 10**6), (10**6, 1000), (1000, 1000)])
def test_merged_streams_are_one(many_rows, exact_rows):
    logits, labels = many_rows
    halves = [MetricStream(rows) for rows in exact_rows]
    for half, place in zip(halves, (slice(0, 150_000), slice(150_000, None)), strict=True):
        half.add(logits[place], labels[place])
    halves[0].merge(halves[1])
    assert_equals_scikit_learn(halves[0].result(), logits, labels)


def test_merged_streams_keep_no_more_rows_than_one_does(many_rows):
    first, second = (tuple(values[place] for values in many_rows) for place in (slice(40_000), slice(40_000, 80_000)))
    merged, other, one = (MetricStream(exact_rows=50_000) for _ in range(3))
    merged.add(*first)
    other.add(*second)
    merged.merge(other)
    for rows in (first, second):
        one.add(*rows)
    for found, expected in zip(dataclasses.astuple(merged.bins()), dataclasses.astuple(one.bins()), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_asking_for_the_result_does_not_end_the_stream(many_rows):
    logits, labels = (values[:3000] for values in many_rows)
    stream = MetricStream(exact_rows=1500)
    stream.add(logits[:2000], labels[:2000])
    stream.result()
    stream.add(logits[2000:], labels[2000:])
    assert dataclasses.asdict(stream.result()) == pytest.approx(
        dataclasses.asdict(measured(logits, labels, batch_size=1000, exact_rows=1500)), rel=1e-12, nan_ok=True
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_finite_is_named_by_row(bad):
    stream = MetricStream()
    stream.add(np.zeros(5, np.float32), np.zeros(5, np.float32))
    with pytest.raises(FloatingPointError, match="logit of row 7 is"):
        stream.add(np.array([0, 0, bad], np.float32), np.zeros(3, np.float32))


def test_no_rows_are_an_error():
    with pytest.raises(ValueError, match="no rows to measure"):
        MetricStream().result()
