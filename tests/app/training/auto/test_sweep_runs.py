"""Sweeps: their points, and the runs of a small one as processes, which stop and resume."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import app
from app.__main__ import main
from app.run.decision import read_state
from app.training.auto import regression as crosses
from app.training.auto import sweep_runs
from app.training.auto.sweep_runs import SweepOptions, Trial, find_points
from common.files import lock_folder
from data_prep.prepared.schema import read_schema
from tests.programs import run_program

VALUES = {"model.hidden_widths": [[8], [16, 8]], "train.seed": [1, 2, 3]}


def test_a_grid_has_every_point_once():
    points = find_points(VALUES, SweepOptions(), "a.yaml")
    assert len(points) == len(set(points)) == 6
    assert points[0] == ("model.hidden_widths=[8]", "train.seed=1")
    assert find_points({"train.seed": [2, 1, 2]}, SweepOptions(), "a.yaml") == [("train.seed=2",), ("train.seed=1",)]


def test_points_are_drawn_from_the_grid_by_the_seed():
    drawn = find_points(VALUES, SweepOptions(runs=3), "a.yaml")
    assert len(set(drawn)) == 3
    assert set(drawn) < set(find_points(VALUES, SweepOptions(), "a.yaml"))
    assert drawn == find_points(VALUES, SweepOptions(runs=3), "a.yaml")
    assert drawn != find_points(VALUES, SweepOptions(runs=3, seed=2), "a.yaml")


@pytest.fixture
def sweep_file(tmp_path, project, tiny_dataset, monkeypatch):
    """Write s.yaml into `tmp_path`, where the test is."""
    monkeypatch.chdir(tmp_path)

    def write(more):
        text = f"config: {project / 'configs' / 'tiny.yaml'}\ndataset: {tiny_dataset}\n{more}"
        (tmp_path / "s.yaml").write_text(text)
        return "s.yaml"

    return write


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("settings: {train.seed: 1}", "must map settings to lists of values to try; found {'train.seed': 1}"),
        ("setings: {train.seed: [1]}", "unknown key 'setings'"),
        ("settings: {train.sed: [1]}", "unknown key 'train.sed'; did you mean 'train.seed'?"),
        ("settings: {train.seed: [1]}\nrungs: [3, 1]", "parallel >= 1, 0 < keep <= 1, and rising rungs"),
        ("settings: {train.seed: [1]}\nkeep: 0", "0 < keep <= 1"),
        ("settings: {train.epochs: [1, 3]}", "give these as rungs, not as train.epochs"),
    ],
)  # fmt: skip
def test_wrong_files_start_nothing(sweep_file, tmp_path, caplog, more, message):
    assert main(["sweep", sweep_file(more)]) == 2
    assert message in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_a_missing_dataset_is_named_with_the_working_folder(sweep_file, tiny_dataset, tmp_path, caplog):
    sweep_file("settings: {train.seed: [1]}")
    text = (tmp_path / "s.yaml").read_text().replace(str(tiny_dataset), "nowhere")
    (tmp_path / "s.yaml").write_text(text)
    assert main(["sweep", "s.yaml"]) == 2
    where = f"s.yaml: dataset: nowhere, which starts from the working folder, {tmp_path}: "
    assert where + "no prepared data in nowhere: the folder does not exist; run: " in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_a_folder_of_another_sweep_or_release_is_refused(sweep_file, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(sweep_runs, "_train_all", lambda *_: None)
    monkeypatch.setattr(sweep_runs, "write_sweep_report", lambda *_: None)
    assert main(["sweep", sweep_file("settings: {train.seed: [1]}")]) == 0
    assert main(["sweep", sweep_file("settings: {train.seed: [1, 2]}")]) == 0  # more points are the same sweep
    (tmp_path / "s" / "train.seed=1").mkdir()
    assert main(["sweep", "s.yaml"]) == 2
    assert "holds a sweep of an earlier release" in caplog.text and "give another --output" in caplog.text
    (tmp_path / "s" / "train.seed=1").rmdir()
    other = (tmp_path / "s.yaml").read_text().replace("tiny.yaml", "few_rows.yaml")
    (tmp_path / "s.yaml").write_text(other)
    assert main(["sweep", "s.yaml"]) == 2
    assert "deep_optimizer.learning_rate was 0.00035, is 0.003; give another --output" in caplog.text


def test_a_second_sweep_in_the_folder_is_refused_before_it_ends_the_first_one_s_runs(sweep_file, tmp_path, caplog):
    path = sweep_file("settings: {train.seed: [1]}")
    with lock_folder(tmp_path / "s"):
        assert main(["sweep", path]) == 2
    assert f"another sweep runs in {tmp_path / 's'}; wait for its end, or give another --output" in caplog.text
    assert [file.name for file in (tmp_path / "s").iterdir()] == ["run.lock"]


def test_the_end_of_a_run_of_a_killed_sweep_is_waited_for(sweep_file, tmp_path, monkeypatch, caplog):
    """A run that still saves after the sweep's end keeps its lock."""
    trials = [Trial((f"train.seed={seed}",), tmp_path / f"seed={seed}" / "device_0") for seed in (1, 2)]
    older, started = lock_folder(trials[0].run), []

    def start(trial, *_):
        started.append((trial.words[0], older.closed))
        (trial.run.parent).mkdir(exist_ok=True)
        (trial.run.parent / "train.log").touch()
        return subprocess.Popen(["true"])

    monkeypatch.setattr(sweep_runs, "_start", start)
    monkeypatch.setattr(time, "sleep", lambda _: len(started) == 1 and older.close())
    with caplog.at_level("INFO"):
        sweep_runs._train_all(trials, 1, SweepOptions(parallel=2), SimpleNamespace(check=lambda: None), {}, "auc")
    assert started == [("train.seed=2", False), ("train.seed=1", True)]
    assert f"{trials[0].run}: another process trains there still" in caplog.text


