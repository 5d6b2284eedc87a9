"""Logistic regression on a synthetic log of a few thousand rows."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from app.evaluation.metrics import sigmoid
from app.training.auto import regression
from data_prep.prepared.examples import NUMERIC_SCALE, Examples, concatenate, one_hot
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import CategoricalField


def rows_of(folder, schema, split):
    return concatenate(list(read_blocks(folder, schema, split)))


def test_features_are_scaled_numbers_and_one_hot_ids(tiny_dataset, tiny_schema):
    rows = rows_of(tiny_dataset, tiny_schema, "test")
    features, labels, _ = regression.read_features(tiny_dataset, tiny_schema, "test")
    num_numeric = tiny_schema.num_numeric
    assert features.shape == (len(rows), num_numeric + tiny_schema.vocabulary_size)
    assert np.array_equal(labels, rows.labels)
    dense = features[:50].toarray()
    assert dense[:, :num_numeric] == pytest.approx(rows.numeric[:50] * NUMERIC_SCALE)
    for row, ids in zip(dense[:, num_numeric:], rows.ids[:50], strict=True):
        assert set(np.flatnonzero(row)) == set(ids)


def test_at_most_so_many_rows_are_read_from_all_over_the_split(tiny_dataset, tiny_schema):
    rows = tiny_schema.splits["train"].rows
    some, labels, _ = regression.read_features(tiny_dataset, tiny_schema, "train", max_rows=500)
    assert some.shape[0] == len(labels) <= 500 < rows
    assert regression.read_features(tiny_dataset, tiny_schema, "train", max_rows=rows)[0].shape[0] == rows
    assert regression.read_features(tiny_dataset, tiny_schema, "train", max_rows=1)[0].shape[0] > 0


@pytest.mark.parametrize(("pool", "weight"), [("mean", 1 / 3), ("sum", 1.0)])
def test_vectors_and_lists_count_as_the_model_takes_them(tiny_schema, pool, weight):
    fields = (CategoricalField("C1", (0, 1), ((1, 5),)), CategoricalField("g", (5, 6), ((6, 9),), (), 4, pool))
    schema = dataclasses.replace(tiny_schema, numeric=(), categorical=fields, vocabulary_size=9)
    ids = np.array([[1, 6, 8, 6, -1], [4, 7, -1, -1, -1]], np.int32)
    vectors = np.float32([[0.5, -3, 0], [0, 0, 1]])
    features = one_hot(Examples(ids, np.empty((2, 0), np.float32), np.zeros(2, np.float32), vectors=vectors), schema)
    assert features[:, :3].toarray().tolist() == vectors.tolist()
    dense = features[:, 3:].toarray()
    assert dense[0, [1, 6, 8]] == pytest.approx([1, 2 * weight, weight])
    assert np.flatnonzero(dense[1]).tolist() == [4, 7] and dense[1, 7] == 1


def made_rows(num_rows, effect, rng):
    """Return features and labels: one-hot values, mostly rare, whose effects on the label have this size."""
    ids = np.minimum(rng.zipf(1.3, (num_rows, 3)), 300) - 1 + 300 * np.arange(3)
    starts = np.arange(0, 3 * num_rows + 1, 3)
    features = sparse.csr_matrix((np.ones(ids.size, np.float32), ids.reshape(-1), starts), shape=(num_rows, 900))
    logits = effect * rng.normal(size=900)[ids].sum(1)
    return features, (rng.random(num_rows) < sigmoid(logits)).astype(np.float32)


@pytest.mark.parametrize(("inverse_penalty", "weighted"), [(0.01, True), (1.0, False), (30.0, True)])
def test_fit_minimizes_the_objective(inverse_penalty, weighted):
    rng = np.random.default_rng(1)
    features, labels = made_rows(4000, 1.0, rng)
    weights = rng.integers(1, 9, len(labels)).astype(np.float32) if weighted else None
    model = LogisticRegression(C=inverse_penalty, max_iter=5000, tol=1e-8)
    model.fit(features.astype(np.float64), labels, weights)
    fitted = regression.Solver(features, labels, weights).fit(inverse_penalty)

    def objective(logits, weights_of_values):
        losses = np.logaddexp(0, logits) - labels * logits
        return np.average(losses, weights=weights) + np.square(weights_of_values).sum() / (2 * inverse_penalty * total)

    total = len(labels) if weights is None else weights.sum()
    least = objective(model.decision_function(features), model.coef_)
    assert least - 1e-6 < objective(fitted.logits(features), fitted.weights) < least + 2e-5


def test_a_later_fit_equals_a_fit_from_scratch():
    """In many rows, a rare value hardly changes the gradient of the mean loss."""
    features, labels = made_rows(100_000, 1.0, np.random.default_rng(2))
    solver = regression.Solver(features, labels, None)
    for inverse_penalty in (0.1, 0.3, 1.0):
        again = solver.fit(inverse_penalty)
    fresh = regression.Solver(features, labels, None).fit(1.0)
    assert again.weights == pytest.approx(fresh.weights, abs=0.05)


@pytest.mark.parametrize(("effect", "least", "most"), [(0.02, 1e-4, 1e-2), (3.0, 0.3, 1e2)])
def test_the_penalty_is_sought_until_it_gets_worse(effect, least, most, tiny_schema, monkeypatch):
    features, labels = made_rows(12_000, effect, np.random.default_rng(2))
    monkeypatch.setattr(regression, "read_features", lambda *_: (features[:8000], labels[:8000], None))

    def evaluate(fitted, *_):
        return SimpleNamespace(log_loss=log_loss(labels[8000:], sigmoid(fitted.logits(features[8000:]))))

    monkeypatch.setattr(regression, "evaluate", evaluate)
    found = regression.fit("", tiny_schema).inverse_penalty
    assert least <= found <= most
    tried = 10.0 ** np.arange(-4, 2.5, 0.5)
    losses = [evaluate(regression.Solver(features[:8000], labels[:8000], None).fit(c)).log_loss for c in tried]
    assert found == pytest.approx(tried[np.argmin(losses)])


def test_one_class_is_refused(tiny_dataset, tiny_schema, monkeypatch):
    monkeypatch.setattr(regression, "read_features", lambda *_: (None, np.zeros(10), None))
    with pytest.raises(ValueError, match=r"the 10 training rows of .* have one class only"):
        regression.fit(tiny_dataset, tiny_schema)
