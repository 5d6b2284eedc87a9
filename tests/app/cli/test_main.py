"""The commands in this process: what they print, leave behind and return."""

import argparse
import dataclasses
import errno
import itertools
import json
import logging
import os
import re
import shlex
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import data_prep.__main__
from app.__main__ import _parser, main
from app.api import load_run
from app.checkpoint.manifest import MANIFEST, read_manifest, write_manifest
from app.checkpoint.retention import whole_checkpoints
from app.evaluation import results
from app.run.stop_signals import Stopped
from app.scoring.trained import trained_model
from app.training import loop, saving, start
from app.training.loop import Trainer
from data_prep.prepared.batches import Batch
from tests.programs import run_python

pytestmark = pytest.mark.usefixtures("cpu")


@pytest.fixture(scope="module")
def one_epoch(cpu, project, tiny_dataset, tmp_path_factory):
    """A run of one epoch, whose steps were profiled; not to be changed."""
    folder = tmp_path_factory.mktemp("one epoch")
    words = ("tables.backend=reference", "train.profile=true")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        config = str(project / "configs" / "tiny.yaml")
        assert main(["train", "--config", config, "--dataset", str(tiny_dataset), *words]) == 0
    return folder / "device_0"


@pytest.fixture
def trained(one_epoch, tmp_path):
    """A copy of that run in this test's folder."""
    return shutil.copytree(one_epoch, tmp_path / "device_0")


def test_dry_run_prints_where_each_table_op_runs_and_leaves_nothing(command, capsys, tmp_path):
    assert command("train", "--dry-run", "tables.backend=stock")[0] == 0
    assert capsys.readouterr().out.splitlines() == [
        "tower: on CPU",
        "wide_lookup: EmbeddingLookup on CPU, primitive_target=CPU",
        "deep_lookup: EmbeddingLookup on CPU, primitive_target=CPU",
        "wide_update: FusedSparseFtrl on CPU, primitive_target=CPU",
        "deep_update: FusedSparseLazyAdam on CPU, primitive_target=CPU",
    ]
    assert list(tmp_path.iterdir()) == []


def test_dry_run_reads_every_file_and_names_each_that_is_damaged(command, tiny_dataset, tmp_path):
    """Sizes alone, which every launch compares, would pass."""
    folder = shutil.copytree(tiny_dataset, tmp_path / "copy")
    names = ("train-00000.mindrecord.db", "test-00000.mindrecord")
    for name in names:
        (folder / name).write_bytes(bytes((folder / name).stat().st_size))
    status, log = command("train", "--dataset", str(folder), "--dry-run")
    assert status == 2 and all(f"{folder / name} is damaged" in log for name in names)


def test_dry_run_of_host_tables(command, capsys):
    assert command("train", "--dry-run", "tables.backend=reference")[0] == 0
    assert capsys.readouterr().out.splitlines()[1] == "tables: reference, on the host, outside the graph"


@pytest.mark.parametrize("word", ["parallel.pipeline_stages=2", "checkpoint.tower_slices=true"])
def test_a_removed_setting_names_what_replaces_it(command, tmp_path, word):
    status, log = command("train", "--dry-run", word)
    assert status == 2
    assert "ranks no longer split the tower; examples/tower_over_ranks has a program for each parallel mode" in log
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_not_finite_stops_the_run_with_its_place(command, tmp_path):
    """Rows so large that their squares overflow: the error names epoch, step and reason, and nothing is saved."""
    status, log = command("train", "model.initial_row_scale=1e30", "tables.backend=reference")
    assert status == 1
    assert "error: epoch 1 step 1: not finite: " in log
    assert "no table and no parameter was changed" in log
    run = tmp_path / "device_0"
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    assert not whole_checkpoints(run / "checkpoints")
    assert "the run stopped: FloatingPointError" in (run / "test_deep0.log").read_text()