def test_losers_stop_at_each_rung_and_a_restart_decides_alike(sweep_file, monkeypatch, tmp_path, capsys):
    """Imitate runs of which the one with seed s has AUC 0.s in epoch 1, and 0.9 less than that in epoch 3."""
    trained = []

    def train_all(trials, epochs, *_):
        trained.append([trial.words for trial in trials])
        for trial in trials:
            trial.run.mkdir(parents=True, exist_ok=True)
            seed = int(trial.words[0][-1])
            lines = [(1, 1 - seed / 10), (3, 0.1 + seed / 10)] if epochs == 3 else [(1, 1 - seed / 10)]
            (trial.run / "config.yaml").write_text("{}\n")
            (trial.run / "run.json").write_text(f'{{"epochs": {epochs}, "status": "finished"}}')
            (trial.run / "metrics.jsonl").write_text(
                "".join(
                    f'{{"seconds": {epoch}, "step": {epoch}, "epoch": {epoch}, "split": "valid", "log_loss": {loss}}}\n'
                    for epoch, loss in lines
                )
            )

    monkeypatch.setattr(sweep_runs, "_train_all", train_all)
    monkeypatch.setattr(sweep_runs, "write_sweep_report", lambda *_: None)
    path = sweep_file("settings: {train.seed: [1, 2, 3, 4]}\nrungs: [1, 3]\n")
    assert main(["sweep", path]) == 0
    assert trained == [[(f"train.seed={seed}",) for seed in order] for order in ((1, 2, 3, 4), (4, 3))]
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [f"log_loss {loss:f} in 3 epoch(s)  train.seed={seed}" for loss, seed in ((0.4, 3), (0.5, 4))]
    assert main(["sweep", path]) == 0
    assert trained[2:] == [[], []]
    table = pd.read_csv(tmp_path / "s" / "results.csv")
    assert table["train.seed"].tolist() == [3, 4, 2, 1]
    assert table["log_loss"].round(9).tolist() == [0.4, 0.5, 0.8, 0.9] and table["epochs"].tolist() == [3, 3, 1, 1]
    monkeypatch.chdir("/")
    config, dataset = settings_of(tmp_path / "s.yaml")
    called = app.sweep({"train.seed": (1, 2, 3, 4)}, dataset, tmp_path / "s", config, rungs=[1, 3])
    assert table["run"].tolist() == [f"train.seed-{seed}/device_0" for seed in (3, 4, 2, 1)]
    table["run"] = [str(tmp_path / "s" / run) for run in table["run"]]
    pd.testing.assert_frame_equal(called[table.columns], table, check_dtype=False)


def settings_of(path):
    content = yaml.safe_load(path.read_text())
    return content["config"], content["dataset"]


def test_python_refuses_what_the_command_refuses(sweep_file, tiny_dataset, tmp_path):
    sweep_file("")
    for values, options, message in (
        ({"train.sed": [1]}, {}, "did you mean 'train.seed'"),
        ({"train.seed": []}, {}, "must map settings to lists of values to try"),
        ({"train.seed": [1]}, {"rung": [1]}, "unknown key 'rung'; did you mean 'rungs'"),
    ):
        with pytest.raises(ValueError, match=message):
            app.sweep(values, tiny_dataset, tmp_path / "x", **options)


def test_a_run_of_many_settings_has_a_folder_of_its_own(tmp_path):
    many = tuple(f"deep_optimizer.learning_rate_{number}=0.0012345" for number in range(9))
    folders = {tmp_path / sweep_runs.folder_name((*many, f"train.seed={seed}")) for seed in (1, 2)}
    for folder in folders:
        folder.mkdir()  # which a name of more than 255 bytes does not allow
    assert len(folders) == 2
    assert sweep_runs.folder_name(("a.b=-1", "c.d=1e-05")) == "a.b--1-c.d-1e-05"


