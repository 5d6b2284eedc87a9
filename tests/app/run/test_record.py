"""Runs as read from their folders."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.run.quality import MOST_MEANS, means
from app.run.record import EFFECTS, RunRecord, click_rate_loss, read_runs, trained_click_rate, why_useless
from app.run.report import parts_over_steps
from data_prep.options.options_file import read_options
from data_prep.pipeline.prepare import prepare


def record(lines=(), **content):
    usual = {"name": "a", "state": {}, "config": {"train": {"batch_size": 16_000}}, "wide_losses": np.zeros(0)}
    return RunRecord(
        **{**usual, "lines": list(lines), "evaluations": [], "op_times": [], "effects": ({}, []), **content}
    )


def line(step, seconds, **values):
    return {"step": step, "seconds": seconds, "epoch": 1, **values}


def test_points_are_by_step_and_by_split_and_undefined_ones_are_left_out():
    lines = [line(2, 3, auc=0.7, split="valid"), line(1, 2, auc=None, split="valid"), line(2, 4, auc=0.8, split="test")]
    assert record(lines).points("auc", "valid") == ([2], [0.7])
    assert record(lines).points("auc") == ([], [])


@pytest.mark.parametrize(("metric", "best"), [("auc", 20), ("log_loss", 30)])
def test_the_best_evaluation_is_by_the_run_s_own_metric(metric, best):
    lines = [
        line(s, s, split="valid", auc=a, log_loss=ll) for s, a, ll in ((10, 0.7, 0.6), (20, 0.8, 0.5), (30, 0.75, 0.4))
    ]
    config = {"train": {"batch_size": 1}, "eval": {"metric": metric}}
    assert record(lines, config=config).best_evaluation()["step"] == best
    assert record().best_evaluation() is None
    before_the_first_step = line(0, 0, split="valid", auc=0.9, log_loss=0.1)
    assert record([before_the_first_step, *lines], config=config).best_evaluation()["step"] == best


def test_shown_is_test_else_the_best_on_valid_else_the_last():
    lines = [line(10, 1, split="valid", auc=0.8), line(20, 2, split="valid", auc=0.7)]
    valid = [{"split": "valid", "step": 10}, {"split": "valid", "step": 20}]
    assert record(lines, evaluations=valid).shown_evaluation() == valid[0]
    assert record(evaluations=valid).shown_evaluation() == valid[1]
    test = {"split": "test", "step": 10}
    assert record(lines, evaluations=[test, *valid]).shown_evaluation() == test


@pytest.mark.parametrize("name", ["run.json", "config.yaml"])
@pytest.mark.parametrize("content", ["", "{", '"text"'])
def test_a_damaged_file_is_named(make_run, name, content):
    path = make_run("device_0") / name
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"^{path} is damaged; copy it again, or start the training again"):
        read_runs([path.parent])


def test_evaluations_begin_with_that_of_the_source_and_have_their_intervals(make_run):
    (run,) = read_runs([make_run("device_0", lines=[line(0, 0.1, split="valid", auc=0.9)])])
    lines = run.evaluation_lines()
    expected = [("valid", 0, None), ("valid", 20, None), ("test", 40, 0.8), ("valid", 40, None)]
    assert [(each["split"], each["step"], each.get("auc_high")) for each in lines] == expected
    assert lines[0]["auc"] == 0.9
    assert lines[2]["auc"] == run.test_evaluation()["metrics"]["auc"]


def test_launches_differ_by_their_seconds_and_begin_with_an_unsteady_line():
    speed = {"samples_per_second": 100.0}
    lines = [
        line(10, 9, **speed),
        line(20, 12, **speed),
        line(20, 13, split="valid"),
        line(30, 2, **speed),
        line(40, 4, **speed),
    ]
    run = record(lines)
    assert [[each["step"] for each in launch] for launch in run.launches()] == [[10, 20], [30, 40]]
    assert [each["step"] for each in run.steady_lines()] == [20, 40]
    assert run.seconds == 13 + 4
    assert [each["step"] for each in record(lines[:1]).steady_lines()] == [10]


def test_the_parts_of_a_step_add_up_to_the_whole():
    times = {
        "samples_per_second": 10_000.0,
        "wait_share": 0.1,
        "lookup_ms": 300.0,
        "tower_ms": 1000.0,
        "update_ms": 100.0,
    }
    parts = {name: seconds for name, (seconds,) in parts_over_steps(record([line(1, 1, **times)])).items()}
    assert parts == pytest.approx({"wait": 0.16, "lookup": 0.3, "tower": 1, "update": 0.1, "other": 0.04})


def test_many_losses_become_means_that_lose_none():
    values = np.arange(1_001.0)
    (x, y), every = means(values)
    assert every == 6 and len(x) <= MOST_MEANS
    assert (x[0], y[0], x[-1], y[-1]) == (6, 2.5, 1_001, np.mean(values[996:]))
    assert means(np.zeros(0)) == (([], []), 1)


def test_names_are_as_short_as_they_can_be(make_run, tmp_path):
    a, b = make_run("one/device_0"), make_run("two/device_0")
    assert [run.name for run in read_runs([a, b])] == ["one/device_0", "two/device_0"]
    assert [run.name for run in read_runs([a])] == ["device_0"]
    assert [run.name for run in read_runs([a, a])] == ["1: device_0", "2: device_0"]


def test_a_line_that_is_being_written_is_passed_over(make_run):
    path = make_run("device_0")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"seconds": 99, "st')
    (run,) = read_runs([path])
    assert run.lines[-1]["seconds"] < 99
    assert run.steps == 40


@pytest.mark.parametrize("damage", ["empty", "cut", "bits", "no metadata", "other metadata"])
def test_effects_that_are_damaged_leave_the_rest_of_the_run_readable(make_run, caplog, damage):
    path = make_run("device_0") / EFFECTS
    metadata = {"no metadata": {}, "other metadata": {b"effects": b"{"}}.get(damage, {b"effects": b"{}"})
    pq.write_table(pa.table({"column": ["C1"] * 1000}).replace_schema_metadata(metadata), path)
    whole = path.read_bytes()
    damaged = {"empty": b"", "cut": whole[:-9], "bits": whole[:4] + bytes(len(whole) - 12) + whole[-8:]}
    path.write_bytes(damaged.get(damage, whole))
    (run,) = read_runs([path.parent])
    assert (run.effects, run.steps) == (({}, []), 40)
    assert f"{path} is damaged" in caplog.text and "bundle effects" in caplog.text


RATE = 0.1  # the loss of predicting a tenth for every row is 0.325


@pytest.fixture
def judge(tmp_path):
    """Judge a log of epochs, each a list of losses."""

    def why(*epochs, label_smoothing=0.0):
        path = tmp_path / "loss.log"
        lines = [
            f"epoch: {epoch} step: {step}, wide_loss is {loss}, deep_loss is 9.0\n"
            for epoch, losses in enumerate(epochs, 1)
            for step, loss in enumerate(losses, 1)
        ]
        path.write_text("".join(lines))
        return why_useless(path, RATE, label_smoothing)

    return why


def test_the_loss_of_predicting_the_click_rate():
    assert click_rate_loss(RATE, 0.0) == pytest.approx(-0.1 * math.log(0.1) - 0.9 * math.log(0.9))
    assert click_rate_loss(RATE, 1 - 1e-12) == pytest.approx(math.log(2))


def test_a_loss_above_that_of_the_click_rate_is_useless(judge):
    assert judge([0.32] * 300) == ""
    said = "its last epoch's mean loss is 0.35, predicting the click rate for every row has 0.3251"
    assert judge([0.35] * 300) == said


def prepared_rate(folder, kinds, rows, *words):
    """Prepare a log whose column c has seven values behind `rows`, and return the click rate of the training rows."""
    names = [column.split(":")[0] for column in kinds.split(", ")]
    lines = [f"{row},{number % 7}" for number, row in enumerate(rows)]
    (folder / "log.csv").write_text("\n".join([",".join(names), *lines, ""]))
    words = ["prepare.data.separator=','", "prepare.data.header=true", f"prepare.data.columns={{{kinds}}}", *words]
    schema = prepare(folder / "log.csv", folder / "prepared", read_options(None, [*words, "prepare.workers=1"]))
    return trained_click_rate(folder / "prepared", schema)


@pytest.mark.parametrize(("kind", "weights", "expected"), [("weight", "19", 0.5), ("ignored", "99", 0.1)])
def test_rows_count_by_their_weights(tmp_path, kind, weights, expected):
    rows = [f"{int(row % 10 == 0)},{weights[row % 10 == 0]}" for row in range(2000)]
    rate = prepared_rate(tmp_path, f"y: label, w: {kind}, c: string", rows)
    assert rate == pytest.approx(expected, abs=0.03)


def test_rows_without_labels_do_not_count(tmp_path):
    """Nine of ten have none; a fifth of the others are clicks, so a loss of 0.5 is that of their click rate."""
    rows = [int(row % 50 == 0) if row % 10 == 0 else "" for row in range(3000)]
    rate = prepared_rate(tmp_path, "y: label, c: string", rows, "prepare.data.label=optional")
    assert rate == pytest.approx(0.2, abs=0.04)
    (tmp_path / "loss.log").write_text("epoch: 1 step: 1, wide_loss is 0.5, deep_loss is 9.0\n" * 300)
    assert why_useless(tmp_path / "loss.log", rate, 0.0) == ""


def test_the_last_epoch_counts(judge):
    assert judge([0.5] * 300, [0.3] * 300) == ""
    assert judge([0.3] * 300, [0.5] * 300)


def test_the_first_steps_of_a_run_do_not_count(judge):
    assert judge([0.69] * 100 + [0.3] * 200) == ""
    assert judge([0.3] * 100 + [0.69] * 200)


@pytest.mark.parametrize("epochs", [([0.69, 0.6, 0.5],), ([0.6] * 150,), ([0.69] * 5, [0.6] * 5)])
def test_a_run_that_has_hardly_begun_is_useless_only_if_it_diverges(judge, epochs):
    assert judge(*epochs) == ""
    assert judge(*([*losses[:-1], 3648.0] for losses in epochs))


def test_short_epochs_count_once_there_were_many(judge):
    assert judge(*[[0.5] * 5] * 20) == ""
    assert judge(*[[0.5] * 5] * 21)


def test_smoothed_labels_have_a_higher_loss(judge):
    assert judge([0.48] * 300)
    assert judge([0.48] * 300, label_smoothing=0.2) == ""


def test_a_run_without_a_step_gets_no_verdict(judge, tmp_path):
    assert judge() == ""
    assert why_useless(tmp_path / "none.log", RATE, 0.0) == ""
