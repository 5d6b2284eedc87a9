"""The commands as functions, in one process: trainings one after another, Ctrl-C, callbacks, scores."""

import html
import io
import logging
import os
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

import app
from app import describe, evaluate, load_run, prepare, train
from app.checkpoint.retention import whole_checkpoints
from app.cli.bundle import add_arguments
from app.cli.predict import main
from app.evaluation.calibration import Calibration
from app.evaluation.metrics import MEASURED
from app.run.record import EFFECTS
from app.run.report import REPORT_FILE
from app.tables.native import library
from app.training.start import plan_launch
from app.training.step import first_layer, precision
from common import settings
from common.console import progress_bar
from tests.programs import run_program

THREADS = {"threads": 2}  # as the tests' MindSpore was imported


@pytest.fixture(scope="module")
def trained(cpu, tiny_config, tiny_dataset, tmp_path_factory):
    """A finished run, and the calls of its callbacks."""
    calls = []
    run = train(
        tiny_config(),
        tiny_dataset,
        tmp_path_factory.mktemp("notebook") / "first",
        on_step=lambda run, values: calls.append((run.path.name, "step", values)),
        on_evaluation=lambda run, values: calls.append((run.path.name, "evaluation", values)),
        device=THREADS,
        train={"epochs": 2, "log_every_steps": 2},
    )
    return run, calls


@pytest.fixture
def again(cpu, tiny_config, tiny_dataset, tmp_path):
    """The same training as `trained` in another folder."""

    def train_again(epochs=2, **options):
        sections = {"device": THREADS, "train": {"epochs": epochs, "log_every_steps": 2}}
        return train(tiny_config(), tiny_dataset, tmp_path / "again", **{**sections, **options})

    return train_again


@pytest.fixture(scope="module")
def lines(tiny_log):
    return tiny_log.read_text().splitlines()[:20]


def test_an_import_is_fast_and_mindspore_comes_with_the_first_use(project):
    program = """
import sys, app
print({"numpy", "mindspore", "app.cli"} & set(sys.modules))
from app import evaluate, load_run, prepare, train
print("mindspore" in sys.modules)
"""
    command = [sys.executable, "-P", "-c", program]
    done = run_program(*command, env={**os.environ, "PYTHONPATH": str(project)})
    assert done.stdout.split() == ["set()", "False"]


def test_another_name_is_an_error_as_of_any_module():
    with pytest.raises(AttributeError, match="module 'app' has no attribute 'trian'"):
        app.trian  # noqa: B018


def test_a_run_has_its_status_settings_and_metrics(trained):
    run, _ = trained
    assert run.status == "finished"
    assert run.config.train.epochs == 2
    evaluated = [line for line in run.history if line.get("split") == "valid"]
    assert run.metrics == max(evaluated, key=lambda line: line["auc"])
    assert (
        repr(run) == f"<Run {run.path}: finished, auc {run.metrics['auc']:.6f}, log_loss {run.metrics['log_loss']:.6f}>"
    )
    assert load_run(run.path).metrics == run.metrics


def test_the_curve_and_the_evaluations_are_tables(trained):
    run, _ = trained
    curve, evaluations = run.curve, run.evaluations
    steps = [line for line in run.history if "wide_loss" in line]
    assert curve.index.tolist() == [line["step"] for line in steps] == [2, 4, 5, 7, 9, 10]
    assert curve["wide_loss"].tolist() == [line["wide_loss"] for line in steps]
    assert "auc" not in curve.columns
    of_valid = evaluations[(evaluations["split"] == "valid") & ~evaluations["calibrated"]]
    assert of_valid["step"].tolist() == [5, 10]
    best = of_valid.set_index("step").loc[run.metrics["step"]]
    assert {name: best[name] for name in MEASURED} == pytest.approx({name: run.metrics[name] for name in MEASURED})


