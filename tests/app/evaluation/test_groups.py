"""AUC per value of a field against scikit-learn's on each value's rows."""

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from app.evaluation.metrics import GroupStream, KeyNumbers, auc_in_groups


@pytest.fixture(scope="module")
def rows():
    """Ids of falling frequency up to the largest; the last one's rows are all of one class, some logits are tied."""
    rng = np.random.default_rng(5)
    ids = np.array([7, 0, 1000, 2**32 - 1])[rng.choice(4, p=(0.5, 0.3, 0.15, 0.05), size=4_000)]
    labels = (rng.random(4_000) < 0.3) & (ids != 2**32 - 1)
    logits = rng.normal(labels * (ids % 5), 1.0)
    return ids, np.where(ids == 0, logits.round(1), logits).astype(np.float32), labels.astype(np.float32)


def measured(rows, batch_size=300, **options):
    stream = GroupStream(**options)
    for start in range(0, len(rows[0]), batch_size):
        stream.add(*(values[start : start + batch_size] for values in rows))
    return stream


def assert_equals_scikit_learn(found, rows, tolerance=1e-9):
    ids, logits, labels = rows
    auc = auc_in_groups(found)
    assert found.ids.tolist() == [7, 0, 1000, 2**32 - 1]
    for place, value in enumerate(found.ids[:3]):
        here = ids == value
        assert (found.rows[place], found.clicks[place]) == (here.sum(), labels[here].sum())
        assert auc[place] == pytest.approx(roc_auc_score(labels[here], logits[here]), abs=tolerance)
    assert math.isnan(auc[3])
    assert found.mean(auc) == pytest.approx(np.average(auc[:3], weights=found.rows[:3]))
    assert found.rows_covered == pytest.approx((ids != 2**32 - 1).mean())


def test_each_value_has_scikit_learn_s_auc(rows):
    assert_equals_scikit_learn(measured(rows).result(), rows)


def test_beyond_the_cells_the_values_stay_apart_and_logits_are_rounded(rows):
    assert_equals_scikit_learn(measured(rows, most_cells=1_000).result(), rows, tolerance=2e-3)


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


def test_few_rows_wait_to_be_counted(rows, monkeypatch):
    """They take more memory than cells do."""
    monkeypatch.setattr("app.evaluation.metrics.PENDING_ROWS", 1_000)
    stream, most = GroupStream(), 0
    for start in range(0, 4_000, 300):
        stream.add(*(values[start : start + 300] for values in rows))
        most = max(most, sum(len(cells) for cells, *_ in stream._pending))
    assert most == 900
    assert_equals_scikit_learn(stream.result(), rows)


def test_an_id_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="ids below 2\\*\\*32, found 4294967296"):
        GroupStream().add(np.array([2**32]), np.zeros(1, np.float32), np.zeros(1, np.float32))


def test_asking_for_the_result_does_not_end_the_stream(rows):
    stream = measured(tuple(values[:1_000] for values in rows))
    stream.result()
    stream.add(*(values[1_000:] for values in rows))
    assert_equals_scikit_learn(stream.result(), rows)


def test_a_weight_counts_a_row_so_many_times():
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
