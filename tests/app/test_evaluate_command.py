"""What follows a run, with the judging made up; whole commands are in tests/app/test_main.py and tests/ranks/."""

import argparse

import pytest

from app import evaluate_command


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Follow a run of two checkpoints of which the first is gone when it has been judged with this status."""
    judged = []

    def run(status):
        def judge(arguments, path):
            judged.append(path.name)
            return status if path.name == "removed" else 0

        checkpoints = [tmp_path / "removed", tmp_path]
        monkeypatch.setattr(evaluate_command, "new_checkpoints", lambda *_: iter(checkpoints))
        monkeypatch.setattr(evaluate_command, "run_checkpoints", lambda folder: folder)
        monkeypatch.setattr(evaluate_command, "_evaluate", judge)
        return evaluate_command.run(argparse.Namespace(ranks=2, follow=tmp_path, target=None)), len(judged)

    return run


def test_a_checkpoint_that_is_removed_while_ranks_judge_it_is_passed_over(follow, caplog):
    assert follow(evaluate_command.WRONG_INPUT) == (0, 2)
    assert "removed was removed before it was judged" in caplog.text


@pytest.mark.parametrize("status", [130, 137, 143])
def test_ranks_that_are_ended_end_the_following_whatever_they_judged(follow, status):
    assert follow(status) == (status, 1)
