"""Tests of what ends a measurement. Whole evaluations are in tests/app/scoring/trained/test_trained_model.py."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from app.config.config import EvalOptions
from app.evaluation.measure import Evaluation, Scorer, data_frame, describe, measure, one_line
from app.evaluation.metrics import METRICS, Metric, Metrics
from app.evaluation.results import content_of
from app.evaluation.selection import Selection
from app.run.quality import evaluations
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from tests.prepared_folders import vocabulary_of


def test_a_logit_that_is_not_finite_stops_the_measurement(tiny_dataset, tiny_schema):
    def score(batch, _):
        return np.full(batch.num_rows, np.nan, np.float32)

    with pytest.raises(FloatingPointError, match="the logit of row 0 is nan"):
        measure(Scorer(lambda batch: None, score), tiny_dataset, tiny_schema, "valid", 50)


@pytest.mark.parametrize("kernels", ["native", "numpy"])
@pytest.mark.parametrize("has_weights", [False, True])
def test_groups_are_the_values_that_are_known(tmp_path, kernels, has_weights):
    """As users' own texts give it: no group of all rare users, and none of all rows without a user."""
    rng, num_rows = np.random.default_rng(1), 3_000
    users = np.array(["", "NULL", *(f"u{number}" for number in range(60))])[
        np.minimum(rng.geometric(0.05, num_rows) - 1, 61)
    ]
    labels, logits = rng.integers(0, 2, num_rows), rng.standard_normal(num_rows).astype(np.float32).round(1)
    weights = rng.integers(0, 3, num_rows) if has_weights else np.ones(num_rows, int)
    columns = zip(labels, users, users, logits, weights, strict=True)
    (tmp_path / "log.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in columns))
    kinds = {"click": "label", "user": "string", "uid": "id", "x": "float", "w": "weight" if has_weights else "ignored"}
    log_format = LogFormat(kinds, ",", missing=("NULL",))
    options = PrepareOptions(data=log_format, min_count=15, workers=1, kernels=kernels, train_fraction=0.5,
                             valid_fraction=0.5, test_fraction=0, numeric_transform="max")  # fmt: skip
    schema = prepare(tmp_path / "log.csv", tmp_path / "out", options)
    known = {value for field, value in vocabulary_of(tmp_path / "out") if field == "user" and value}
    lines = np.load(tmp_path / "out" / "row_numbers-valid.npy")
    users, labels, logits, weights = (values[lines] for values in (users, labels, logits, weights))
    assert 20 < len(known) < 50 and {"", "NULL"} < set(users)

    def measured_by(name):
        scorer = Scorer(lambda batch: None, lambda batch, _: batch.numeric[:, 0])
        return measure(scorer, tmp_path / "out", schema, "valid", 100, name)

    for name, groups in (("user", known), ("uid", set(users) - {"", "NULL"})):
        parts = [users == user for user in groups]
        parts = [part for part in parts if len(set(labels[part & (weights > 0)])) == 2]
        auc = [roc_auc_score(labels[part], logits[part], sample_weight=weights[part]) for part in parts]
        found = measured_by(name)
        expected = np.average(auc, weights=[weights[part].sum() for part in parts])
        assert found.metrics.grouped_auc == pytest.approx(expected)
        assert found.groups.rows.share_left_out == pytest.approx(
            weights[~np.isin(users, [*groups])].sum() / weights.sum()
        )
        covered = sum(weights[part].sum() for part in parts) / weights.sum()
        assert found.groups.rows.rows_covered == pytest.approx(covered)
        assert ("kind id" in found.groups.remark) is (name == "user")
        if name == "user":
            assert found.groups.names[0] == max(known, key=lambda user: weights[users == user].sum())


def top_is_clicked(rows):
    """1 for a group among whose rows with the highest score is a click, else 0."""
    is_top = rows.above(rows.negatives + rows.positives) == 0
    return (rows.sums(rows.positives * is_top) > 0).astype(np.float64)


def test_new_metric_of_groups_needs_two_files(tiny_dataset, tiny_schema, monkeypatch):
    """An entry of `METRICS`, a field of `Metrics` and a name in the settings are all that a metric of groups needs."""
    monkeypatch.setitem(METRICS, "hit_rate", Metric("hit rate", in_groups=top_is_clicked))
    extended = dataclasses.make_dataclass("Extended", [("hit_rate", float, math.nan)], bases=(Metrics,), frozen=True)
    monkeypatch.setattr("app.evaluation.metrics.Metrics", extended)
    for names in ("SELECTABLE", "GROUP_METRICS"):
        monkeypatch.setattr(f"app.config.config.{names}", ("hit_rate",))
    scorer = Scorer(lambda batch: None, lambda batch, _: batch.numeric[:, 0])
    found = measure(scorer, tiny_dataset, tiny_schema, "valid", 50, "C1")
    value = found.metrics.hit_rate
    assert 0 < value < 1

    assert f"hit rate per value of C1: mean {value:.6f}" in describe(
        Evaluation(Path("step-7"), 7, 1, "valid", found, {}, None)
    )
    assert f"hit_rate is {value:.6f}" in one_line("valid", 1, 7, found.metrics)
    run = SimpleNamespace(name="run", shown_evaluation=lambda: content_of("valid", 7, 1, found))
    metrics, _, groups = evaluations([run]).parts
    assert ["hit rate", f"{value:.5f}"] in [row[:2] for row in metrics.arguments[1]]
    assert ("hit rate", "right") in groups.arguments[0] and f"{value:.5f}" in groups.arguments[2]
    with pytest.raises(ValueError, match=r"eval\.metric=hit_rate needs eval\.group_field"):
        EvalOptions(metric="hit_rate")
    selection = Selection(EvalOptions(metric="hit_rate", group_field="C1"))
    better = dataclasses.replace(found.metrics, hit_rate=value + 0.1)
    assert [selection.update(metrics, 7) for metrics in (found.metrics, found.metrics, better)] == [True, False, True]


def test_lines_with_other_keys_become_one_table():
    found = data_frame([{"step": 1, "auc": None}, {"step": 2, "loss": 0.5}], ["split", "step"])
    assert list(found.columns) == ["split", "step", "auc", "loss"]
    assert found["step"].tolist() == [1, 2]
    assert (found.dtypes[["step", "auc", "loss"]] == ["int64", "float64", "float64"]).all()
    assert math.isnan(found["auc"][1])
    pd.testing.assert_frame_equal(data_frame([], ["step"]), pd.DataFrame(columns=["step"]))
