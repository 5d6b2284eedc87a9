"""The command that follows a run, with made-up evaluations; whole commands are in tests/app/cli/test_main.py and
tests/ranks/.
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint, DamagedCheckpointError
from app.checkpoint.write import ModelState, write_checkpoint
from app.cli import evaluate as evaluate_command
from app.config.config import Config


@pytest.fixture
def checkpoints(tmp_path):
    manifests = [Manifest(step, 1, step, {}, "", {}, {}) for step in (1, 2)]
    return [Checkpoint.open(write_checkpoint(tmp_path, ModelState({}, {}), manifest)) for manifest in manifests]


@pytest.fixture
def follow(tmp_path, monkeypatch, checkpoints):
    """Follow a run of two checkpoints, the first evaluated by `evaluate(path)`; gives the status and the evaluated."""
    evaluated = []

    def run(evaluate):
        def note(arguments, checkpoint):
            evaluated.append(str(checkpoint.manifest.step))
            return evaluate(checkpoint.path) if checkpoint.manifest.step == 1 else 0

        monkeypatch.setattr(evaluate_command, "new_checkpoints", lambda *_: iter(checkpoints))
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


def test_a_checkpoint_that_is_compacted_while_it_is_evaluated_is_read_again(follow):
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


@pytest.mark.parametrize(("damaged", "expected"), [(True, (2, "job 1 job 2")), (False, (2, "job 1"))])
def test_ranks_that_end_at_a_damaged_checkpoint_are_followed_by_the_next(
    monkeypatch, checkpoints, tiny_schema, tmp_path, caplog, damaged, expected
):
    """A job ends with a status alone: the command looks for the damage itself, and ends at any other error."""
    jobs = []

    def launch(ranks, host_file, words):
        path = Path(words[words.index("--checkpoint") + 1])
        jobs.append(f"job {int(path.name[-8:])}")
        return evaluate_command.WRONG_INPUT if path == checkpoints[0].path else 0

    if damaged:
        (checkpoints[0].path / "dense.safetensors").unlink()
    monkeypatch.setattr(evaluate_command, "new_checkpoints", lambda *_: iter(checkpoints))
    monkeypatch.setattr(evaluate_command, "saved_config", lambda checkpoint: Config())
    monkeypatch.setattr(evaluate_command, "check_data", lambda *_: (tmp_path, tiny_schema))
    monkeypatch.setattr(evaluate_command, "launch", launch)
    parser = argparse.ArgumentParser()
    evaluate_command.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["evaluate", "--ranks", "2", "--follow", str(tmp_path)])
    assert (evaluate_command.run(arguments), " ".join(jobs)) == expected
    assert ("step-00000001 is skipped: checkpoint file" in caplog.text) == damaged
