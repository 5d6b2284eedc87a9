"""Checkpoints written in a thread, beside updates and under write errors."""

import contextlib
import dataclasses
import errno
import itertools
import os
import threading

import numpy as np
import pytest

from app.checkpoint.manifest import MANIFEST, Position, read_manifest, write_manifest
from app.checkpoint.read import Checkpoint
from app.config.config import CheckpointOptions
from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.tables.fields import TableField
from app.tables.interface import RowGradients, TablesSpec, TableState
from app.training import saving
from app.training.saving import Throttle
from tests.app.tables.tables_of_spec import reference_tables
from tests.checkpoints import Run, StateOfTables, load, manager_of
from tests.damage import disk_error

SPEC = TablesSpec(200, 4, (TableField("C1"), TableField("C2")), 7, 0.01, 1e-3, FtrlOptions(), LazyAdamOptions())


def train(tables, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, SPEC.vocabulary_size, (10, 2), np.int32)
    gradients = RowGradients(rng.standard_normal((10, 8), np.float32), rng.standard_normal(10, np.float32))
    tables.update(tables.unique(ids), gradients)


def path_of(folder, step):
    return folder / f"step-{step:08d}"


def assert_holds(path, state):
    found = load(path)[1].tables
    for table, saved in state.items():
        np.testing.assert_array_equal(found[table].row_ids, saved.row_ids)
        for name, array in saved.arrays.items():
            np.testing.assert_array_equal(found[table].arrays[name].view(np.int32), array.view(np.int32))


@pytest.fixture
def make_manager(tmp_path):
    """Make managers of the tables' checkpoints, each with its run."""
    with contextlib.ExitStack() as open_ones:

        def make(tables, folder=tmp_path, background=False, **options):
            run = Run(folder)
            options = CheckpointOptions(background=background, **{"keep_last": 0, "delta": True, **options})
            manager = manager_of(run, StateOfTables(tables), options, SPEC.vocabulary_size)
            open_ones.callback(manager.close)
            return manager, run

        yield make


def at(step):
    return Position(step, 1, step)


def test_what_is_written_is_what_was_there_when_it_began(make_tables, make_manager, tmp_path, monkeypatch):
    """The first write to the disk waits until three updates were made."""
    tables, updated, write = make_tables(SPEC), threading.Event(), os.pwrite
    manager, run = make_manager(tables, background=True)

    def write_late(*words):
        assert updated.wait(10)
        return write(*words)

    monkeypatch.setattr(os, "pwrite", write_late)
    train(tables, seed=0)
    for step in (1, 2, 3, 4):
        before = tables.state()
        updated.clear()
        manager.save(at(step), None)
        for seed in range(3):
            train(tables, 10 * step + seed)
        assert not path_of(tmp_path, step).exists()
        updated.set()
        manager.finish(at(step), None)
        assert_holds(path_of(tmp_path, step), before)
    assert read_manifest(path_of(tmp_path, 4)).parent["step"] == 3
    assert run.failed == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_after_a_write_error_at_any_call_the_next_delta_has_all_that_changed(make_tables, code, make_manager, tmp_path):
    for number in itertools.count():
        tables, folder = make_tables(SPEC), tmp_path / str(number)
        manager, run = make_manager(tables, folder)
        train(tables, seed=0)
        manager.save(at(1), None)
        state = tables.state()
        train(tables, seed=1)
        with disk_error(number, code) as broken:
            manager.save(at(2), None)
        assert bool(run.failed) == bool(broken)
        train(tables, seed=2)
        manager.save(at(3), None)
        assert manager.saved == at(3)
        assert read_manifest(path_of(folder, 3)).parent["step"] in (1, 2)
        assert_holds(path_of(folder, 3), tables.state())
        assert_holds(path_of(folder, 1), state)
        if not broken:
            break
    assert number > 15


def train_and_save(manager, tables, step, folder):
    """Train a step and save; return the step of the checkpoint's parent."""
    train(tables, step)
    manager.save(at(step), None)
    parent = read_manifest(path_of(folder, step)).parent
    return parent and parent["step"]


def test_full_ones_and_deltas_take_turns(make_manager, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "FULL_EVERY", 3)
    tables = reference_tables(SPEC)
    manager, _ = make_manager(tables)
    parents = [train_and_save(manager, tables, step, tmp_path) for step in range(1, 8)]
    assert parents == [None, 1, 2, None, 4, 5, None]


@pytest.mark.parametrize(("resumed", "saved", "parent"), [(5, 6, 5), (5, 5, None), (6, 7, None)])
def test_a_resumed_run_keeps_the_turns_of_full_and_delta(make_manager, tmp_path, monkeypatch, resumed, saved, parent):
    """A checkpoint cannot hold changes since the one that it replaces."""
    monkeypatch.setattr("app.training.saving.FULL_EVERY", 3)
    tables = reference_tables(SPEC)
    manager, _ = make_manager(tables)
    for step in range(1, resumed + 1):
        train_and_save(manager, tables, step, tmp_path)
    again, _ = make_manager(tables)
    again._training.restore = lambda checkpoint: None
    again._selection.load_state = lambda state: None
    assert again.restore(Checkpoint.open(path_of(tmp_path, resumed))) == at(resumed)
    assert train_and_save(again, tables, saved, tmp_path) == parent


