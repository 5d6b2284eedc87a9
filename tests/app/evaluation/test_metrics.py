"""The metrics against scikit-learn's."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from app.evaluation.metrics import MetricStream, confidence_intervals, few_clicks_note

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


@pytest.fixture(scope="module")
def weighted_rows():
    """Logits with ties, labels and whole weights from 0 to 3."""
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal(4_000) * 20).round().astype(np.float32) / 20
    labels = (rng.random(4_000) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return logits, labels, rng.integers(0, 4, 4_000).astype(np.float32)


@pytest.mark.parametrize("exact_rows", [2**24, 700])
def test_a_weight_counts_a_row_so_many_times(weighted_rows, exact_rows):
    logits, labels, weights = weighted_rows
    repeats = weights.astype(int)
    weighted, repeated = MetricStream(exact_rows), MetricStream(exact_rows)
    for part in (slice(0, 1_500), slice(1_500, None)):
        weighted.add(logits[part], labels[part], weights[part])
        repeated.add(np.repeat(logits[part], repeats[part]), np.repeat(labels[part], repeats[part]))
    (found, bins), (expected, other) = weighted.result_and_bins(), repeated.result_and_bins()
    assert found.rows == (weights > 0).sum()
    found = dataclasses.replace(found, rows=expected.rows)
    assert dataclasses.asdict(found) == pytest.approx(dataclasses.asdict(expected), rel=1e-9, nan_ok=True)
    np.testing.assert_array_equal(bins.coarsened(20).keys, other.coarsened(20).keys)


def test_weights_of_1_give_the_bits_of_none(weighted_rows):
    logits, labels, _ = weighted_rows
    with_weights, without = MetricStream(1_000), MetricStream(1_000)
    with_weights.add(logits, labels, np.ones(len(logits), np.float32))
    without.add(logits, labels)
    (found, bins), (expected, other) = with_weights.result_and_bins(), without.result_and_bins()
    np.testing.assert_equal(dataclasses.asdict(found), dataclasses.asdict(expected))
    assert confidence_intervals(bins, 20, seed=1) == confidence_intervals(other, 20, seed=1)


def test_intervals_have_the_same_bits_with_any_number_of_threads(weighted_rows, monkeypatch):
    stream = MetricStream()
    stream.add(*weighted_rows)
    intervals = []
    for cores in (1, 3):
        monkeypatch.setattr("app.evaluation.metrics.num_cores", lambda cores=cores: cores)
        intervals.append(confidence_intervals(stream.result_and_bins()[1], 20, seed=1))
    assert intervals[0] == intervals[1]


def test_intervals_are_as_wide_as_the_number_of_rows_not_of_weights_allows(weighted_rows):
    logits, labels, weights = weighted_rows
    widths = []
    for factor in (1, 100):
        stream = MetricStream()
        stream.add(logits, labels, weights * np.float32(factor))
        low, high = confidence_intervals(stream.result_and_bins()[1], 100, seed=1)["auc"]
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0], rel=1e-3)


def test_rows_of_weight_0_alone_are_none():
    stream = MetricStream()
    stream.add(np.zeros(3, np.float32), np.ones(3, np.float32), np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="no rows to measure: the split is empty, or all weights are 0"):
        stream.result()


def lift_by_hand(logits, labels, weights):
    """Take rows by falling score until a tenth of the weight is full; rows of one score share what is left."""
    room, found = weights.sum() / 10, 0.0
    for score in sorted({*logits.tolist()}, reverse=True):
        tied = logits == score
        share = min(1.0, room / weights[tied].sum())
        found += share * (weights * labels)[tied].sum()
        room -= share * weights[tied].sum()
    return found / (weights.sum() / 10) / ((weights * labels).sum() / weights.sum())


@settings(max_examples=200)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 2**32), st.booleans())
def test_the_top_decile_lift_is_that_of_rows_taken_by_hand(num_rows, num_scores, seed, has_weights):
    rng = np.random.default_rng(seed)
    logits = rng.integers(0, num_scores, num_rows).astype(np.float32)
    labels = (rng.random(num_rows) < 0.4).astype(np.float32)
    weights = rng.integers(1, 5, num_rows).astype(np.float32) if has_weights else None
    stream = MetricStream()
    stream.add(logits, labels, weights)
    lift = stream.result().top_decile_lift
    if labels.any():
        by_hand = lift_by_hand(logits, labels, np.ones(num_rows) if weights is None else weights.astype(np.float64))
        assert lift == pytest.approx(by_hand, rel=1e-9)
    else:
        assert math.isnan(lift)


def test_intervals_from_few_clicks_are_remarked_on():
    assert few_clicks_note([(100, 0.2), (77, 20 / 77)]) == few_clicks_note([]) == ""
    assert few_clicks_note([(100, 0.2), (100, 0.19)]).startswith("Intervals of fewer than 20 clicks are too narrow")


@pytest.mark.parametrize("options", [{}, {"exact_rows": 30}], ids=["exact", "binned"])
def test_a_perfect_order_of_saturated_scores_has_auc_1(options):
    """The probabilities of these logits are all 1 in float32, so their order is only visible in the logits."""
    logits = np.linspace(40, 60, 100, dtype=np.float32)
    assert {*(1 / (1 + np.exp(-logits)))} == {np.float32(1)}
    labels = (np.arange(100) >= 70).astype(np.float32)
    stream = MetricStream(**options)
    stream.add(logits, labels)
    metrics, bins = stream.result_and_bins()
    assert metrics.auc == metrics.pr_auc == 1
    assert confidence_intervals(bins, 50, seed=1)["auc"] == (1, 1)
