"""The command that follows a run with several ranks; whole commands are in test_main.py and tests/ranks/."""

import argparse
from pathlib import Path

import pytest

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import ModelState, write_checkpoint
from app.cli import evaluate as command
from app.config.config import Config
from app.scoring.trained import follow
from app.scoring.trained.trained_model import Trained


@pytest.mark.parametrize(("damaged", "expected"), [(True, (2, "job 1 job 2")), (False, (2, "job 1"))])
def test_ranks_that_end_at_a_damaged_checkpoint_are_followed_by_the_next(
    monkeypatch, tiny_schema, tmp_path, caplog, damaged, expected
):
    """A job ends with a status alone: the command looks for the damage itself, and ends at any other error."""
    manifests = [Manifest(step, 1, step, {}, "", {}, {}) for step in (1, 2)]
    checkpoints = [Checkpoint.open(write_checkpoint(tmp_path, ModelState({}, {}), manifest)) for manifest in manifests]
    jobs = []

    def launch(ranks, host_file, words, timeout_s):
        path = Path(words[-1])
        jobs.append(f"job {int(path.name[-8:])}")
        return follow.WRONG_INPUT if path == checkpoints[0].path else 0

    if damaged:
        (checkpoints[0].path / "dense.safetensors").unlink()
    monkeypatch.setattr(follow, "new_checkpoints", lambda _: iter(checkpoints))
    monkeypatch.setattr(command, "open_trained", lambda opened, *_: Trained(opened, Config(), tmp_path, tiny_schema))
    monkeypatch.setattr(command, "launch", launch)
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(words := ["evaluate", "--ranks", "2", "--follow", str(tmp_path)])
    arguments.words = words
    assert (command.run(arguments), " ".join(jobs)) == expected
    assert ("step-00000001 is skipped: checkpoint file" in caplog.text) == damaged
