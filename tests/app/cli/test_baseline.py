"""Logistic regression as a command, on a synthetic log of a few thousand rows."""

import json

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from app.__main__ import main
from app.cli import baseline
from data_prep.prepared.examples import concatenate
from data_prep.prepared.features import NUMERIC_SCALE
from data_prep.prepared.reader import read_blocks


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
    model = baseline.make_model(found["inverse_penalty"]).fit(features, labels)
    probabilities = model.predict_proba(test)[:, 1].astype(np.float64)
    assert found["train_rows"] == len(labels) and found["rows"] == len(clicks)
    assert found["auc"] == pytest.approx(roc_auc_score(clicks, probabilities), abs=1e-3)  # the solver's tolerance
    assert found["log_loss"] == pytest.approx(log_loss(clicks, probabilities), abs=1e-4)
    assert main(["baseline", str(tiny_dataset)]) == 0
    head, _, regression, best = capsys.readouterr().out.splitlines()
    assert head.startswith(f"test: {len(clicks):,} rows, click rate 0.")
    assert regression.split()[-3:-1] == [f"{found['auc']:.6f}", f"{found['log_loss']:.6f}"]
    assert best.startswith("  best possible") and best.endswith("–")


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
