"""The command `baseline` on a synthetic log of a few thousand rows."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from app.__main__ import main
from app.training.auto.regression import read_features
from app.training.start import advise_crosses
from data_prep.prepared.schema import read_schema
from tests.data_prep.checks.test_suggest_crosses import prepared


def test_the_table_has_the_metrics_of_scikit_learn(tiny_dataset, tiny_schema, capsys):
    assert main(["baseline", str(tiny_dataset), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    features, labels, _ = read_features(tiny_dataset, tiny_schema, "train")
    test, clicks, _ = read_features(tiny_dataset, tiny_schema, "test")
    model = LogisticRegression(C=found["inverse_penalty"], max_iter=1000, tol=1e-6).fit(features, labels)
    probabilities = model.predict_proba(test)[:, 1].astype(np.float64)
    assert found["train_rows"] == len(labels) and found["rows"] == len(clicks)
    assert found["auc"] == pytest.approx(roc_auc_score(clicks, probabilities), abs=1e-3)  # the solver's tolerance
    assert found["log_loss"] == pytest.approx(log_loss(clicks, probabilities), abs=3e-4)
    assert main(["baseline", str(tiny_dataset)]) == 0
    head, _, regression, best, crosses, *_ = capsys.readouterr().out.splitlines()
    assert head.startswith(f"test: {len(clicks):,} rows, click rate 0.")
    assert regression.split()[-3:-1] == [f"{found['auc']:.6f}", f"{found['log_loss']:.6f}"]
    assert best.startswith("  best possible") and best.endswith("–")
    assert crosses.startswith("the best 3 of ")


def test_the_best_cross_scores_as_if_prepared(tmp_path, capsys, caplog):
    for name in ("plain", "crossed"):
        (tmp_path / name).mkdir()
    plain = prepared(tmp_path / "plain", planted=True, min_count=2)
    crossed = prepared(tmp_path / "crossed", planted=True, min_count=2, crosses=(("A", "B"),))
    assert main(["baseline", str(crossed), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert main(["baseline", str(plain)]) == 0
    *_, regression, best, _, first, _, _, setting, _ = capsys.readouterr().out.splitlines()
    assert best.split()[:4] == ["with", "A", "*", "B"] and first.split()[:3] == ["A", "*", "B"]
    assert setting == "prepare again with: 'prepare.crosses=[[A,B]]'"
    assert [float(text) for text in best.split()[4:6]] == pytest.approx(
        [expected["auc"], expected["log_loss"]], abs=1e-3
    )
    assert float(best.split()[4]) > float(regression.split()[2]) + 0.05
    with caplog.at_level("INFO"):
        advise_crosses(plain, read_schema(plain), is_first=True)
        assert first in caplog.text and setting in caplog.text
        advise_crosses(plain, read_schema(plain), is_first=False)
        assert "find those that lower the log loss with: " in caplog.text


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