def test_what_lost_its_parent_is_followed_by_a_full_one(make_manager, tmp_path):
    tables = reference_tables(SPEC)
    manager, _ = make_manager(tables)
    train_and_save(manager, tables, 1, tmp_path)
    path_of(tmp_path, 1).rename(tmp_path / "away")
    assert train_and_save(manager, tables, 2, tmp_path) is None


def remove(path):
    path.rename(path.with_name("away"))


def write_anew(path):
    manifest = read_manifest(path)
    (path / MANIFEST).unlink()
    write_manifest(path, dataclasses.replace(manifest, id="another"))


@pytest.mark.parametrize("change", [remove, write_anew, None])
def test_a_delta_that_cannot_be_used_is_followed_by_a_full_checkpoint(make_manager, tmp_path, monkeypatch, change):
    """Its parent is lost while it is written, or (None) it cannot be opened once servers took its rows for saved."""
    tables = reference_tables(SPEC)
    manager, run = make_manager(tables)
    train_and_save(manager, tables, 1, tmp_path)
    write, open_checkpoint = saving.write_checkpoint, Checkpoint.open

    def write_and_change(*words):
        if change is not None:
            change(path_of(tmp_path, 1))
        return write(*words)

    def open_or_fail(path, read):
        if change is None and path == path_of(tmp_path, 2):
            raise FileNotFoundError(2, "not seen yet")
        return open_checkpoint(path, read)

    with monkeypatch.context() as patch:
        patch.setattr(saving, "write_checkpoint", write_and_change)
        patch.setattr(Checkpoint, "open", open_or_fail)
        assert train_and_save(manager, tables, 2, tmp_path) == 1
    (reason,) = run.failed
    assert change is None or "step-00000002 holds changes since step-00000001" in reason
    assert manager.saved == at(1)
    assert train_and_save(manager, tables, 3, tmp_path) is None
    assert_holds(path_of(tmp_path, 3), tables.state())


class Hurried:
    """Notes how long it is waited for."""

    def __init__(self):
        self.waits, self.set = [], False

    def is_set(self):
        return self.set

    def wait(self, seconds):
        self.waits.append(seconds)


def test_the_throttle_sleeps_three_times_what_was_worked(monkeypatch):
    times = iter([10.0, 10.2, 10.3, 10.3, 10.4, 10.5])
    monkeypatch.setattr("app.training.saving.time.thread_time", lambda: next(times))
    hurried = Hurried()
    throttle = Throttle(0.25, hurried)
    throttle(1)  # nothing is known yet
    throttle(1)
    assert hurried.waits == pytest.approx([0.6])
    throttle(1)
    assert hurried.waits == pytest.approx([0.6, 0.0])
    hurried.set = True
    throttle(1)
    assert len(hurried.waits) == 2


def test_norms_and_share_of_small_tables():
    rows = np.array([[3, 4], [0, 0]], np.float32)
    tables = {
        "wide": TableState(np.array([1, 7]), {"rows": np.array([[1], [-7]], np.float32)}),
        "deep": TableState(np.array([1, 7]), {"rows": rows}),
    }
    found = saving.table_statistics(tables, 8)
    assert found == pytest.approx(
        {"touched_rows": 2, "touched_share": 0.25, "wide_row_norm": 5.0, "deep_row_norm": np.sqrt(12.5)}
    )


def test_an_untrained_run_has_no_rows():
    empty = {"wide": TableState(np.zeros(0, np.int64), {"rows": np.zeros((0, 1), np.float32)})}
    assert saving.table_statistics(empty, 8) == {"touched_rows": 0, "touched_share": 0.0, "wide_row_norm": 0.0}


def test_a_large_table_is_sampled_evenly():
    count = 3 * saving.SAMPLED_VALUES // 100
    values = np.where(np.arange(count) < count // 2, 1, 3).astype(np.float32)
    rows = np.broadcast_to(values[:, None], (count, 100))
    found = saving.table_statistics({"deep": TableState(np.arange(count), {"rows": rows})}, count)
    assert found["deep_row_norm"] == pytest.approx(np.sqrt(500), rel=1e-3)


def test_parts_merge_into_the_statistics_of_all_rows():
    rng = np.random.default_rng(1)
    row_ids, rows = np.arange(90), rng.standard_normal((90, 4)).astype(np.float32)
    whole = saving.table_statistics({"deep": TableState(row_ids, {"rows": rows})}, 1000)
    shards = [
        saving.table_statistics({"deep": TableState(row_ids[i::4], {"rows": rows[i::4]})}, 1000) for i in range(4)
    ]
    assert saving.merged_statistics([*shards, saving.table_statistics({}, 1000)]) == pytest.approx(whole)
    assert saving.merged_statistics([whole]) is whole
