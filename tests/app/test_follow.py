import shutil

import pytest

from app import follow
from app.follow import new_checkpoints


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Checkpoints that are folders with nothing in them."""

    class Manifest:
        def __init__(self, name):
            self.id = name

    monkeypatch.setattr(follow, "whole_checkpoints", lambda folder: sorted(folder.iterdir()))
    monkeypatch.setattr(follow, "read_manifest", lambda path: Manifest(path.name))
    return lambda step: (tmp_path / f"step-{step:08d}").mkdir()


def test_every_checkpoint_is_given_once_and_the_last_after_the_end(tmp_path, save):
    happens = iter([lambda: save(2), lambda: shutil.rmtree(tmp_path / "step-00000001"), lambda: (save(3), save(4))])
    answers = iter([True, True, True, False])
    save(1)
    found = new_checkpoints(tmp_path, lambda: next(answers), lambda seconds: next(happens)())
    assert [path.name[-1] for path in found] == ["1", "2", "3", "4"]


def test_a_run_that_has_ended_is_not_waited_for(tmp_path, save):
    save(5)
    waited = []
    assert len(list(new_checkpoints(tmp_path, lambda: False, waited.append))) == 1
    assert not waited