texts = st.text(alphabet='ab1e./_,:="[]{}% né\0', max_size=5) | st.sampled_from(["1", "null", "true", "[1]", "x" * 400])
plain = st.none() | st.booleans() | st.integers(-2, 12) | st.sampled_from([0.5, 1.0, 1e-3]) | texts
values = plain | st.lists(plain, max_size=3) | st.dictionaries(texts, plain, max_size=2)


@given(st.lists(st.tuples(values, values), min_size=2, max_size=12))
def test_no_two_points_share_a_folder(tried):
    """Nor where their values differ by what a name leaves out: quotes, blanks, slashes."""
    points = {tuple(f"{name}={json.dumps(value)}" for name, value in zip("ab", pair, strict=True)) for pair in tried}
    names = {sweep_runs.folder_name(point) for point in points}
    assert len(names) == len(points)
    for name in names:
        assert re.fullmatch(r"a[a-z0-9_.+-]*", name) and len(name) <= sweep_runs.MAX_NAME_BYTES


def test_a_run_without_a_result_ranks_last(tmp_path):
    assert Trial((), tmp_path / "device_0").score("log_loss", 3) == float("-inf")


@pytest.mark.slow
def test_runs_with_train_auto_share_what_one_fit_found_of_crosses(tmp_path, project, monkeypatch, caplog):
    """Put another gain in place of the fit's: a run that fits for itself has not this one in its log."""
    numbers = np.arange(2000)
    frame = pd.DataFrame({"click": numbers % 3 // 2, "A": numbers % 7, "B": numbers % 5})
    frame = frame.assign(A="a" + frame["A"].astype(str), B="b" + frame["B"].astype(str))
    app.prepare(frame, tmp_path / "crossed", None, app.describe(frame), crosses=[["A", "B"]], workers=1)
    gain, fits = {"auc": 0.0525, "log_loss": 0.02, "error": 0.003, "inverse_penalty": 1.0}, []
    monkeypatch.setattr(crosses, "run_module", lambda *words: fits.append(words) or json.dumps(gain))
    monkeypatch.delenv(crosses.CHOICE_OF_CROSSES, raising=False)
    values, caplog.handler.level = {"train.seed": [1, 2]}, logging.INFO
    path = project / "configs" / "auto.yaml"
    app.sweep(values, tmp_path / "crossed", tmp_path / "sweep", path, rungs=[1, 2], parallel=2)
    logs = [path.read_text() for path in (tmp_path / "sweep").glob(f"*/{sweep_runs.LOG}")]
    assert len(logs) == 2 and all("logistic regression on valid rows by +0.0525" in text for text in logs)
    assert len(fits) == 1 and crosses.CHOICE_OF_CROSSES not in os.environ
    # The winner continues, and its learning rates fall until the last rung.
    (winner,) = (run for run in (tmp_path / "sweep").glob("*/device_0") if read_state(run)["epochs"] == 2)
    config, steps = yaml.safe_load((winner / "config.yaml").read_text()), len((winner / "loss.log").open().readlines())
    schema = read_schema(tmp_path / "crossed")
    assert steps == 2 * -(-schema.splits["train"].rows // config["train"]["batch_size"])
    assert {config[f"{group}_optimizer"]["schedule"]["decay_steps"] for group in ("wide", "deep", "tower")} == {steps}
    assert not list((tmp_path / "sweep").glob("*/device_0.1"))
    progress = [record.getMessage() for record in caplog.records if record.name == "app"]
    assert sum("starts: train.seed=" in line for line in progress) == 3
    (last,) = (line for line in progress if line.startswith("up to epoch 2: 1 of 1 run(s) ended, log_loss 0."))
    assert "(the best so far: 0." in last
    with pytest.raises(ValueError, match="a sweep over other settings or data"):
        app.sweep(values, tmp_path / "crossed", tmp_path / "sweep", path, rungs=[1, 3])


@pytest.mark.slow
def test_runs_are_trained_stopped_and_resumed(sweep_file, tmp_path, command_environment):
    path = sweep_file("settings: {tower_optimizer.learning_rate: [1.0e-3, 1.0e-2]}\nrungs: [1, 2]\nparallel: 2\n")
    command = [sys.executable, "-m", "app", "sweep", path]
    process = subprocess.Popen(command, env=command_environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while len(list(tmp_path.glob("s/*/device_0/loss.log"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)  # a run that has not begun yet ends by the signal alone, and its folder is put aside
    process.send_signal(signal.SIGINT)
    assert "the same command resumes" in process.communicate()[1]
    assert process.returncode == 130
    runs = list(tmp_path.glob("s/*/device_0"))
    assert {read_state(run)["status"] for run in runs} <= {"stopped", "finished"}
    done = run_program(*command, cwd=tmp_path, env=command_environment)
    first, second, report = done.stdout.splitlines()
    assert re.fullmatch(r"log_loss 0\.\d+ in 2 epoch\(s\)  tower_optimizer\.learning_rate=0\.0\d*1", first)
    assert " in 1 epoch(s) " in second
    assert Path(report).stat().st_size > 100_000
    assert not list(tmp_path.glob("s/*/device_0.1"))
