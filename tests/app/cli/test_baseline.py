"""Logistic regression as a command, on a synthetic log of a few thousand rows."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from app.__main__ import main
from app.cli import baseline
from app.evaluation.score_bins import sigmoid
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.features import NUMERIC_SCALE, one_hot
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import CategoricalField


def rows_of(folder, schema, split):
    return concatenate(list(read_blocks(folder, schema, split)))


def test_features_are_scaled_numbers_and_one_hot_ids(tiny_dataset, tiny_schema):
    rows = rows_of(tiny_dataset, tiny_schema, "test")
    features, labels, _ = baseline.read_features(tiny_dataset, tiny_schema, "test")
    num_numeric = tiny_schema.num_numeric
    assert features.shape == (len(rows), num_numeric + tiny_schema.vocabulary_size)
    assert np.array_equal(labels, rows.labels)
    dense = features[:50].toarray()
    assert dense[:, :num_numeric] == pytest.approx(rows.numeric[:50] * NUMERIC_SCALE)
    for row, ids in zip(dense[:, num_numeric:], rows.ids[:50], strict=True):
        assert set(np.flatnonzero(row)) == set(ids)


def test_at_most_so_many_rows_are_read_from_all_over_the_split(tiny_dataset, tiny_schema):
    rows = tiny_schema.splits["train"].rows
    some, labels, _ = baseline.read_features(tiny_dataset, tiny_schema, "train", max_rows=500)
    assert some.shape[0] == len(labels) <= 500 < rows
    assert baseline.read_features(tiny_dataset, tiny_schema, "train", max_rows=rows)[0].shape[0] == rows
    assert baseline.read_features(tiny_dataset, tiny_schema, "train", max_rows=1)[0].shape[0] > 0


def test_the_table_has_the_metrics_of_scikit_learn(tiny_dataset, tiny_schema, capsys):
    assert main(["baseline", str(tiny_dataset), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    features, labels, _ = baseline.read_features(tiny_dataset, tiny_schema, "train")
    test, clicks, _ = baseline.read_features(tiny_dataset, tiny_schema, "test")
    model = LogisticRegression(C=found["inverse_penalty"], max_iter=1000, tol=1e-6).fit(features, labels)
    probabilities = model.predict_proba(test)[:, 1].astype(np.float64)
    assert found["train_rows"] == len(labels) and found["rows"] == len(clicks)
    assert found["auc"] == pytest.approx(roc_auc_score(clicks, probabilities), abs=1e-3)  # the solver's tolerance
    assert found["log_loss"] == pytest.approx(log_loss(clicks, probabilities), abs=3e-4)
    assert main(["baseline", str(tiny_dataset)]) == 0
    head, _, regression, best = capsys.readouterr().out.splitlines()
    assert head.startswith(f"test: {len(clicks):,} rows, click rate 0.")
    assert regression.split()[-3:-1] == [f"{found['auc']:.6f}", f"{found['log_loss']:.6f}"]
    assert best.startswith("  best possible") and best.endswith("–")


@pytest.mark.parametrize(("pool", "weight"), [("mean", 1 / 3), ("sum", 1.0)])
def test_the_values_of_a_list_count_as_the_model_pools_them(tiny_schema, pool, weight):
    fields = (CategoricalField("C1", (0, 1), ((1, 5),)), CategoricalField("g", (5, 6), ((6, 9),), (), 4, pool))
    schema = dataclasses.replace(tiny_schema, numeric=(), categorical=fields, vocabulary_size=9)
    ids = np.array([[1, 6, 8, 6, -1], [4, 7, -1, -1, -1]], np.int32)
    dense = one_hot(Examples(ids, np.empty((2, 0), np.float32), np.zeros(2, np.float32)), schema).toarray()
    assert dense[0, [1, 6, 8]] == pytest.approx([1, 2 * weight, weight])
    assert np.flatnonzero(dense[1]).tolist() == [4, 7] and dense[1, 7] == 1


def made_rows(num_rows, effect, rng):
    """Return features and labels: one-hot values, mostly rare, whose effects on the label have this size."""
    ids = np.minimum(rng.zipf(1.3, (num_rows, 3)), 300) - 1 + 300 * np.arange(3)
    starts = np.arange(0, 3 * num_rows + 1, 3)
    features = sparse.csr_matrix((np.ones(ids.size, np.float32), ids.reshape(-1), starts), shape=(num_rows, 900))
    logits = effect * rng.normal(size=900)[ids].sum(1)
    return features, (rng.random(num_rows) < sigmoid(logits)).astype(np.float32)


@pytest.mark.parametrize("inverse_penalty", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_is_that_of_scikit_learn(inverse_penalty, weighted):
    rng = np.random.default_rng(1)
    features, labels = made_rows(4000, 1.0, rng)
    weights = rng.integers(1, 9, len(labels)).astype(np.float32) if weighted else None
    model = LogisticRegression(C=inverse_penalty, max_iter=5000, tol=1e-8).fit(features, labels, weights)
    fitted = baseline.Solver(features, labels, weights).fit(inverse_penalty)

    def objective(logits, weights_of_values):
        losses = np.logaddexp(0, logits) - labels * logits
        return np.average(losses, weights=weights) + np.square(weights_of_values).sum() / (2 * inverse_penalty * total)

    total = len(labels) if weights is None else weights.sum()
    least = objective(model.decision_function(features), model.coef_)
    # A weight that is e standard errors off costs e² / 2; twice that where the model is surer than the click rate.
    allowed = features.shape[1] * baseline.CLOSE_ENOUGH**2 / total
    assert least - 1e-6 < objective(fitted.logits(features), fitted.weights) < least + allowed


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    features, labels = made_rows(3000, 1.0, np.random.default_rng(3))

    def weights(num_threads):
        monkeypatch.setattr(baseline, "num_cores", lambda: num_threads)
        return baseline.Solver(features, labels, None).fit(1.0).weights

    assert np.array_equal(weights(1), weights(4))


@pytest.mark.parametrize(("effect", "least", "most"), [(0.02, 1e-4, 1e-2), (3.0, 0.3, 1e2)])
def test_the_penalty_is_sought_until_it_gets_worse(effect, least, most, tiny_schema, monkeypatch):
    rng = np.random.default_rng(2)
    monkeypatch.setattr(baseline, "LEAST_GAIN", 0.0)  # the losses of neighbors differ little
    features, labels = made_rows(12_000, effect, rng)
    monkeypatch.setattr(baseline, "read_features", lambda *_: (features[:8000], labels[:8000], None))

    def evaluate(fitted, *_):
        return SimpleNamespace(log_loss=log_loss(labels[8000:], sigmoid(fitted.logits(features[8000:]))))

    monkeypatch.setattr(baseline, "evaluate", evaluate)
    found = baseline.fit("", tiny_schema).inverse_penalty
    assert least <= found <= most
    tried = 10.0 ** np.arange(-4, 2.5, 0.5)
    losses = [evaluate(baseline.Solver(features[:8000], labels[:8000], None).fit(c)).log_loss for c in tried]
    assert found == pytest.approx(tried[np.argmin(losses)])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--max-rows", "0"], "--max-rows must be 1 or more, found 0"),
        (["--split", "tests"], "has no rows in split 'tests'; the splits with rows: train, valid, test"),
        (["--run", "nowhere"], "no run in nowhere"),
    ],
)
def test_wrong_input_ends_with_status_2_before_the_fit(tiny_dataset, words, reason, caplog):
    assert main(["baseline", str(tiny_dataset), *words]) == 2
    assert reason in caplog.text


def test_one_class_is_refused(tiny_dataset, tiny_schema, monkeypatch):
    monkeypatch.setattr(baseline, "read_features", lambda *_: (None, np.zeros(10), None))
    with pytest.raises(ValueError, match=r"the 10 training rows of .* have one class only"):
        baseline.fit(tiny_dataset, tiny_schema)
