"""The checkpoints of a run that are evaluated, and when that ends; runs and waits are made up, locks are real."""

import json
import logging
import shutil
from dataclasses import replace

import pytest

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint, DamagedCheckpointError
from app.checkpoint.write import ModelState, write_checkpoint
from app.run.report import NOT_WRITTEN
from app.scoring.trained import follow as following
from app.scoring.trained.follow import POLL_SECONDS, RESUME_SECONDS, WRONG_INPUT, new_checkpoints
from common.files import lock_folder

MOST_WAITS = 100


class Run:
    """A run whose training does what the test calls."""

    def __init__(self, path):
        self.path = path
        self.lock = None

    def launch(self):
        self.lock = lock_folder(self.path)
        (self.path / "config.yaml").write_text("{}")
        self.leave("running")

    def leave(self, status):
        (self.path / "run.json").write_text(json.dumps({"status": status}))

    def end(self, status="running"):
        """With `running` it is killed."""
        self.leave(status)
        self.lock.close()

    def save(self, *steps):
        for step in steps:
            manifest = Manifest(step, 1, step, {}, "", {}, {})
            write_checkpoint(self.path / "checkpoints", ModelState({}, {}), manifest)

    def remove(self, step):
        shutil.rmtree(self.path / "checkpoints" / f"step-{step:08d}")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "device_0")


@pytest.fixture
def follow(run, caplog):
    """Follow with one of `events` at each wait; gives the steps that were given, and how often it waited."""
    caplog.set_level(logging.INFO)

    def follow_run(*events):
        waits = []

        def wait(seconds):
            assert seconds == POLL_SECONDS
            waits.append(seconds)
            assert len(waits) < MOST_WAITS, "it never ends"
            if len(waits) <= len(events):
                events[len(waits) - 1]()

        return [checkpoint.manifest.step for checkpoint in new_checkpoints(run.path, wait)], len(waits)

    return follow_run


def nothing():
    """Time passes."""


def test_every_checkpoint_is_given_once_and_the_last_after_the_end(run, follow, caplog):
    run.launch()
    run.save(1)

    def save_and_end():
        run.save(3, 4)
        run.end("finished")

    given, num_waits = follow(lambda: run.save(2), nothing, lambda: run.remove(1), save_and_end)
    assert (given, num_waits) == ([1, 2, 3, 4], 4)
    assert "has finished, and its 4 checkpoint(s)" in caplog.text


def test_a_run_that_has_finished_is_not_waited_for(run, follow):
    run.launch()
    run.save(5)
    run.end("finished")
    assert follow() == ([5], 0)


def test_a_run_that_has_not_begun_is_awaited_and_reported_once(run, follow, caplog):
    def launch_and_end():
        run.save(1)
        run.end("finished")

    assert follow(nothing, nothing, run.launch, nothing, launch_and_end)[0] == [1]
    assert [message.split(": ")[1] for message in caplog.messages if "waiting" in message] == [
        "waiting for it to begin",
        "waiting for its first checkpoint",
    ]


@pytest.mark.parametrize(
    ("status", "said"), [("running", "was killed"), ("stopped", "was stopped"), ("failed", "failed")]
)
def test_a_run_that_ended_early_is_waited_for_a_while_and_then_left(run, follow, caplog, status, said):
    run.launch()
    run.save(1)
    run.end(status)
    assert follow() == ([1], RESUME_SECONDS / POLL_SECONDS)
    assert f"device_0 {said}; waiting 60 s for it to be resumed" in caplog.text
    assert f"device_0 {said}, and its 1 checkpoint(s)" in caplog.messages[-1]


def test_a_run_without_run_json_that_was_killed_ends(run, follow):
    run.launch()
    (run.path / "run.json").unlink()
    run.lock.close()
    assert follow()[0] == []


def test_a_run_that_is_resumed_is_followed_on(run, follow):
    run.launch()
    run.save(1)
    run.end()

    def save_and_finish():
        run.save(2)
        run.end("finished")

    assert follow(nothing, run.launch, *[nothing] * 60, save_and_finish)[0] == [1, 2]


def test_what_changes_while_a_checkpoint_is_evaluated_is_followed(run):
    """The next checkpoint is removed, and after the last one the run is resumed."""
    run.launch()
    run.save(1, 2, 3)
    run.end("finished")
    given = new_checkpoints(run.path, lambda _: (run.save(4), run.end("finished")))
    assert next(given).manifest.step == 1
    run.remove(2)
    assert next(given).manifest.step == 3
    run.launch()
    assert [checkpoint.manifest.step for checkpoint in given] == [4]


def test_asking_for_a_lock_does_not_refuse_a_launch_and_makes_nothing(run, follow):
    run.path.mkdir()

    class Found(Exception):
        pass

    def stop():
        raise Found

    with pytest.raises(Found):
        follow(nothing, stop)
    assert list(run.path.iterdir()) == []


@pytest.fixture
def evaluate_all(tmp_path, monkeypatch):
    """Follow a run of two checkpoints, the first evaluated by `evaluate(path)`; gives the status and the evaluated."""

    def run(evaluate):
        manifests = [Manifest(step, 1, step, {}, "", {}, {}) for step in (1, 2)]
        checkpoints = [
            Checkpoint.open(write_checkpoint(tmp_path, ModelState({}, {}), manifest)) for manifest in manifests
        ]
        evaluated = []

        def note(checkpoint):
            evaluated.append(str(checkpoint.manifest.step))
            return evaluate(checkpoint.path) if checkpoint.manifest.step == 1 else 0

        monkeypatch.setattr(following, "new_checkpoints", lambda _: iter(checkpoints))
        return following.follow(tmp_path, note), "".join(evaluated)

    return run


def raises(error):
    raise error


@pytest.mark.parametrize(
    "end", [lambda: WRONG_INPUT, lambda: raises(FileNotFoundError("gone")), lambda: raises(ValueError)]
)
def test_a_checkpoint_that_is_removed_while_it_is_evaluated_is_passed_over(evaluate_all, caplog, end):
    assert evaluate_all(lambda path: (shutil.rmtree(path), end())[1]) == (0, "12")
    assert "step-00000001 was removed before it was evaluated" in caplog.text


def test_a_checkpoint_that_is_compacted_while_it_is_evaluated_is_read_again(evaluate_all):
    turns = iter([True, False])

    def evaluate(path):
        if next(turns):
            write_checkpoint(path.parent, ModelState({}, {}), replace(Manifest(1, 1, 1, {}, "", {}, {}), id="anew"))
            raise DamagedCheckpointError("a file is missing")
        return 0

    assert evaluate_all(evaluate) == (0, "112")


def test_a_damaged_checkpoint_is_logged_and_the_next_is_evaluated(evaluate_all, caplog):
    assert evaluate_all(lambda path: raises(DamagedCheckpointError(f"{path} is damaged"))) == (2, "12")
    assert "step-00000001 is damaged" in caplog.text


def test_a_report_that_cannot_be_written_does_not_end_it(evaluate_all):
    assert evaluate_all(lambda path: NOT_WRITTEN) == (0, "12")  # the next one drew it


def test_an_error_of_the_command_ends_it(evaluate_all):
    with pytest.raises(ValueError, match="no split"):
        evaluate_all(lambda path: raises(ValueError("no split")))


@pytest.mark.parametrize("status", [130, 137, 143])
def test_ranks_that_are_ended_end_the_following_whatever_they_evaluated(evaluate_all, status):
    assert evaluate_all(lambda path: status) == (status, "1")
