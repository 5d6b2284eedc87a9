"""The file of an evaluation, its curves against scikit-learn's over the rows themselves, and its text."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, average_precision_score, roc_auc_score
from sklearn.metrics import precision_recall_curve as their_precision_recall_curve
from sklearn.metrics import roc_curve as their_roc_curve

from app.evaluation.measure import Evaluation, describe, one_line
from app.evaluation.metrics import Bins, MetricStream, sigmoid
from app.evaluation.results import (
    Measurement,
    calibration_deciles,
    content_of,
    forget_evaluations,
    names_of_ids,
    precision_recall_curve,
    read_evaluations,
    roc_curve,
    score_histogram,
    write_evaluation,
)
from data_prep.encoding.growing import added_file_name
from data_prep.prepared.schema import VOCABULARY_FILE, CategoricalField, DataFile
from data_prep.prepared.truth import Best
from tests.example_groups import example_groups


def measured(labels, logits, groups=None):
    stream = MetricStream()
    stream.add(logits.astype(np.float32), labels)
    return Measurement(stream.result(), stream.bins(), groups)


@pytest.fixture(scope="module")
def judged():
    rng = np.random.default_rng(6)
    labels = (rng.random(3_000) < 0.3).astype(np.float32)
    return labels, rng.normal(labels - 1, 1).astype(np.float32)


def test_the_content_is_json_and_has_the_curves(judged):
    content = content_of("valid", 7, 2, measured(*judged, example_groups()), {"auc": (0.7, 0.8)}, Best(3_000, 0.9, 0.4))
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert auc(content["roc"]["false_positive_rate"], content["roc"]["true_positive_rate"]) == pytest.approx(
        roc_auc_score(*judged), abs=1e-3
    )
    assert len(json.dumps(content)) < 50_000
    assert sum(part["rows"] for part in content["calibration"]) == 3_000
    assert sum(content["histogram"]["positives"]) == judged[0].sum()
    assert content["intervals"]["auc"] == [0.7, 0.8]
    assert content["best_possible"]["auc"] == 0.9
    assert content["groups"]["values"][1] == {"value": "(missing)", "rows": 30, "click_rate": 0.0, "auc": None}
    assert (content["groups"]["values"][0]["auc"], content["groups"]["rows_covered"]) == (0.75, 0.7)


def test_one_class_has_no_curves(judged):
    content = content_of("valid", 7, 2, measured(np.zeros(3_000, np.float32), judged[1]))
    assert content["metrics"]["auc"] is None
    assert not {"roc", "precision_recall"} & content.keys()


def test_files_are_read_by_step_and_forgotten_after_one(judged, tmp_path):
    for split, step in (("valid", 200), ("test", 100), ("valid", 100), ("valid", 100)):
        write_evaluation(tmp_path, content_of(split, step, 1, measured(*judged)))
    found = [(content["step"], content["split"]) for content in read_evaluations(tmp_path)]
    assert found == [(100, "test"), (100, "valid"), (200, "valid")]
    (tmp_path / "evaluations" / "valid-step-00000300.json").write_text("{")
    forget_evaluations(tmp_path, 100)
    assert [content["step"] for content in read_evaluations(tmp_path)] == [100, 100]


def test_a_calibrated_evaluation_leaves_the_other_as_it_is(judged, tmp_path):
    content = content_of("test", 100, 1, measured(*judged))
    plain = write_evaluation(tmp_path, content)
    calibrated = write_evaluation(tmp_path, content | {"calibrated": "0.9 · logit"})
    assert calibrated.name == "test-step-00000100-calibrated.json"
    assert read_evaluations(tmp_path) == [content, content | {"calibrated": "0.9 · logit"}]
    plain.write_text(calibrated.read_text())  # as an earlier release wrote it
    forget_evaluations(tmp_path, 99)
    assert read_evaluations(tmp_path) == []


def test_in_words(judged):
    labels, logits = judged
    evaluation = Evaluation(
        Path("step-7"),
        7,
        2,
        "test",
        measured(labels, logits, example_groups()),
        {"auc": (0.7, 0.8)},
        Best(3_000, 0.9, 0.4),
    )
    lines = describe(evaluation).splitlines()
    assert lines[0].startswith("test: 3,000 rows, click rate 0.2977, checkpoint step-7 (step 7)")
    assert lines[1].split("   ")[-3:] == [
        f"  {roc_auc_score(*judged):.6f}",
        "95 % within 0.700000 … 0.800000",
        "(best possible 0.900000)",
    ]
    assert lines[2].endswith("(best possible 0.400000)")
    assert len(lines[8].split()) == len(lines[9].split()) == 11  # a word and ten deciles
    assert "AUC per value of C3: mean 0.750000, weighted by rows, over 70.0% of the rows" in lines[10]
    assert lines[12].split() == ["(missing)", "30", "rows,", "click", "rate", "0.0000,", "one", "class"]


def test_one_class_in_words(judged):
    evaluation = Evaluation(Path("step-7"), 7, 2, "test", measured(np.ones(3_000, np.float32), judged[1]), {}, None)
    text = describe(evaluation)
    assert "AUC                 undefined\n" in text
    assert "one class only, so there is nothing to rank" in text
    assert "nan" not in text


def test_a_line_of_eval_log(judged):
    metrics = measured(*judged).metrics
    line = one_line("valid", 3, 40, metrics)
    assert line.startswith(f"epoch: 3 step: 40 split: valid rows: 3000, auc is {metrics.auc:.6f}, log_loss is ")
    assert "grouped_auc" not in line


FIELD = CategoricalField("C1", (10, 12), ((20, 23),))


def write_values(path, first_id, *values):
    ids = range(first_id, first_id + len(values))
    pq.write_table(pa.table({"field": ["C1"] * len(ids), "value": values, "count": [1] * len(ids), "id": ids}), path)


def test_values_missing_out_of_vocabulary_and_unknown(tmp_path, tiny_schema):
    write_values(tmp_path / VOCABULARY_FILE, 20, "68fd1e64", "", "05db9164")
    names = ["05db9164", "(out of vocabulary) 1", "(missing)", "68fd1e64", "(id 99)"]
    assert names_of_ids(tmp_path, tiny_schema, FIELD, np.array([22, 11, 21, 20, 99])) == names


def test_without_the_vocabulary_ids_are_shown(tmp_path, tiny_schema):
    field = CategoricalField("C1", (10, 11), ())
    assert names_of_ids(tmp_path, tiny_schema, field, np.array([10, 20])) == ["(out of vocabulary)", "(id 20)"]


def test_added_values_are_those_that_schema_json_names(tmp_path, tiny_schema):
    """Values that were forgotten, as those of a part that is read again, leave a file that counts no more."""
    write_values(tmp_path / VOCABULARY_FILE, 20, "old")
    write_values(tmp_path / added_file_name(21), 21, "new", "newer")
    write_values(tmp_path / added_file_name(22), 22, "forgotten")
    files = (*tiny_schema.other_files, DataFile(added_file_name(21), 0, 1, "xxh3:0"))
    schema = replace(tiny_schema, other_files=files)
    assert names_of_ids(tmp_path, schema, FIELD, np.array([20, 21, 22])) == ["old", "new", "newer"]


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
