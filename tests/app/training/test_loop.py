"""Runs that are stopped and resumed, or killed, in processes of their own: the same bits again."""

import contextlib
import io
import itertools
import logging
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from app.__main__ import main
from app.checkpoint.manifest import read_manifest
from app.checkpoint.retention import whole_checkpoints
from tests.checkpoints import load
from tests.damage import flip_bit
from tests.kills import num_kills as num_kills_of
from tests.programs import run_python

SETTINGS = ("train.epochs=2", "train.log_every_steps=1", "checkpoint.every_steps=3", "checkpoint.keep_last=0")
LOSS_LINE = re.compile(r"epoch: \d+ step: \d+, wide_loss is \d\.\d+(e-\d+)?, deep_loss is \d\.\d+(e-\d+)?")
SIGNALLED_BEFORE_STEP_5 = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # first of all, as python -m app does
import app.training.loop
from app.__main__ import main

take_step = app.training.loop.Trainer._take_step

def take_step_or_die(self, *arguments):
    if self.position.step == 4:
        os.kill(os.getpid(), signal.SIGNAL)
    return take_step(self, *arguments)

app.training.loop.Trainer._take_step = take_step_or_die
sys.exit(main())
"""


@pytest.fixture(scope="module")
def run_in(cpu, tiny_dataset, project, command_environment):
    """Train in a folder: in a process of its own by its program, in this one without. Gives status, messages, run."""
    root = logging.getLogger()

    def run(folder, program=None, settings=SETTINGS):
        folder.mkdir(exist_ok=True)
        config = project / "configs" / "tiny.yaml"
        words = ["train", "--config", str(config), "--dataset", str(tiny_dataset), *settings]
        if program is None:
            handlers, level, errors = root.handlers, root.level, io.StringIO()
            root.handlers = []  # the command adds its own
            try:
                with contextlib.chdir(folder), contextlib.redirect_stderr(errors):
                    return main(words), errors.getvalue(), folder / "device_0"
            finally:
                root.handlers = handlers
                root.setLevel(level)
        environment = {**command_environment, "OMP_NUM_THREADS": "2"}
        done = run_python("-P", *program, *words, cwd=folder, env=environment, status=None)
        return done.returncode, done.stderr, folder / "device_0"

    return run


@pytest.fixture(scope="module")
def whole_run(run_in, tmp_path_factory):
    """Two epochs of five steps without an interruption."""
    status, errors, folder = run_in(tmp_path_factory.mktemp("whole"))
    assert status == 0, errors
    return folder


def kept_files(run):
    """Return every array, loss and metric of a run."""
    files = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.safetensors")}
    return files | {name: (run / name).read_bytes() for name in ("loss.log", "eval.log")}


def test_loss_log_has_a_line_a_step_in_the_tutorial_s_form(whole_run):
    lines = (whole_run / "loss.log").read_text().splitlines()
    assert all(LOSS_LINE.fullmatch(line) for line in lines)
    steps = [tuple(map(int, re.findall(r"\d+", line)[:2])) for line in lines]
    assert steps == [(epoch, step) for epoch in (1, 2) for step in range(1, 6)]


def test_checkpoints_lie_at_each_epoch_s_end_and_every_third_step(whole_run):
    whole = whole_checkpoints(whole_run / "checkpoints")
    manifests = [checkpoint.manifest for checkpoint in whole]
    positions = [(manifest.step, manifest.epoch, manifest.epoch_step) for manifest in manifests]
    assert positions == [(3, 1, 3), (5, 2, 0), (6, 2, 1), (9, 2, 4), (10, 3, 0)]
    assert [bool(manifest.metrics) for manifest in manifests] == [False, True, False, False, True]


def test_the_same_seed_gives_the_same_bits_in_another_process(whole_run, run_in, tmp_path):
    status, errors, again = run_in(tmp_path, program=("-m", "app"))
    assert status == 0, errors
    assert kept_files(again) == kept_files(whole_run)


def test_a_killed_run_that_is_resumed_ends_as_one_that_was_not_killed(whole_run, run_in, tmp_path):
    program = ("-c", SIGNALLED_BEFORE_STEP_5.replace("SIGNAL", "SIGKILL"))
    status, _, run = run_in(tmp_path, program=program, settings=(*SETTINGS, "checkpoint.background=false"))
    assert status == -9
    assert len((run / "loss.log").read_text().splitlines()) == 4
    assert [checkpoint.path.name for checkpoint in whole_checkpoints(run / "checkpoints")] == ["step-00000003"]
    status, errors, run = run_in(tmp_path)
    assert status == 0, errors
    assert "Resuming " in errors
    assert kept_files(run) == kept_files(whole_run)


KILLED_AT_EVENT = """
import itertools, os, signal, sys
import app.training.loop
from app.__main__ import main

