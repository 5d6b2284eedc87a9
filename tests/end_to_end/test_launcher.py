"""scripts/run_auto_parallel_train.sh as a user starts it: from any folder, with the status of the training."""

import json
import logging
import os
import re
import shutil
import sys

import pytest

from app.__main__ import main
from tests.programs import run_program


@pytest.fixture(scope="module")
def launch(project, command_environment):
    def run(folder, *arguments, script=None):
        script = script or project / "scripts" / "run_auto_parallel_train.sh"
        done = run_program("bash", script, *arguments, cwd=folder, env=command_environment, status=None)
        return done.returncode, done.stderr

    return run


def test_from_the_scripts_folder_of_a_copy_with_a_rank_table(launch, project, tiny_dataset, tmp_path):
    """`cd scripts && bash run_auto_parallel_train.sh 1 1 DATASET RANK_TABLE_FILE`, in a copy of the project."""
    for name in ("app", "common", "data_prep", "configs", "scripts"):
        shutil.copytree(project / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    table = tmp_path / "configs" / "rank_table_1p_0.json"
    scripts = tmp_path / "scripts"
    status, errors = launch(scripts, 1, 1, tiny_dataset, table, script="run_auto_parallel_train.sh")
    assert status == 0, errors
    assert (scripts / "device_0" / "loss.log").read_text().startswith("epoch: 1 step: 1, wide_loss is 0.69")
    (advice,) = re.findall(r"evaluate it on the test rows with: (.*) \(in Python", errors)
    (scripts / "common").mkdir()  # The advice must not run modules of the folder where it is followed.
    assert "auc" in run_program("bash", "-c", advice, cwd=scripts, env={"PATH": "/usr/bin:/bin"}).stdout.lower()


def test_from_any_folder_with_relative_paths_and_settings(launch, tiny_dataset, tmp_path):
    (tmp_path / "data").symlink_to(tiny_dataset)
    status, errors = launch(tmp_path, 1, 2, "data", "-", "train.batch_size=2000", "tables.backend=stock")
    assert status == 0, errors
    assert len((tmp_path / "device_0" / "loss.log").read_text().splitlines()) == 4
    log = (tmp_path / "device_0" / "test_deep0.log").read_text()
    assert "the tables are stock" in log
    assert "host memory: a touched row takes 108 bytes, with its optimizers' state (float32)" in log


@pytest.mark.slow
def test_the_times_of_a_few_stock_steps_in_a_folder_that_the_profiler_refuses(launch, tiny_dataset, tmp_path):
    """Three steps are fewer than are profiled, and MindSpore's profiler takes no space and no letter beyond ASCII."""
    folder = tmp_path / "my rüns"
    folder.mkdir()
    words = ("tables.backend=stock", "train.profile=true", "train.batch_size=800")
    status, errors = launch(folder, 1, 1, tiny_dataset, "-", *words)
    assert status == 0, errors
    log = (folder / "device_0" / "test_deep0.log").read_text()
    for kernel in ("EmbeddingLookup", "FusedSparseFtrl", "FusedSparseLazyAdam"):
        assert re.search(rf"host kernel: {kernel} costs \d+ us", log)
    assert any((folder / "device_0" / "profile").iterdir())


@pytest.fixture
def launch_here(own_handlers, project, tmp_path, monkeypatch, caplog, capsys):
    """Start the script with an `echo` as its Python, run the command that it would run in this process, in `tmp_path`.

    Returns the status, and what the script and the command wrote.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mindspore", None)  # what is wrong is found before the slow import
    caplog.set_level(logging.INFO)
    echo = tmp_path / "python"
    echo.write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@"\n')
    echo.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(echo), "CONFIG": str(project / "configs" / "tiny.yaml")}

    def run(*arguments):
        script = project / "scripts" / "run_auto_parallel_train.sh"
        done = run_program("bash", script, *arguments, cwd=tmp_path, env=environment, status=None)
        if done.returncode:
            return done.returncode, done.stderr
        isolated, module, app, *words = done.stdout.split("\0")[:-1]
        assert (isolated, module, app) == ("-P", "-m", "app")
        try:
            status = main(words)
        except SystemExit as end:  # of argparse
            status = end.code
        return status, caplog.text + capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 1), "usage: bash .*RANK_SIZE EPOCHS DATASET RANK_TABLE_FILE"),
        ((0, 1, "{data}", "-"), r"error: the number of ranks \(RANK_SIZE\) must be 1 or more, found 0"),
        ((-1, 1, "{data}", "-", "device.precision=auto"), "must be 1 or more, found -1"),
        ((10**12, 1, "{data}", "-"), "processes are too many for this host"),
        (("one", 1, "{data}", "-"), "--ranks: invalid int value: 'one'"),
        (("", 1, "{data}", "-"), "--ranks: invalid int value: ''"),
        ((1, "", "{data}", "-"), "'train.epochs' must be a whole number"),
        ((1, 0, "{data}", "-"), "train.epochs must be 1 or more; found 0"),
        ((1, "many", "{data}", "-"), "'train.epochs' must be a whole number; found str 'many'"),
        ((1, 1, "nowhere", "-"), "error: no prepared data in nowhere: the folder does not exist"),
        ((1, 1, "{data}", "nowhere.json"), "error: no rank table nowhere.json; give '-'"),
        ((1, 1, "{data}", "bad.json"), "error: rank table bad.json is not JSON"),
        ((1, 1, "{data}", "two.json"), r"found rank_id \[0, 1\]; it must fit RANK_SIZE=1"),
        ((1, 1, "{data}", "-", "train.batchsize=1"), "unknown key 'train.batchsize'; did you mean 'train.batch_size'"),
    ],
)
def test_an_error_ends_with_status_2_and_leaves_no_run_folder(launch_here, tiny_dataset, tmp_path, arguments, message):
    (tmp_path / "bad.json").write_text("{")
    device = [{"device_id": "0", "rank_id": str(rank)} for rank in range(2)]
    (tmp_path / "two.json").write_text(json.dumps({"version": "1.0", "server_list": [{"device": device}]}))
    status, errors = launch_here(*[str(word).format(data=tiny_dataset) for word in arguments])
    assert status == 2
    assert re.search(message, errors)
    assert not (tmp_path / "device_0").exists()


def test_without_its_python_the_launcher_names_the_command_that_installs_it(project, tmp_path):
    script = project / "scripts" / "run_auto_parallel_train.sh"
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": "/nowhere/python"}
    done = run_program("bash", script, 1, 1, "data", "-", cwd=tmp_path, env=environment, status=2)
    assert "no Python at /nowhere/python; run: make -C" in done.stderr