def test_a_run_without_a_step_has_empty_tables(tmp_path, trained):
    run, _ = trained
    for name in ("config.yaml", "run.json"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    empty = load_run(tmp_path)
    assert (len(empty.curve), len(empty.evaluations)) == (0, 0)


def test_callbacks_get_the_lines_of_the_log(trained):
    run, calls = trained
    assert [(name, kind, values["step"]) for name, kind, values in calls] == [
        ("first", kind, step)
        for kind, step in [(kind, epoch + step) for epoch in (0, 5) for kind, step in
                           (("step", 2), ("step", 4), ("step", 5), ("evaluation", 5))]
    ]  # fmt: skip
    logged = [line for line in run.history if "wide_loss" in line or "split" in line]
    for (_, _, values), line in zip(calls, logged, strict=True):
        assert {name: value for name, value in line.items() if name != "seconds" and value is not None} == {
            name: value for name, value in values.items() if value == value
        }


def test_a_log_whose_last_rows_have_no_labels_yet(cpu, tmp_path, caplog):
    rows = [f"{'' if number >= 240 else number % 2},{'abcd'[number * 7 % 4]}" for number in range(300)]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    data = {"columns": {"click": "label", "site": "string"}, "separator": ",", "label": "optional"}
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(data))
    prepare(tmp_path / "log.csv", tmp_path / "data", None, tmp_path / "data.yaml", split="chronological", workers=1)
    model = {"embedding_dim": 2, "hidden_widths": [4]}
    options = {"device": THREADS, "model": model, "train": {"batch_size": 100, "epochs": 1}}
    options["eval"] = {"metric": "log_loss"}
    run = train(None, tmp_path / "data", tmp_path / "run", **options)
    assert (run.status, run.metrics) == ("finished", {})
    assert "not evaluated on split 'valid': no rows to measure" in caplog.text
    assert run.predict(rows[-2:]).shape == (2,)
    with pytest.raises(ValueError, match="no rows to measure: the split is empty, or all weights are 0"):
        evaluate(run)


def test_a_choice_of_distinct_rows_is_in_the_log_and_kept_by_ranks(
    cpu, tiny_config, tiny_dataset, tmp_path, monkeypatch
):
    monkeypatch.setattr(first_layer, "LEAST_BATCH", 1)
    monkeypatch.setattr(first_layer, "LEAST_SAVING", 0.0)
    asked = settings.merge(tiny_config(), {"device": THREADS, "model": {"embedding_dim": 80}}, where="test")
    run = train(asked, tiny_dataset, tmp_path / "run", train={"epochs": 1})
    assert run.config.model.first_layer == "distinct"
    logged = (run.path / "test_deep0.log").read_text()
    assert "the first layer multiplies distinct rows once, which should save " in logged
    launch = plan_launch(asked, tiny_dataset, run.path, num_ranks=2)
    assert (launch.config.model.first_layer, launch.backend) == ("distinct", "native")
    assert "several ranks multiply the first layer position by position" in launch.choices[1]

    def not_built():
        raise OSError("not built; run `make native`")

    monkeypatch.setattr(library.LIBRARY, "load", not_built)
    with pytest.raises(ValueError, match=r"multiplies distinct rows once .*, but now tables\.backend=stock looks its"):
        plan_launch(settings.merge(asked, {"tables": {"backend": "auto"}}, where="test"), tiny_dataset, run.path)


def test_a_run_keeps_the_precision_that_auto_chose(cpu, tiny_config, tiny_dataset, tmp_path, monkeypatch):
    faster = {"float32": 2.0, "bfloat16": 1.0}
    monkeypatch.setattr(precision, "cpu_flags", lambda: {"avx512_bf16"})
    monkeypatch.setattr(precision, "_seconds_of", lambda *_: faster)
    asked = settings.merge(tiny_config(), {"device": {**THREADS, "precision": "auto"}}, where="test")
    run = train(asked, tiny_dataset, tmp_path / "run", train={"epochs": 1})
    assert run.config.device.precision == "bfloat16"
    assert "precision: bfloat16; bfloat16 is 2.00 times as fast" in (run.path / "test_deep0.log").read_text()
    faster["bfloat16"] = 3.0
    assert plan_launch(asked, tiny_dataset, run.path).config.device.precision == "bfloat16"
    assert plan_launch(asked, tiny_dataset, tmp_path / "new").config.device.precision == "float32"


