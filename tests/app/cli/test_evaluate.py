"""What follows a run, with the evaluating made up; whole commands are in tests/app/cli/test_main.py and
tests/ranks/.
"""

import argparse
import shutil
from dataclasses import replace

import pytest

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import DamagedCheckpointError
from app.checkpoint.write import ModelState, write_checkpoint
from app.cli import evaluate as evaluate_command


@pytest.fixture
def paths(tmp_path):
    return [write_checkpoint(tmp_path, ModelState({}, {}), Manifest(step, 1, step, {}, "", {}, {})) for step in (1, 2)]


@pytest.fixture
def follow(tmp_path, monkeypatch, paths):
    """Follow a run of two checkpoints, the first evaluated by `evaluate(path)`; gives the status and the evaluated."""
    evaluated = []

    def run(evaluate):
        def note(arguments, path):
            evaluated.append(path.name[-1])
            return evaluate(path) if path == paths[0] else 0

        monkeypatch.setattr(evaluate_command, "new_checkpoints", lambda *_: iter(paths))
        monkeypatch.setattr(evaluate_command, "_evaluate", note)
        return evaluate_command.run(argparse.Namespace(ranks=2, follow=tmp_path, target=None)), "".join(evaluated)

    return run


def raises(error):
    raise error


def removed_and(end):
    def evaluate(path):
        shutil.rmtree(path)
        return end()

    return evaluate


@pytest.mark.parametrize(
    "end", [lambda: evaluate_command.WRONG_INPUT, lambda: raises(FileNotFoundError("gone")), lambda: raises(ValueError)]
)
def test_a_checkpoint_that_is_removed_while_it_is_evaluated_is_passed_over(follow, caplog, end):
    assert follow(removed_and(end)) == (0, "12")
    assert "step-00000001 was removed before it was evaluated" in caplog.text


def test_a_checkpoint_that_is_compacted_while_it_is_evaluated_is_read_again(follow, paths):
    turns = iter([True, False])

    def evaluate(path):
        if next(turns):
            write_checkpoint(path.parent, ModelState({}, {}), replace(Manifest(1, 1, 1, {}, "", {}, {}), id="anew"))
            raise DamagedCheckpointError("a file is missing")
        return 0

    assert follow(evaluate) == (0, "112")


def test_a_damaged_checkpoint_is_said_and_the_next_is_evaluated(follow, caplog):
    assert follow(lambda path: raises(DamagedCheckpointError(f"{path} is damaged"))) == (2, "12")
    assert "step-00000001 is damaged" in caplog.text


def test_what_is_wrong_with_the_command_ends_it(follow):
    with pytest.raises(ValueError, match="no split"):
        follow(lambda path: raises(ValueError("no split")))


@pytest.mark.parametrize("status", [130, 137, 143])
def test_ranks_that_are_ended_end_the_following_whatever_they_evaluated(follow, status):
    assert follow(lambda path: status) == (status, "1")