def test_wrong_settings_leave_an_older_run_alone(command, trained, tmp_path, monkeypatch):
    def missing_library():
        raise FileNotFoundError("the native host tables are not built")

    monkeypatch.setattr("app.tables.native.library.LIBRARY.load", missing_library)
    before = sorted(path.name for path in tmp_path.iterdir())
    for words, message in (
        (("device.target=Ascend",), "device.target=Ascend cannot be used here"),
        (("tables.backend=reference", "model.fold_numeric=false"), "model.fold_numeric=false is for tables.backend=st"),
        (("tables.backend=native",), "the native host tables are not built"),
        (("train.seed=-1",), "train.seed must be between 0"),
    ):
        status, log = command("train", *words)
        assert status == 2
        assert message in log
    assert sorted(path.name for path in tmp_path.iterdir()) == before


TRAIN = ("train", "train.epochs=2", "tables.backend=reference", "train.log_every_steps=1")


def status_of(run):
    return json.loads((run / "run.json").read_text())["status"]


def metrics_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_minutes_between_checkpoints(command, tmp_path):
    """A microsecond after a checkpoint the next is due: every step."""
    assert command(*TRAIN, "checkpoint.every_minutes=1e-8", "checkpoint.keep_last=0")[0] == 0
    assert len(whole_checkpoints(tmp_path / "device_0" / "checkpoints")) == 10


def fail_saves(monkeypatch, steps):
    """Saves of `steps` find the disk full."""
    save = saving.write_checkpoint

    def save_or_fail(folder, state, manifest, *rest):
        if manifest.step in steps:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(folder, state, manifest, *rest)

    monkeypatch.setattr(saving, "write_checkpoint", save_or_fail)


def test_a_save_that_fails_is_logged_and_the_training_continues(command, tmp_path, monkeypatch):
    fail_saves(monkeypatch, steps={5})
    status, log = command(*TRAIN)
    assert status == 3
    assert "error: no checkpoint of step 5: No space left on device; training continues" in log
    assert "error: could not write 1 checkpoint(s)" in log
    run = tmp_path / "device_0"
    assert [line["step"] for line in metrics_of(run) if "save_error" in line] == [5]
    assert [path.name for path in (run / "checkpoints").glob("step-*")] == ["step-00000010"]
    assert status_of(run) == "finished"


def test_a_run_whose_last_state_is_not_saved_is_not_finished(command, tmp_path, monkeypatch):
    fail_saves(monkeypatch, steps={10})
    status, log = command(*TRAIN)
    assert status == 3
    assert log.count("error: no checkpoint of step 10") == 2
    assert "could not write 1 checkpoint(s)" in log
    assert "error: step 10 is in no checkpoint; make room, and the same command resumes from step 5" in log
    assert status_of(tmp_path / "device_0") == "failed"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    status, log = command(*TRAIN)
    assert status == 0
    assert "step-00000005: epoch 2, step 1 of it" in log


def test_without_a_config_train_takes_the_settings_that_follow_from_the_table(run_here, tiny_dataset, caplog):
    caplog.set_level(logging.INFO)
    run_here(main, "train", "--dataset", tiny_dataset, "--dry-run")
    assert "training rows (train.auto)" in caplog.text


def test_evaluate_takes_the_run_in_this_folder(command, capsys, trained):
    for split in ("test", "valid", "train"):
        assert command("evaluate", "--split", split)[0] == 0
    out = capsys.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines() if line[0] != " "] == ["test", "valid", "train"]
    while_training, *later = (trained / "eval.log").read_text().splitlines()
    assert [line.split("split: ")[1].split()[0] for line in later] == ["test", "valid", "train"]
    assert later[1] == while_training  # from the checkpoint alone
    files = sorted(path.name for path in (trained / "evaluations").iterdir())
    assert files == [f"{split}-step-00000005.json" for split in ("test", "train", "valid")]


def test_a_checkpoint_is_named_as_in_its_run(command, capsys, trained):
    for words in (("evaluate", "--checkpoint"), ("checkpoint", "show"), ("checkpoint", "verify")):
        assert command(*words, "step-00000005")[0] == 0
        status, log = command(*words, "step-00000099")
        there = "device_0/checkpoints/step-00000005"
        assert (
            status,
            f"step-00000099 is no whole checkpoint: it has no manifest.json; whole ones nearby: {there}" in log,
        ) == (2, True)