events = itertools.count()

def or_die(call):
    def called(*words, **named):
        if next(events) == NUMBER:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*words, **named)
    return called

app.training.saving.FULL_EVERY = 3
app.training.loop.Trainer._take_step = or_die(app.training.loop.Trainer._take_step)
for name in ("open", "pwrite", "ftruncate", "fsync", "mkdir", "rename", "unlink"):
    setattr(os, name, or_die(getattr(os, name)))
sys.exit(main())
"""
DROPOUT = ("model.dropout=0.3",)
FORMS = {"full": (), "deltas": (*DROPOUT, "checkpoint.delta=true", "checkpoint.keep_last=2")}


@pytest.fixture(scope="module")
def whole_run_with_dropout(run_in, tmp_path_factory):
    """The same with dropout in the recipe."""
    status, errors, folder = run_in(tmp_path_factory.mktemp("dropout"), settings=(*SETTINGS, *DROPOUT))
    assert status == 0, errors
    return folder


def last_state(run):
    """Return the newest checkpoint's position, and every loss and metric."""
    manifest, state = load(whole_checkpoints(run / "checkpoints")[-1].path)
    return manifest.step, state, [(run / name).read_bytes() for name in ("loss.log", "eval.log")]


@pytest.mark.kills
@pytest.mark.parametrize("form", FORMS)
def test_kills_at_random_moments_lose_nothing(
    whole_run, whole_run_with_dropout, run_in, tmp_path, form, assert_same_bits
):
    """During steps and during calls to the disk, beside the steps and not; run after run until enough were survived."""
    num_kills, rng = -(-num_kills_of("training") // len(FORMS)), np.random.default_rng(num_kills_of("training"))
    kills, folders = 0, itertools.count()
    while kills < num_kills:
        folder = tmp_path / str(next(folders))
        status = -9
        while status == -9:
            number = int(rng.integers(5, 60)) if kills < num_kills else -1
            program = ("-c", KILLED_AT_EVENT.replace("NUMBER", str(number)))
            status, errors, run = run_in(folder, program=program, settings=(*SETTINGS, *FORMS[form]))
            kills += status == -9
        assert status == 0, errors
        undisturbed = whole_run_with_dropout if form == "deltas" else whole_run
        (step, state, lines), (expected_step, expected, expected_lines) = last_state(run), last_state(undisturbed)
        assert (step, lines) == (expected_step, expected_lines)
        assert_same_bits(state, expected)


SLOW_DISK = """
import os, time
write, sync = os.pwrite, os.fsync
os.pwrite = lambda *words: (time.sleep(0.3), write(*words))[1]
"""


@pytest.fixture(scope="module")
def terminated(run_in, tmp_path_factory):
    """A run that gets a SIGTERM after step 4, while the save of step 3 takes a second; gives what `run_in` does."""
    program = ("-c", SLOW_DISK + SIGNALLED_BEFORE_STEP_5.replace("SIGNAL", "SIGTERM"))
    return run_in(tmp_path_factory.mktemp("terminated"), program=program)


def test_a_sigterm_while_a_checkpoint_is_on_its_way(whole_run, terminated, run_in, tmp_path):
    status, errors, run = terminated
    assert status == 143, errors
    assert "stopped after saving: SIGTERM was received" in errors
    names = [checkpoint.path.name for checkpoint in whole_checkpoints(run / "checkpoints")]
    assert names == ["step-00000003", "step-00000005"]
    shutil.copytree(run, tmp_path / "device_0")
    status, errors, run = run_in(tmp_path)
    assert status == 0, errors
    assert kept_files(run) == kept_files(whole_run)


def test_what_turns_out_to_be_damaged_as_it_is_loaded_is_put_aside(whole_run, terminated, run_in, tmp_path):
    """A flipped bit shows when the file was read; the run goes on from the checkpoint before, to the same bits."""
    shutil.copytree(terminated[2], tmp_path / "device_0")
    flip_bit(tmp_path / "device_0" / "checkpoints" / "step-00000005" / "deep-0-of-1.safetensors")
    status, errors, run = run_in(tmp_path, settings=(*SETTINGS, "train.resume=require"))
    assert status == 2
    assert "the newest checkpoint cannot be used: checkpoint file" in errors
    assert "train.resume=auto resumes from device_0/checkpoints/step-00000003" in errors.replace(f"{tmp_path}/", "")
    status, errors, run = run_in(tmp_path)
    assert status == 0, errors
    assert "warning: a newer checkpoint is not used, step-00000005: checkpoint file" in errors
    assert "remove" not in errors  # by then the name is that of a good one
    assert "step-00000003: epoch 1, step 4 of it" in errors
    names = [path.name for path in (run / "checkpoints").glob("*.refused.*")]
    assert names == ["step-00000005.refused.1"]
    (run / "checkpoints" / names[0]).rename(tmp_path / "refused")
    assert kept_files(run) == kept_files(whole_run)


def test_ctrl_c_ends_the_step_saves_and_loses_nothing(whole_run, run_in, tmp_path):
    """The stop comes before an epoch's last step: the next launch does the evaluation after it."""
    status, errors, run = run_in(tmp_path, program=("-c", SIGNALLED_BEFORE_STEP_5.replace("SIGNAL", "SIGINT")))
    assert status == 130, errors
    assert "stopped after saving: SIGINT was received" in errors
    stopped = whole_checkpoints(run / "checkpoints")[-1].path
    assert (stopped.name, read_manifest(stopped).epoch_step) == ("step-00000005", 5)
    assert not (run / "eval.log").exists()
    status, errors, run = run_in(tmp_path)
    assert status == 0, errors
    assert kept_files(run) == kept_files(whole_run)


WIDE = ("model.hidden_widths=[2048,2048,512]", "train.batch_size=1250", "train.epochs=1000", "train.log_every_steps=1")


@pytest.mark.slow
def test_ctrl_c_while_a_graph_runs_is_no_sigterm(tiny_dataset, project, command_environment, tmp_path):
    """A tower so wide that nearly all of a step is the graph's run, while which MindSpore's own handler stands."""
    config = project / "configs" / "tiny.yaml"
    words = ["-P", "-m", "app", "train", "--config", config, "--dataset", tiny_dataset, *WIDE]
    log = tmp_path / "device_0" / "loss.log"
    command = [sys.executable, *map(str, words)]
    with subprocess.Popen(command, cwd=tmp_path, env=command_environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None and not (log.is_file() and log.read_text().count("\n") > 1):
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=120)[1]
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "stopped after saving: SIGINT was received" in errors
    assert whole_checkpoints(tmp_path / "device_0" / "checkpoints")


@pytest.mark.parametrize("steps", [5, 7])  # at the end of an epoch, and within one
def test_steps_end_a_training_and_more_continue_it(whole_run, run_in, tmp_path, steps):
    """The last step is evaluated and saved with its metrics, and none is taken twice or left out after it."""
    limited = (*SETTINGS, f"train.steps={steps}", "checkpoint.every_steps=0")
    status, errors, run = run_in(tmp_path, settings=limited)
    assert status == 0, errors
    assert len((run / "loss.log").read_text().splitlines()) == steps
    last = whole_checkpoints(run / "checkpoints")[-1].manifest
    assert (last.step, "auc" in last.metrics) == (steps, True)
    status, errors, _ = run_in(tmp_path, settings=limited)
    assert (status, f"is finished: all {steps} steps are done" in errors) == (0, True)
    status, errors, run = run_in(tmp_path)
    assert status == 0 and "Continuing " in errors, errors
    assert (run / "loss.log").read_bytes() == (whole_run / "loss.log").read_bytes()
    final = {name: content for name, content in kept_files(run).items() if "step-00000010" in name}
    assert final and final == {name: kept_files(whole_run)[name] for name in final}