@pytest.mark.parametrize("deep", [pytest.param("lazy_adam", marks=pytest.mark.slow), "adam"])
def test_running_means_are_evaluated_resumed_to_the_same_bits_and_exported(
    again, trained, tiny_config, tiny_dataset, lines, tmp_path, deep, capsys
):
    """The weights that train, hence the losses, are those without means."""
    epochs = 2 if deep == "lazy_adam" else 1
    options = {
        "device": THREADS,
        "train": {"epochs": epochs, "log_every_steps": 2, "ema_decay": 0.9},
        "deep_optimizer": {"name": deep},
        "checkpoint": {"every_steps": 2, "delta": True},
    }
    whole = train(tiny_config(), tiny_dataset, tmp_path / "whole", **options)

    def interrupt(_, values):
        if values["step"] == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="the same call resumes"):
        again(**options, on_step=interrupt)
    assert load_run(tmp_path / "again").status == "stopped"
    assert 4 <= len((tmp_path / "again" / "loss.log").read_text().splitlines()) < 5 * epochs
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = again(**options)
    assert resumed.status == "finished"
    for name in ("loss.log", "eval.log"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()
    if deep == "lazy_adam":
        assert (whole.path / "loss.log").read_bytes() == (trained[0].path / "loss.log").read_bytes()
        assert (whole.path / "eval.log").read_bytes() != (trained[0].path / "eval.log").read_bytes()
    evaluation = evaluate(whole, split="valid")
    assert f"AUC                 {evaluation.metrics.auc:.6f}" in capsys.readouterr().out
    assert evaluation.step == whole.metrics["step"]
    for name in MEASURED:
        assert getattr(evaluation.metrics, name) == pytest.approx(whole.metrics[name], abs=1e-6)
    np.testing.assert_array_equal(resumed.predict(lines), whole.predict(lines))  # an export compares the logits
    options["train"] = {"epochs": 1, "init_from": str(whole.path)}
    before = train(tiny_config(), tiny_dataset, tmp_path / "warm", **options).history[0]
    assert (before["epoch"], before["auc"]) == (0, pytest.approx(whole.metrics["auc"], abs=1e-6))


def test_a_callback_that_fails_ends_the_training_and_keeps_its_checkpoints(again, tmp_path):
    def fail(_, values):
        raise RuntimeError("the plot is broken")

    with pytest.raises(RuntimeError, match="the plot is broken"):
        again(on_evaluation=fail, checkpoint={"every_steps": 3})
    run = load_run(tmp_path / "again")
    assert run.status == "failed"
    assert [checkpoint.manifest.step for checkpoint in whole_checkpoints(run.path / "checkpoints")] == [3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": {"threads": 1}}, "device.threads=1 .* this process has imported MindSpore with 2 threads"),
        ({"trian": {"epochs": 2}}, "arguments: unknown key 'trian'; did you mean 'train.epochs'"),
        ({"train": {"epochs": 0}}, "arguments: train.epochs must be 1 or more"),
    ],
)  # fmt: skip
def test_wrong_settings_leave_nothing(again, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        again(**options)
    assert list(tmp_path.iterdir()) == []


def test_the_parts_of_one_field_are_named_by_it_alone(trained):
    assert {each.by for each in evaluate(trained[0], by="C20").slices} == {"C20"}


def test_a_calibrated_evaluation_of_parts_is_printed_and_in_the_report(trained, capsys, caplog):
    caplog.set_level(logging.INFO)
    run, _ = trained
    calibrated = evaluate(run, split="test", by=["C20", "time", "unseen"], calibrate=True)
    assert {each.by for each in calibrated.slices} == {"C20", "time", "unseen"}
    for by in ("C20", "time", "unseen"):
        assert sum(each.metrics.rows for each in calibrated.slices if each.by == by) == calibrated.metrics.rows
    printed = capsys.readouterr().out
    parts = calibrated.frame
    assert parts["by"].tolist() == ["", *(each.by for each in calibrated.slices)]
    assert parts["log_loss"].tolist() == [each.metrics.log_loss for each in [calibrated, *calibrated.slices]]
    assert (parts["auc_low"][0], parts["auc_high"][0]) == calibrated.intervals["auc"]
    few = [each for each in calibrated.slices if each.intervals and each.metrics.rows * each.metrics.click_rate < 20]
    assert ("Intervals of fewer than 20 clicks are too narrow" in printed) is bool(few)
    (written,) = run.evaluations.query("split == 'test' and calibrated").to_dict("records")
    assert (written["auc"], written["auc_high"]) == pytest.approx((parts["auc"][0], parts["auc_high"][0]), abs=1e-6)
    assert repr(calibrated).startswith(f"<Evaluation test, step {calibrated.step}, calibrated: auc 0.")
    assert f"calibrated: {calibrated.calibration}" in printed
    assert "by unseen" in printed
    low, high = calibrated.intervals["auc"]
    cells = f"<th>AUC</th><td>{calibrated.metrics.auc:.6f}</td><td>{low:.6f} … {high:.6f}</td>"
    assert cells in calibrated._repr_html_()
    page = run.report().page
    assert "Where the model is wrong" in page
    assert str(calibrated.calibration) in page
    assert ("clicks are too narrow" in page) is bool(few)
    assert calibrated.metrics.auc == pytest.approx(evaluate(run, split="test").metrics.auc, abs=1e-6)


def test_scores_calibrated_on_the_rows_that_measure_them_are_warned_of(trained, caplog):
    run, _ = trained
    evaluate(run, split="valid", calibrate=True)
    assert "the scores are calibrated on valid and measured there" in caplog.text
    caplog.clear()
    evaluate(run, split="test", calibrate=True)
    assert "measured there" not in caplog.text


def test_a_calibrated_bundle_has_the_scores_of_a_calibrated_evaluation(trained, lines, tmp_path):
    run, _ = trained
    calibrated = run.export(tmp_path / "bundle", calibrate=True)
    calibration = Calibration(**calibrated.manifest.model["calibration"])
    np.testing.assert_array_equal(calibrated.logits(lines), calibration(run.predictor.logits(lines)))
    wide = [
        {effect.field: effect.wide for effect in bundle.explain(lines[0])} for bundle in (run.predictor, calibrated)
    ]
    assert wide[1] == pytest.approx({name: calibration.slope * weight for name, weight in wide[0].items()}, rel=1e-6)
    assert any(wide[0].values())
    assert f"Platt's scaling: {calibration}" in (tmp_path / "bundle" / "README.md").read_text()
    assert calibrated.verify() == 100


def test_scores_are_those_of_the_bundle(trained, lines, tmp_path):
    run, _ = trained
    np.testing.assert_array_equal(run.export(tmp_path / "bundle").score(lines), run.predict(lines))
    effects = run.explain(lines[0])
    assert abs(effects[0].change) == max(abs(effect.change) for effect in effects) > 0


def test_effects_of_a_log_or_a_table_are_returned_and_stay_in_the_report(trained, tiny_log, tmp_path):
    run, _ = trained
    whole, page = run.effects(tiny_log, values=3), run.path / REPORT_FILE
    words = ["effects", str(run.path / "bundle"), str(tiny_log), "--values", "3"]
    assert main(add_arguments, "bundle", [*words, "--output", str(tmp_path / "of_command.parquet")]) == 0
    for written in (tmp_path / "of_command.parquet", run.path / EFFECTS):
        pd.testing.assert_frame_equal(pd.read_parquet(written), whole)
    assert whole[whole["cells"] == "value"].groupby("column").size().max() == 3
    assert "3,000 rows" in page.read_text() and "by range" in page.read_text()

    columns = run.predictor.log_format.columns
    cells = [line.split("\t") for line in tiny_log.read_text().splitlines()[:50]]
    frame = pd.DataFrame(cells, columns=list(columns), index=range(7, 57))
    pd.testing.assert_frame_equal(run.effects(frame), run.predictor.effects(frame))
    assert "50 rows" in page.read_text() and "50 rows" in run.report().page and "3,000 rows" not in page.read_text()
    written = (run.path / EFFECTS).read_bytes()
    (tmp_path / "bad.txt").write_text("no line of this log\n")
    with pytest.raises(ValueError, match="none of 1 lines is good"):
        run.effects(tmp_path / "bad.txt")
    assert (run.path / EFFECTS).read_bytes() == written


def test_a_finished_run_is_returned_and_more_epochs_continue_it_to_another_bundle(again, lines, caplog):
    caplog.set_level(logging.INFO)
    run = again(epochs=1)
    first, steps = run.predict(lines), len(run.history)
    manifest = run.path / "bundle" / "manifest.json"
    written = manifest.stat().st_mtime_ns
    assert again(epochs=1).path == run.path
    assert "is finished: all 1 epochs are done" in caplog.text
    assert len(run.history) == steps
    np.testing.assert_array_equal(load_run(run.path).predict(lines), first)
    assert manifest.stat().st_mtime_ns == written
    assert again(epochs=2).metrics["step"] == 10
    assert not np.array_equal(run.predict(lines), first)


def test_a_process_of_other_threads_exports_in_another_one(trained, monkeypatch, tmp_path):
    run, commands = trained[0], []
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr("app.api.run_module", lambda *words: commands.append(words))
    monkeypatch.setattr(type(run), "_open", lambda *_: None)
    run.export(tmp_path / "bundle", rows="float16", calibrate=True)
    best = whole_checkpoints(run.path / "checkpoints")[-1].path
    assert commands == [
        ("app", "export", str(best), str(tmp_path / "bundle"), "rows=float16", "--overwrite", "--calibrate=platt")
    ]


def test_a_report_is_shown_in_a_frame(trained):
    run, _ = trained
    report = run.report(height=500)
    shown = report._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    assert 'height="500"' in shown
    assert html.unescape(shown.split('"')[1]) == report.page
    assert "Run first" in report.page


def test_a_log_is_prepared_with_single_settings(tiny_log, tiny_schema, project, tmp_path):
    config = project / "configs" / "tiny.yaml"
    schema = prepare(tiny_log, tmp_path / "prepared", config, workers=1, min_count=5)
    assert schema.splits["train"].rows == tiny_schema.splits["train"].rows
    assert schema.vocabulary_size < tiny_schema.vocabulary_size
    with pytest.raises(ValueError, match=r"unknown key 'prepare\.mincount'; did you mean 'prepare\.min_count'"):
        prepare(tiny_log, tmp_path / "prepared", config, mincount=5)


@pytest.fixture(scope="module")
def frame():
    """A table of typed columns, some of whose cells are missing."""
    generator, count = np.random.default_rng(1), 600
    ages = pd.Series(generator.integers(18, 90, count), dtype="Int64").mask(generator.random(count) < 0.1)
    columns = {
        "age": ages,
        "spent": generator.gamma(2, 30, count).round(2),
        "city": pd.Categorical(generator.choice(list("abcdef"), count)),
        "seen": pd.Timestamp("2025-03-01") + pd.to_timedelta(generator.integers(0, 10**6, count), unit="s"),
        "tags": [list("xyz"[: generator.integers(4)]) for _ in range(count)],
        "left": np.where(generator.random(count) < ages.fillna(40) / 100, "yes", "no"),
    }
    return pd.DataFrame(columns, index=generator.permutation(count))


def test_a_table_is_described_prepared_trained_and_scored(cpu, frame, tmp_path):
    schema = prepare(frame, tmp_path / "prepared", data=describe(frame), workers=1, min_count=1)
    assert sum(split.rows for split in schema.splits.values()) == len(frame)
    assert {"age", "spent"} < {field.name for field in schema.numeric}
    assert {"city", "tags", "seen_hour"} <= {field.name for field in schema.categorical}
    assert f"ids; rows: {schema.splits['train'].rows} train, " in repr(schema)
    options = {"model": {"embedding_dim": 2, "hidden_widths": [4]}, "train": {"batch_size": 100, "epochs": 1}}
    run = train("configs/tiny.yaml", tmp_path / "prepared", tmp_path / "run", device=THREADS, **options)
    rows = frame.drop(columns="left").iloc[:20]
    scores, parts = run.predict(rows), run.explain(rows)
    np.testing.assert_array_equal(scores, run.predict(pa.Table.from_pandas(rows)))
    pd.testing.assert_index_equal(scores.index, rows.index)
    logits = np.log(scores.astype(float) / (1 - scores.astype(float)))
    np.testing.assert_allclose(parts.sum(axis=1), logits, atol=1e-5)
    assert repr(run.predictor).startswith(f"<Predictor {run.path}/bundle: 5 columns, version xxh3:")


@pytest.fixture
def model_and_day(cpu, frame, tmp_path):
    """A small model of configs/auto.yaml in device_0, and a prepared day of fewer rows."""
    proposal, auto = describe(frame), "configs/auto.yaml"
    prepare(frame, tmp_path / "days", auto, data=proposal, workers=1)
    prepare(frame[:200], tmp_path / "day", auto, data=proposal, workers=1, vocabulary_of=tmp_path / "days", extend=True)
    small = {"embedding_dim": 2, "hidden_widths": [4], "deep_fields": ["city"]}
    source = train(auto, tmp_path / "days", tmp_path / "device_0", device=THREADS, model=small, train={"epochs": 1})
    return source.path, tmp_path / "day"


def train_from(source, day, run, **callbacks):
    options = {"init_from": str(source), "log_every_steps": 1}
    return train(
        "configs/auto.yaml", day, run, **callbacks, device=THREADS, train=options, checkpoint={"every_steps": 9}
    )


def interrupt(run, values):
    if values["step"] in (0, 20):
        raise InterruptedError


def test_a_day_goes_on_from_a_model_by_its_sizes_and_resumes_when_that_is_gone(model_and_day, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (source, day), run = model_and_day, tmp_path / "run"
    caplog.clear()
    with pytest.raises(InterruptedError):
        train_from(source, day, run, on_step=interrupt)
    assert "took" in caplog.text and "left out" not in caplog.text and "warning" not in caplog.text
    source.rename(tmp_path / "elsewhere")
    config = train_from(source, day, run).config
    assert "Resuming" in caplog.text and not (tmp_path / "run.1").exists()
    assert (config.model.hidden_widths, config.model.deep_fields) == ((4,), ("city",))
    assert (config.train.epochs, config.train.init_optimizer) == (1, True)


def test_a_day_in_the_folder_of_its_model_starts_again_after_a_stop_before_its_first_checkpoint(model_and_day):
    source, day = model_and_day
    with pytest.raises(InterruptedError):
        train_from(source, day, source, on_evaluation=interrupt)
    assert not whole_checkpoints(source / "checkpoints")
    run = train_from(source, day, source)
    assert run.config.model.hidden_widths == (4,)
    assert run.config.train.init_from.startswith(str(source.with_name("device_0.1")))
    steps = len(run.history)
    assert len(train_from(source, day, source).history) == steps  # it is finished


def test_a_table_is_described_by_as_many_rows_as_a_log(frame):
    described = describe(frame, num_rows=200)
    text = described if isinstance(described, str) else described.as_yaml()
    assert "the first 200 rows" in text
    assert "age: integer" in text


def test_a_description_is_a_proposal_its_text_its_keys_or_a_file(frame, tmp_path):
    described = describe(frame)
    text = described if isinstance(described, str) else described.as_yaml()
    (tmp_path / "data.yaml").write_text(text)
    forms = [describe(frame), text, yaml.safe_load(text), tmp_path / "data.yaml", str(tmp_path / "data.yaml")]
    schemas = [
        prepare(frame, tmp_path / str(place), data=data, vocabulary="hash", oov_buckets=10, workers=1)
        for place, data in enumerate(forms)
    ]
    assert all(schema == schemas[0] for schema in schemas)


def test_an_interrupted_preparation_is_resumed_by_the_same_call(frame, tmp_path, monkeypatch, caplog):
    from data_prep.pipeline import prepare as pipeline

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_splits", interrupt)
        with pytest.raises(KeyboardInterrupt, match="the same call resumes"):
            prepare(frame, tmp_path / "prepared", data=describe(frame), workers=1)
    prepare(frame, tmp_path / "prepared", data=describe(frame), workers=1)
    assert "resuming" in caplog.text


def test_a_config_is_found_in_the_project_from_any_folder(frame, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"no config file .*/configs/atuo\.yaml; the \.yaml files in .*: auto\.yaml"
    ):
        prepare(frame, "prepared", "configs/atuo.yaml", data=describe(frame))


@pytest.mark.parametrize(
    ("log", "options", "error", "message"),
    [
        (pd.DataFrame({"clicked": [1], "b": [2]}), {}, ValueError, "found clicked, b. Give data=describe"),
        (pd.DataFrame({"b": [2]}), {"data": "columns: {\n"}, ValueError, "data is not YAML"),
        (pd.DataFrame({"b": [2, "a"]}), {}, TypeError, "several types: row 1, column 'b': 'a' beside 2"),
        (SimpleNamespace(collect_schema=dict, collect=list), {}, TypeError, r"has no rows yet; .* its collect\(\)"),
        ({"b": [1]}, {}, TypeError, "a path, several of them, or a table of pandas, polars or pyarrow; found dict"),
        ([{"b": 1}], {}, TypeError, "found list"),
    ],
)  # fmt: skip
def test_what_is_no_log_is_refused(tmp_path, log, options, error, message):
    with pytest.raises(error, match=message):
        prepare(log, tmp_path / "prepared", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run in"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda frame, folder: prepare(frame, folder / "out", data=describe(frame), extend=True), "vocabulary_of=DIR"),
        (lambda frame, folder: describe(frame, label="clic"), "^label=clic: no column"),
        (lambda frame, folder: describe(frame, num_rows=0), "found num_rows=0"),
    ],
)
def test_errors_name_arguments_not_options(frame, tmp_path, call, said):
    with pytest.raises(ValueError, match=said) as raised:
        call(frame, tmp_path)
    assert "--" not in str(raised.value)


def test_a_notebook_s_log_is_standard_output(monkeypatch):
    class OutStream(io.StringIO):
        __module__ = "ipykernel.iostream"

    out, error = OutStream(), OutStream()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with app.api.log_shown("app"), progress_bar(total=1, desc="epoch") as bar:
        logging.getLogger("app").info("a line")
        bar.update()
    assert "a line\n" in out.getvalue() and "epoch" in out.getvalue() and not error.getvalue()