def test_ctrl_c_ends_an_evaluation_with_a_line_and_writes_nothing(command, trained, tmp_path, monkeypatch):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    measure = trained_model.measure

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)  # until the thread that waits for signals has it
        return measure(*arguments)

    monkeypatch.setattr(trained_model, "measure", interrupted)
    status, log = command("evaluate")
    assert (status, log.count("stopped: SIGINT was received")) == (130, 1)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_the_run_of_another_user_is_evaluated(command, capsys, trained, monkeypatch, number):
    def refuse(path, text):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(results, "write_whole", refuse)
    status, log = command("evaluate")
    assert "AUC" in capsys.readouterr().out
    is_of_another = number != errno.ENOSPC
    assert (status, "does not keep this evaluation" in log) == ((0, True) if is_of_another else (2, False)), log
    assert (os.strerror(number) in log) and (not is_of_another or "let this user write there" in log)


def test_the_report_in_a_run_shows_later_evaluations(command, capsys, trained, tmp_path):
    report = trained / "report.html"
    assert "evaluate them with: " in report.read_text()
    assert "NativeTower" in report.read_text()  # a kernel of the profiled steps
    assert command("evaluate")[0] == 0
    assert "evaluate them with: " not in report.read_text()
    (tmp_path / "device_0.1").symlink_to("device_0")
    capsys.readouterr()
    assert command("report", "device_0", "device_0.1")[0] == 0
    assert capsys.readouterr().out == "report.html\n"
    assert "2 runs side by side" in (tmp_path / "report.html").read_text()


def test_an_evaluation_whose_report_cannot_be_written_is_kept_and_ends_with_status_3(command, capsys, trained):
    (trained / "report.html").unlink()
    (trained / "report.html").mkdir()
    status, log = command("evaluate")
    assert "AUC" in capsys.readouterr().out
    assert (status, "error: no report.html: Is a directory: device_0/report.html" in log) == (3, True), log
    assert "split: test" in (trained / "eval.log").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("report somewhere/run", "no run in somewhere/run: it has no config.yaml"),
        ("report somewhere/run --output both.html", "no run in somewhere/run: it has no config.yaml"),
        ("report . --output nowhere/report.html", "--output nowhere/report.html: there is no folder nowhere; make it"),
        ("evaluate", "no run in device_0: it has no config.yaml; train first"),
        ("evaluate --checkpoint nowhere", "nowhere is no whole checkpoint: it has no manifest.json"),
    ],
)
def test_a_run_that_is_not_there_is_an_error(command, words, message):
    status, log = command(*words.split())
    assert status == 2
    assert message in log


def test_evaluate_changes_no_setting_of_the_model(command, trained):
    assert command("evaluate", "eval.group_field=C2", "eval.bootstrap=0")[0] == 0
    status, log = command("evaluate", "train.seed=2")
    assert status == 2
    assert "argument 'train.seed=2': only eval.* can be changed here" in log


def arrays_of(run, step):
    return {path.name: path.read_bytes() for path in (run / "checkpoints" / f"step-{step:08d}").glob("*.safetensors")}


def test_evaluating_within_an_epoch_changes_no_bit_of_the_training(command, tmp_path):
    words = ("train", "train.epochs=2", "tables.backend=native", "train.resume=never")
    assert command(*words)[0] == 0
    assert command(*words, "eval.every_steps=2")[0] == 0
    without, evaluated = tmp_path / "device_0.1", tmp_path / "device_0"
    assert arrays_of(evaluated, 10) == arrays_of(without, 10)
    assert (evaluated / "loss.log").read_bytes() == (without / "loss.log").read_bytes()
    assert [line["step"] for line in metrics_of(evaluated) if "split" in line] == [2, 4, 5, 6, 8, 10]
    assert (evaluated / "eval.log").read_text().splitlines()[2] == (without / "eval.log").read_text().splitlines()[0]


