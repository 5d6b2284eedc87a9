"""The commands of the Makefile's targets, as `make --dry-run` shows them."""

import shlex
import subprocess

import pytest


@pytest.fixture(scope="module")
def commands(project):
    """The words of the last command that a target would run."""

    def show(*arguments):
        command = ["make", "--dry-run", "--no-print-directory", *arguments]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
        return shlex.split(done.stdout.replace("\\\n", " ").strip().splitlines()[-1])

    return show


@pytest.mark.parametrize(
    ("target", "variables"),
    [
        ("preprocess", ("INPUT", "OUTPUT", "CONFIG")),
        ("inspect", ("OUTPUT",)),
        ("train", ("DATASET", "RANK_TABLE_FILE", "CONFIG")),
        ("eval", ("RUN", "DATASET", "CHECKPOINT")),
        ("report", ("RUN",)),
    ],
)
def test_paths_may_hold_spaces(commands, target, variables):
    words = commands(target, *(f"{name}=my {name} dir" for name in variables))
    for name in variables:
        assert any(word in (f"my {name} dir", f"{name}=my {name} dir") for word in words), (name, words)


@pytest.mark.parametrize("target", ["train", "demo"])
def test_the_python_that_makes_the_environment_is_not_the_one_that_trains(commands, project, target):
    assert f"PYTHON={project}/.venv/bin/python" in commands(target, "PYTHON=python3.11")


def test_the_environment_may_lie_anywhere(commands, project):
    assert commands("inspect", "VENV=/some/where")[0] == "/some/where/bin/python"
    assert commands("inspect", "VENV=here")[0] == f"{project}/here/bin/python"


def test_no_target_stands_twice(project):
    """make would take the later one, and only warn."""
    done = subprocess.run(["make", "--dry-run", "help"], cwd=project, capture_output=True, text=True, check=True)
    assert "overriding" not in done.stderr
