"""The status that a watcher sees, the parts that it may release, and the bundles that are kept."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest

from app.__main__ import main as app
from app.checkpoint.write import step_name
from app.online import state
from app.online.state import load_counts, remove_old_bundles, save_counts
from app.scoring.bundle_folder import BundleManifest, chains, read_manifests
from app.scoring.bundle_writer import write_manifest
from app.serving.options import ServerOptions
from app.serving.statement import Statement
from common.files import lock_folder

HELD = {"held": {"part-1": "its click rate", "part-2": "is damaged"}, "can_be_released": {"part-1": "xxh3:1"}}


@pytest.fixture
def work(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"status": "stopped"}))
    (tmp_path / "status.json").write_text(json.dumps({"step": 3, "parts": 1, **HELD}))
    return tmp_path


def run(*words):
    return app([str(word) for word in ("online", *words)])


def test_the_status_is_json_and_an_exit_status(work, capsys):
    assert run("status", "--work", work) == 5
    assert json.loads(capsys.readouterr().out) == {"running": False, "step": 3, "parts": 1, **HELD, "ended": "stopped"}
    (work / "status.json").write_text(json.dumps({"step": 3, "held": {}}))
    assert run("status", "--work", work) == 0
    for status, ended in (("running", "killed"), ("failed", "failed")):
        (work / "run.json").write_text(json.dumps({"status": status}))
        capsys.readouterr()
        assert run("status", "--work", work) == 6
        assert json.loads(capsys.readouterr().out)["ended"] == ended
    with lock_folder(work):
        assert run("status", "--work", work) == 0


@pytest.mark.parametrize("text", [None, "{", "[]", "{}"])
def test_no_status_is_an_error(work, text, capsys, caplog):
    (work / "status.json").unlink()
    if text is not None:
        (work / "status.json").write_text(text)
    assert run("status", "--work", work) == 2
    assert "status.json" in caplog.text + capsys.readouterr().err


def test_only_a_part_that_may_be_trained_on_is_released(work, capsys, caplog):
    assert run("release", "part-2", "--work", work) == 2
    assert run("release", "part-3", "--work", work) == 2
    text = caplog.text + capsys.readouterr().err
    assert "part-2 cannot be released: is damaged" in text
    assert "held are: part-1, part-2" in text
    assert not (work / "released").exists()
    assert run("release", "part-1", "--work", work) == 0
    assert (work / "released/part-1").read_text() == "xxh3:1\n"


def test_a_source_needs_a_run_and_a_folder(capsys, caplog):
    assert run("parts") == 2
    assert "lacks --from and --serve; expected: online SOURCE --from RUN" in caplog.text + capsys.readouterr().err


def make_bundle(folder, name, step, parent=None, folded=""):
    path = folder / name
    path.mkdir()
    above = parent and {"id": parent.version, "name": ""}
    generation = parent.generation + 1 if parent else step
    manifest = BundleManifest(
        {}, {}, {}, {"id": f"c{step}", "step": step}, {}, {}, above, generation if above or folded else 0, folded
    )
    write_manifest(path, manifest)
    return read_manifests(folder)[path]


@pytest.mark.parametrize("seed", range(20))
def test_what_a_kept_or_pinned_bundle_needs_is_never_removed(tmp_path, seed):
    chance = random.Random(seed)
    versions, parent = [], None
    for step in range(1, 30):
        parent = make_bundle(tmp_path, step_name(step), step, parent if chance.random() < 0.8 else None)
        versions.append(parent.version)
    make_bundle(tmp_path, "by-hand", 1)
    make_bundle(tmp_path, "step-of-another", 2)
    by_version = chains(read_manifests(tmp_path))
    pinned = chance.choice([None, *by_version])
    Statement(ServerOptions(tmp_path, "")).write(pinned)
    keep = chance.randrange(1, 8)
    ranked = sorted(by_version, key=lambda version: state.rank(by_version[version]))
    remove_old_bundles(tmp_path, 0)
    assert chains(read_manifests(tmp_path)) == by_version
    removed = remove_old_bundles(tmp_path, keep)
    after = chains(read_manifests(tmp_path))
    for version in {*ranked[-keep:], *([pinned] if pinned else [])}:
        assert after[version] == by_version[version]
    needed = {path for version in {*ranked[-keep:], pinned or ""} for path, _ in by_version.get(version, ())}
    assert not set(removed) & needed
    left = {path.name for path in tmp_path.glob("step-0*")}
    assert left == {path.name for path in needed if path.name.startswith("step-0")}
    assert (tmp_path / "by-hand").is_dir()
    assert (tmp_path / "step-of-another").is_dir()


def test_a_removal_that_was_killed_is_ended_and_a_damaged_pin_removes_nothing(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        make_bundle(tmp_path, step_name(step), step)
    (tmp_path / "current.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        remove_old_bundles(tmp_path, 1)
    assert len(read_manifests(tmp_path)) == 3
    (tmp_path / "current.json").unlink()
    rmtree, killed = state.shutil.rmtree, []

    def die(path, **_):
        killed.append(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(state, "shutil", SimpleNamespace(rmtree=die))
        remove_old_bundles(tmp_path, 1)
    assert len(killed) == 1
    assert len(read_manifests(tmp_path)) == 2
    assert state.shutil.rmtree is rmtree
    remove_old_bundles(tmp_path, 1)
    assert len(list(tmp_path.iterdir())) == 1


def test_counts_are_those_of_the_last_save_of_a_step(tmp_path):
    """A process that was killed before its checkpoint left counts as added, where the next one writes all."""
    whole, added, other = ({"counts": np.full(2, number)} for number in range(3))
    save_counts(tmp_path, 3, whole)
    save_counts(tmp_path, 6, added, since=3)
    assert [int(counts["counts"][0]) for counts in load_counts(tmp_path, 6)] == [0, 1]
    save_counts(tmp_path, 6, other)
    assert [int(counts["counts"][0]) for counts in load_counts(tmp_path, 6)] == [2]