def some_without_weight(read, seed):
    """Give a third of the training rows weight 0, and all of every fourth batch; `seed` draws their values, and
    None leaves them out."""

    def read_batches(folder, schema, *place, **named):
        for number, batch in enumerate(read(folder, schema, *place, **named)):
            drawn = np.random.default_rng([1, number]).integers(0, 3, batch.num_rows)
            batch = dataclasses.replace(batch, weights=drawn.astype(np.float32) * (number % 4 != 3))
            out = batch.weights == 0
            if seed is None:
                kept = batch.take(~out)
                yield Batch(kept.ids, kept.numeric, kept.labels, kept.weights)
                continue
            rng = np.random.default_rng([seed, number])
            batch.ids[out] = rng.integers(0, schema.vocabulary_size, batch.ids[out].shape)
            batch.numeric[out] = rng.standard_normal(batch.numeric[out].shape)
            batch.labels[out] = rng.integers(0, 2, out.sum())
            yield batch

    return read_batches


@pytest.mark.parametrize(
    "words",
    [
        ("tables.backend=native", "model.deep_fields=[C1, C2, C5]", "model.wide_fields=[C2, C9]", "loss.l2_coef=1e-2"),
        pytest.param(
            ("model.first_layer=distinct", "deep_optimizer.name=adam", "model.batch_norm=true", "train.ema_decay=0.9"),
            marks=pytest.mark.slow,  # four graphs to compile, as with stock
        ),
        pytest.param(("tables.backend=stock",), marks=pytest.mark.slow),
    ],
)
def test_rows_of_weight_0_change_no_bit_of_the_training(command, tmp_path, monkeypatch, words):
    """Whatever they hold, and as if they were not there: no L2, no step of LazyAdam, no row in a checkpoint."""
    read, found = loop.read_batches, []
    for seed in (1, None):
        monkeypatch.setattr(loop, "read_batches", some_without_weight(read, seed))
        assert command("train", "train.resume=never", "train.epochs=2", *words)[0] == 0
        found.append((arrays_of(tmp_path / "device_0", 10), (tmp_path / "device_0" / "loss.log").read_bytes()))
    assert found[1] == found[0]


def test_the_best_of_the_evaluations_is_kept_and_evaluated(command, capsys, tmp_path):
    """With rates this high the training diverges: `evaluate` takes the first evaluation's model, not the newest."""
    words = ("deep_optimizer.learning_rate=0.3", "tower_optimizer.learning_rate=0.3", "wide_optimizer.learning_rate=3")
    assert command(*TRAIN, "eval.every_steps=2", "eval.metric=log_loss", "checkpoint.keep_last=1", *words)[0] == 4
    losses = {line["step"]: line["log_loss"] for line in metrics_of(tmp_path / "device_0") if "split" in line}
    best = min(losses, key=losses.get)
    assert best < 10
    kept = {f"step-{step:08d}" for step in (best, 10)}
    assert {path.name for path in (tmp_path / "device_0" / "checkpoints").glob("step-*")} == kept
    assert command("evaluate", "--split", "valid")[0] == 0
    assert f"(step {best})" in capsys.readouterr().out
    assert load_run("device_0").metrics["step"] == best


def test_metrics_are_of_the_checkpoint_that_is_taken(command, capsys, tmp_path):
    """Without `keep_best` the best evaluation's checkpoint is gone."""
    words = ("eval.every_steps=2", "checkpoint.keep_best=0", "checkpoint.keep_last=1", "wide_optimizer.learning_rate=3")
    assert command(*TRAIN, "eval.metric=log_loss", *words)[0] in (0, 4)
    assert command("evaluate", "--split", "valid")[0] == 0
    assert "(step 10)" in capsys.readouterr().out
    losses = {line["step"]: line["log_loss"] for line in metrics_of(tmp_path / "device_0") if "split" in line}
    assert min(losses, key=losses.get) < 10
    assert load_run("device_0").metrics["log_loss"] == losses[10]


def test_a_training_by_rules_names_the_best_cross(command, monkeypatch, capsys):
    """If the search would take long, the training names its command instead."""
    assert (
        "pairs, by what a cross takes from the log loss of valid"
        in command(*TRAIN, "train.auto=true", "train.steps=2")[1]
    )
    monkeypatch.setattr(start, "MOST_TRIED", 0)
    log = command(*TRAIN, "train.resume=never", "train.auto=true", "train.steps=2")[1]
    (advice,) = re.findall(r"find those that lower the log loss with: .* -m data_prep (.*)", log)
    assert data_prep.__main__.main(shlex.split(advice)) == 0
    assert "pairs, by what a cross takes from the log loss of valid" in capsys.readouterr().out
    assert "find those" not in command(*TRAIN, "train.resume=never")[1]  # A run whose settings are the user's own.


