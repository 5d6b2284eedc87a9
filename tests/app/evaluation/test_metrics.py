"""The metrics of all rows and of groups against scikit-learn's, and their intervals against drawing the rows one by
one.
"""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from app.evaluation.metrics import (
    MEASURED,
    Bins,
    GroupStream,
    KeyNumbers,
    MetricStream,
    auc_in_groups,
    binned,
    confidence_intervals,
    entropy,
    few_clicks_note,
    sigmoid,
)

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


def test_joined_bins_keep_rows_classes_and_nearly_all_of_the_ranking(many_rows):
    bins = Bins.of(*many_rows)
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


@pytest.fixture(scope="module")
def few_rows():
    rng = np.random.default_rng(4)
    labels = rng.random(2_000) < 0.3
    return rng.normal(labels - 1.0, 1.0).astype(np.float32), labels


def test_intervals_are_those_of_drawing_rows(few_rows):
    """Both are random; a quantile of 600 replicates moves by about a tenth of the interval."""
    logits, labels = few_rows
    found = confidence_intervals(Bins.of(*few_rows), replicates=600, seed=1)
    rng, drawn = np.random.default_rng(2), []
    for _ in range(600):
        chosen = rng.integers(len(labels), size=len(labels))
        stream = MetricStream()
        stream.add(logits[chosen], labels[chosen])
        drawn.append(dataclasses.asdict(stream.result()))
    for name in MEASURED:
        low, high = np.quantile([each[name] for each in drawn], (0.025, 0.975))
        assert found[name] == pytest.approx((low, high), abs=0.15 * (high - low)), name


def test_the_value_lies_within_and_more_rows_narrow_it(few_rows):
    bins = Bins.of(*few_rows)
    hundredfold = Bins(bins.keys, 100 * bins.negatives, 100 * bins.positives)
    for name in MEASURED:
        low, high = confidence_intervals(bins, 200, seed=1)[name]
        narrow_low, narrow_high = confidence_intervals(hundredfold, 200, seed=1)[name]
        assert high - low == pytest.approx(10 * (narrow_high - narrow_low), rel=0.25), name
    assert (
        confidence_intervals(bins, 200, seed=1)["auc"][0]
        < bins.auc()
        < confidence_intervals(bins, 200, seed=1)["auc"][1]
    )


def test_the_same_seed_gives_the_same_interval(few_rows):
    first, again, other = (confidence_intervals(Bins.of(*few_rows), 50, seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.fixture(scope="module")
def grouped_rows():
    """Ids of falling frequency up to the largest; the last one's rows are all of one class, some logits are tied."""
    rng = np.random.default_rng(5)
    ids = np.array([7, 0, 1000, 2**32 - 1])[rng.choice(4, p=(0.5, 0.3, 0.15, 0.05), size=4_000)]
    labels = (rng.random(4_000) < 0.3) & (ids != 2**32 - 1)
    logits = rng.normal(labels * (ids % 5), 1.0)
    return ids, np.where(ids == 0, logits.round(1), logits).astype(np.float32), labels.astype(np.float32)


def grouped(grouped_rows, batch_size=300, **options):
    stream = GroupStream(**options)
    for start in range(0, len(grouped_rows[0]), batch_size):
        stream.add(*(values[start : start + batch_size] for values in grouped_rows))
    return stream


def assert_groups_are_scikit_learn_s(found, grouped_rows, tolerance=1e-9):
    ids, logits, labels = grouped_rows
    auc = auc_in_groups(found)
    assert found.ids.tolist() == [7, 0, 1000, 2**32 - 1]
    for place, value in enumerate(found.ids[:3]):
        here = ids == value
        assert (found.rows[place], found.clicks[place]) == (here.sum(), labels[here].sum())
        assert auc[place] == pytest.approx(roc_auc_score(labels[here], logits[here]), abs=tolerance)
    assert math.isnan(auc[3])
    assert found.mean(auc) == pytest.approx(np.average(auc[:3], weights=found.rows[:3]))
    assert found.rows_covered == pytest.approx((ids != 2**32 - 1).mean())


def test_each_value_has_scikit_learn_s_auc(grouped_rows):
    assert_groups_are_scikit_learn_s(grouped(grouped_rows).result(), grouped_rows)


def test_beyond_the_cells_the_values_stay_apart_and_logits_are_rounded(grouped_rows):
    assert_groups_are_scikit_learn_s(grouped(grouped_rows, most_cells=1_000).result(), grouped_rows, tolerance=2e-3)


def test_no_value_with_both_classes_has_no_mean():
    stream = GroupStream()
    stream.add(np.array([1, 2]), np.zeros(2, np.float32), np.ones(2, np.float32))
    found = stream.result()
    assert math.isnan(found.mean(auc_in_groups(found)))
    assert found.rows_covered == 0


def test_no_rows_have_no_values():
    found = GroupStream().result()
    assert [values.size for values in (found.ids, found.rows, found.clicks, auc_in_groups(found))] == [0, 0, 0, 0]
    assert math.isnan(found.mean(auc_in_groups(found)))


def test_few_rows_wait_to_be_counted(grouped_rows, monkeypatch):
    """They take more memory than cells do."""
    monkeypatch.setattr("app.evaluation.metrics.PENDING_ROWS", 1_000)
    stream, most = GroupStream(), 0
    for start in range(0, 4_000, 300):
        stream.add(*(values[start : start + 300] for values in grouped_rows))
        most = max(most, sum(len(cells) for cells, *_ in stream._pending))
    assert most == 900
    assert_groups_are_scikit_learn_s(stream.result(), grouped_rows)


def test_an_id_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="ids below 2\\*\\*32, found 4294967296"):
        GroupStream().add(np.array([2**32]), np.zeros(1, np.float32), np.zeros(1, np.float32))


def test_asking_for_the_groups_does_not_end_the_stream(grouped_rows):
    stream = grouped(tuple(values[:1_000] for values in grouped_rows))
    stream.result()
    stream.add(*(values[1_000:] for values in grouped_rows))
    assert_groups_are_scikit_learn_s(stream.result(), grouped_rows)


def test_in_a_group_a_weight_counts_a_row_so_many_times():
    rng = np.random.default_rng(3)
    ids, logits = rng.integers(0, 5, 500), rng.standard_normal(500).astype(np.float32).round(1)
    labels, weights = (rng.random(500) < 0.5).astype(np.float32), rng.integers(0, 3, 500).astype(np.float32)
    weighted, repeated, ones, none = (GroupStream() for _ in range(4))
    weighted.add(ids, logits, labels, weights)
    repeated.add(*(np.repeat(values, weights.astype(int)) for values in (ids, logits, labels)))
    ones.add(ids, logits, labels, np.ones(500, np.float32))
    none.add(ids, logits, labels)
    for found, expected in ((weighted, repeated), (ones, none)):
        found, expected = found.result(), expected.result()
        for name in ("ids", "rows", "clicks"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        np.testing.assert_array_equal(auc_in_groups(found), auc_in_groups(expected))


def test_keys_get_numbers_in_the_order_in_which_they_come_whatever_the_batches():
    keys = np.random.default_rng(4).integers(-(2**63), 2**63 - 1, 50)[np.random.default_rng(5).integers(0, 50, 400)]
    numbers = KeyNumbers()
    found = np.concatenate([numbers.of(keys[part]) for part in (slice(0, 7), slice(7, 7), slice(7, None))])
    assert len(np.unique(found)) == len(np.unique(keys)) == found.max() + 1
    np.testing.assert_array_equal(numbers.keys_of(found), keys)
