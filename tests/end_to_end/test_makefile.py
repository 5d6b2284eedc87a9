"""The commands of the Makefile's targets, as `make --dry-run` shows them."""

import re
import shlex

import pytest

from tests.programs import run_program


@pytest.fixture(scope="module")
def commands(project):
    """The words of the last command that a target would run."""

    def show(*arguments):
        done = run_program("make", "--dry-run", "--no-print-directory", *arguments, cwd=project)
        return shlex.split(done.stdout.replace("\\\n", " ").strip().splitlines()[-1])

    return show


@pytest.mark.parametrize(
    ("target", "variables"),
    [
        ("preprocess", ("INPUT", "OUTPUT", "CONFIG")),
        ("train", ("DATASET", "RANK_TABLE_FILE", "CONFIG")),
        ("eval", ("RUN", "DATASET", "CHECKPOINT")),
        ("report", ("RUN",)),
    ],
)
def test_paths_may_hold_spaces(commands, target, variables):
    words = commands(target, *(f"{name}=my {name} dir" for name in variables))
    for name in variables:
        assert any(word in (f"my {name} dir", f"{name}=my {name} dir") for word in words), (name, words)


def test_a_run_that_is_named_is_trained_under_its_name(commands):
    assert commands("train", "RUN=my run")[-2:] == ["--name", "my run"]
    assert "--name" not in commands("train")


RUN_TARGETS = {"eval": "device_0", "report": "device_0", "export": "device_0", "baseline": "prepared"}


@pytest.mark.parametrize("target", RUN_TARGETS)
def test_the_demo_s_run_is_the_default_if_there_is_no_other(project, tmp_path, target):
    """The demo's run never stands in for one in this folder, nor for one that is named, even if that is missing."""
    name, variables = RUN_TARGETS[target], ("RUN",) if target != "baseline" else ("DATASET", "OUTPUT")

    def words(*arguments):
        options = ("--dry-run", "--no-print-directory", "--old-file=setup", "-f", project / "Makefile")
        done = run_program("make", *options, target, *arguments, cwd=tmp_path)
        return shlex.split(done.stdout.replace("\\\n", " ").strip().splitlines()[-1])

    assert name in words()
    (tmp_path / "demo" / name).mkdir(parents=True)
    assert f"demo/{name}" in words()
    for variable in variables:
        assert "mine" in words(f"{variable}=mine")
        assert name in words(f"{variable}={name}")
    (tmp_path / name).mkdir()
    assert name in words()


@pytest.mark.parametrize("target", ["train", "demo"])
def test_the_python_that_makes_the_environment_is_not_the_one_that_trains(commands, project, target):
    assert f"PYTHON={project}/.venv/bin/python" in commands(target, "PYTHON=python3.11")


def test_the_environment_may_be_anywhere(commands, project):
    assert commands("pre-check", "VENV=/some/where")[0] == "/some/where/bin/python"
    assert commands("pre-check", "VENV=here")[0] == f"{project}/here/bin/python"


def test_no_target_occurs_twice(project):
    """make would take the later one, and only warn."""
    assert "overriding" not in run_program("make", "--dry-run", "help", cwd=project).stderr


def test_help_shows_every_target_on_one_screen(project):
    done = run_program("make", "--no-print-directory", "help", cwd=project)
    lines = done.stdout.splitlines()
    targets = re.findall(r"^([a-z-]+):(?!=)", (project / "Makefile").read_text(), re.MULTILINE)
    assert [target for target in targets if f" make {target} " not in done.stdout] == ["help"]
    assert len(lines) <= 32 and max(map(len, lines)) <= 124