EARLY = (*TRAIN, "eval.every_steps=2", "eval.patience=3", "checkpoint.keep_last=0")


def reason_of(run):
    (reason,) = (line["stopped_early"] for line in metrics_of(run) if "stopped_early" in line)
    return reason


@pytest.fixture
def _no_gain(monkeypatch):
    """All evaluations count as equally good."""
    monkeypatch.setattr("app.evaluation.selection.as_score", lambda metric, value: 0.0)
    monkeypatch.setattr("app.training.learning_rates.LEAST_GAIN", 0.9)


@pytest.mark.usefixtures("_no_gain")
def test_a_run_that_ends_early_is_the_same_after_stops_before_and_within_it(command, tmp_path, monkeypatch):
    """A time limit is over before the first step; then the evaluation of step 4 is left undone, and done again."""
    run, score = tmp_path / "device_0", Trainer._score
    status, log = command(*EARLY)
    assert (status, status_of(run)) == (0, "finished")
    assert "stopped early: log_loss on valid has not fallen below" in log
    assert [line["step"] for line in metrics_of(run) if "split" in line] == [2, 4, 5, 6]
    assert "for 3 evaluations (eval.patience=3); the best is" in reason_of(run)
    assert len((run / "loss.log").read_text().splitlines()) == 6

    status, log = command(*EARLY, "train.time_limit=1e-6", "train.resume=never")
    assert (status, status_of(run)) == (0, "stopped")
    assert "stopped after saving: train.time_limit=1e-06 minutes are up" in log
    assert [path.name for path in (run / "checkpoints").glob("step-*")] == ["step-00000000"]

    def stopped_at_step_4(self, batch, unique):
        if self.position.step == 4:
            raise Stopped("a test", 143)
        return score(self, batch, unique)

    monkeypatch.setattr(Trainer, "_score", stopped_at_step_4)
    status, log = command(*EARLY)
    assert status == 143
    assert "Resuming " in log
    monkeypatch.setattr(Trainer, "_score", score)
    assert command(*EARLY)[0] == 0
    whole = tmp_path / "device_0.1"
    assert arrays_of(run, 6) == arrays_of(whole, 6)
    for name in ("loss.log", "eval.log"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.usefixtures("_no_gain")
def test_launches_of_some_steps_end_as_one_launch(command, tmp_path):
    """Patience and a plateau do not count the evaluations that `train.steps` adds within an epoch."""
    falling = "schedule={name: plateau, patience: 1}"
    words = (*EARLY, *(f"{group}_optimizer.{falling}" for group in ("wide", "deep", "tower")))
    run, whole = tmp_path / "device_0", tmp_path / "whole"
    assert command(*words)[0] == 0
    run.rename(whole)
    for steps in (1, 3, 5, 0):
        assert command(*words, f"train.steps={steps}")[0] == 0
    evaluated = [[line["step"] for line in metrics_of(each) if "split" in line] for each in (run, whole)]
    assert evaluated == [[1, 2, 3, 4, 5, 6], [2, 4, 5, 6]]
    assert (run / "loss.log").read_bytes() == (whole / "loss.log").read_bytes()
    assert arrays_of(run, 6) == arrays_of(whole, 6)
    assert reason_of(run).partition("; the best is")[0] == reason_of(whole).partition("; the best is")[0]


TINY_RATES = tuple(f"{group}_optimizer.learning_rate=1.0e-9" for group in ("deep", "tower"))
TINY_RATES += ("wide_optimizer={name: ftrl, learning_rate: 1.0e-9, schedule: {name: constant, warmup_steps: 7}}",)


def test_a_warm_start_is_evaluated_before_its_first_step(command, trained, tmp_path, monkeypatch):
    """The result is its source's, and takes no part in the selection; at tiny rates it stays so. After a stop, during
    it or later, every log is that of a run without a stop."""
    trained.rename(tmp_path / "model")
    (source,) = [line for line in metrics_of(tmp_path / "model") if "split" in line]
    words = (*TRAIN, *TINY_RATES, "train.init_from=model", "checkpoint.keep_best=1", "train.resume=never")
    status, log = command(*words)
    whole = tmp_path / "device_0"
    start, *later = evaluated = [line for line in metrics_of(whole) if "split" in line]
    assert (status, [(line["step"], line["epoch"]) for line in evaluated]) == (0, [(0, 0), (5, 1), (10, 2)])
    assert {**start, "seconds": 0, "step": 5, "epoch": 1} == {**source, "seconds": 0}
    assert all(line["log_loss"] == pytest.approx(source["log_loss"], rel=1e-6) for line in later)
    assert "before the first step: epoch: 0 step: 0 split: valid" in log
    assert f"its run evaluated it as auc {source['auc']:.6f}, log_loss {source['log_loss']:.6f}" in log
    selection = read_manifest(whole / "checkpoints" / "step-00000010").selection
    assert (selection["best_step"] > 0, selection["last_step"]) == (True, 10)
    assert [path.name for path in sorted((whole / "evaluations").iterdir())] == [
        "valid-step-00000005.json",
        "valid-step-00000010.json",
    ]

    with monkeypatch.context() as patched:
        for method, step in (("_score", 0), ("_take_step", 3)):
            original = getattr(Trainer, method)

            def stop_there(self, *arguments, original=original, step=step):
                if self.position.step == step:
                    raise Stopped("a test", 143)
                return original(self, *arguments)

            patched.setattr(Trainer, method, stop_there)
            assert command(*words, f"train.resume={'auto' if step else 'never'}")[0] == 143
            patched.undo()
    assert command(*words, "train.resume=require")[0] == 0
    stopped, whole = tmp_path / "device_0", tmp_path / "device_0.1"
    assert arrays_of(stopped, 10) == arrays_of(whole, 10)
    assert [line["step"] for line in metrics_of(stopped) if "split" in line] == [0, 5, 10]
    for name in ("loss.log", "eval.log"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()


def test_a_resume_reads_each_manifest_once_and_so_does_retention(command, monkeypatch):
    words = ("checkpoint.delta=true", "checkpoint.every_steps=2", "checkpoint.keep_last=0")
    assert command("train", "train.epochs=1", *words)[0] == 0
    reads, read_text = Counter(), Path.read_text
    at_first_step, take_step = [], Trainer._take_step

    def counted(path, *arguments, **named):
        reads[path.parent.name] += path.name == MANIFEST
        return read_text(path, *arguments, **named)

    def stepping(*arguments):
        at_first_step.append(dict(+reads))
        return take_step(*arguments)

    monkeypatch.setattr(Path, "read_text", counted)
    monkeypatch.setattr(Trainer, "_take_step", stepping)
    monkeypatch.setattr("app.training.start.check_launch", lambda *_: None)  # which looks before the folder is locked
    assert command("train", "train.epochs=2", *words)[0] == 0
    chain = [f"step-{step:08d}" for step in (2, 4, 5)]
    assert at_first_step[0] == dict.fromkeys(chain, 1)
    reads.subtract(chain)
    assert +reads == Counter([*chain, *(f"step-{step:08d}" for step in (6, 8, 10))])


def test_a_run_that_split_its_tower_goes_on_with_a_warning(command, trained):
    for checkpoint in whole_checkpoints(trained / "checkpoints"):
        path, manifest = checkpoint.path, checkpoint.manifest
        manifest.config["parallel"] = {"tensor_parallel": 2}
        write_manifest(path, manifest)
    status, log = command("train", "tables.backend=reference", "train.epochs=2")
    assert status == 0
    assert "warning: this run had parallel.tensor_parallel=2; every rank now holds the whole tower" in log


def test_a_training_that_diverged_ends_with_status_4(command, tmp_path):
    """Rates like these leave every number finite, and the losses in the thousands."""
    words = [f"{group}_optimizer.learning_rate=1e4" for group in ("wide", "deep", "tower")]
    for _ in range(2):  # and says so again
        status, log = command("train", "tables.backend=reference", *words)
        assert status == 4
        assert "warning: the training did not learn: its last epoch's mean loss is" in log
    run = tmp_path / "device_0"
    assert status_of(run) == "finished"
    assert whole_checkpoints(run / "checkpoints")


@pytest.mark.parametrize("backend", ["native", pytest.param("reference", marks=pytest.mark.slow)])
def test_a_plateau_resumes_to_the_same_bits(command, tmp_path, backend, monkeypatch):
    """Adam on the whole table asks for the learning rates of missed steps, also of those before the resume."""
    monkeypatch.setattr("app.training.learning_rates.LEAST_GAIN", 0.05)
    learning = ("deep_optimizer.name=adam", "deep_optimizer.learning_rate=1e-2", "model.dropout=0.1")
    falling = (f"{group}_optimizer.schedule={{name: plateau, patience: 2}}" for group in ("wide", "deep", "tower"))
    words = (f"tables.backend={backend}", "checkpoint.background=false", "eval.every_steps=2", *learning, *falling)
    assert command("train", *words, "train.epochs=3")[0] == 0
    whole = (tmp_path / "device_0/loss.log").read_text()
    assert whole_checkpoints(tmp_path / "device_0/checkpoints")[-1].manifest.schedules["deep"]["drops"]
    assert command("train", *words, "train.epochs=2", "train.resume=never")[0] == 0
    assert "resuming from" in command("train", *words, "train.epochs=3")[1]
    assert (tmp_path / "device_0/loss.log").read_text() == whole


def _lowest_parsers(commands, before=()):
    for name, parser in commands.choices.items():
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if below:
            yield from _lowest_parsers(below[0], (*before, name))
        else:
            yield (*before, name), parser


def test_settings_may_stand_anywhere_among_other_arguments():
    cases = {
        "train": ("a.b=1", ["--config", "c.yaml"], ["--dataset", "x=1.y=2"], ["--dry-run"]),
        "online": ("a.b=1", ["parts"], ["--from", "device_0"], ["--serve", "bundles"], ["--once"]),
        "plan": ("a.b=1", ["prepared"], ["--ranks", "2"], ["--config", "c.yaml"]),
        "evaluate": ("eval.b=1", ["--run", "r"], ["--calibrate"], ["--split", "valid"]),
        "export": ("rows=int8", ["device_0", "bundle"], ["--calibrate"], ["--dataset", "x"]),
    }
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    parsers = {" ".join(names): parser for names, parser in _lowest_parsers(commands)}
    taking = {name for name, parser in parsers.items() if any(action.dest == "settings" for action in parser._actions)}
    assert taking == set(cases)
    for name, (setting, *groups) in cases.items():
        expected = vars(_parser().parse_args([name, *itertools.chain(*groups), setting]))
        assert list(expected["settings"]) == [setting]
        positional = name in ("online", "export", "plan")  # Their own arguments come before the settings.
        for order in itertools.permutations([*groups, [setting]]):
            if not positional or order.index([setting]) > order.index(groups[0]):
                assert vars(_parser().parse_args([name, *itertools.chain(*order)])) == expected


def test_only_the_called_command_is_imported(project):
    code = (
        "import sys, app.__main__ as program; program._parser(sys.argv[1:]);"
        "print(*(name for name in sys.modules if name.startswith('app.cli.')))"
    )
    for name, more in (("report", set()), ("evaluate", set()), ("bundle", {"app.cli.fold", "app.cli.predict"})):
        done = run_python("-c", code, name, cwd=project)
        assert {*done.stdout.split()} == more | ({f"app.cli.{name}"} if name != "report" else set())


def test_the_help_of_a_command_ends_with_an_example_that_its_parser_takes():
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    for names, parser in _lowest_parsers(commands):
        *_, title, example = parser.format_help().rstrip().splitlines()
        assert title == "example:"
        program, *words = example.split(f" {' '.join(names)} ")
        assert program == "  python -m app"
        _parser().parse_args([*names, *words[0].split()])
