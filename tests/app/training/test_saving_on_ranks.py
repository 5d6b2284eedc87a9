"""Saves of several ranks of which one fails: nobody is left waiting. Ranks are threads here."""

import dataclasses
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from app.checkpoint import write as sharded_checkpoint
from app.checkpoint.manifest import Manifest, Position, write_manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import ModelState, write_checkpoint
from app.config.config import CheckpointOptions
from app.distributed.process_group import first_error, is_collective
from app.tables.interface import DEEP, STATE_ARRAYS, WIDE, TableState
from app.training import saving
from tests.checkpoints import Run, StateOfTables, load, manager_of

MANIFEST = Manifest(3, 1, 3, {}, "", {}, {})


def rows_of(rank, size):
    row_ids = np.arange(rank, 20, size)
    tables = {}
    for table, width in ((WIDE, 1), (DEEP, 4)):
        values = np.full((row_ids.size, width), rank, np.float32)
        tables[table] = TableState(row_ids, dict.fromkeys(STATE_ARRAYS[table], values))
    return tables


class Released:
    """A `Snapshot` that notes its release."""

    def __init__(self, tables):
        self.tables, self.awaited, self.saved = tables, threading.Event(), None

    def release(self, saved):
        self.saved = saved


class RankState(StateOfTables):
    """A rank's rows, or no memory for a list of them."""

    def __init__(self, group, fails):
        super().__init__(SimpleNamespace(snapshot=self._snapshot))
        self._group, self._fails, self.snapshots, self.changed_only = group, fails, [], []

    def _snapshot(self, changed_only):
        self.changed_only.append(changed_only)
        if self._group.rank == self._fails:
            raise MemoryError("no list of the rows")
        self.snapshots.append(Released(rows_of(self._group.rank, self._group.size)))
        return self.snapshots[-1]

    def dense_values(self):
        self._group.gather("a tower that is spread")
        return super().dense_values()


@pytest.fixture
def make_manager(tmp_path):
    def make(group, fails=None):
        run, parts = Run(tmp_path / "checkpoints"), RankState(group, fails)
        return manager_of(run, parts, CheckpointOptions(), 20, group), run, parts

    return make


def test_one_rank_without_memory_for_its_rows_costs_all_ranks_that_save(thread_ranks, make_manager):
    def work(group):
        manager, run, parts = make_manager(group, fails=1)
        manager.save(Position(3, 1, 3), None)
        manager.close()
        return run.failed, [snapshot.saved for snapshot in parts.snapshots], manager.saved

    for rank, (failed, released, saved) in enumerate(thread_ranks(3, work)):
        assert failed == ["rank 1: no list of the rows"]
        assert released == ([] if rank == 1 else [False])
        assert saved is None


def test_ranks_save_together(thread_ranks, make_manager, tmp_path):
    def work(group):
        manager, run, parts = make_manager(group)
        manager.save(Position(3, 1, 3), None)
        manager.close()
        return run.failed, parts.snapshots[0].saved, manager.saved.step

    assert thread_ranks(2, work) == [([], True, 3)] * 2
    assert load(tmp_path / "checkpoints" / "step-00000003")[1].tables[DEEP].row_ids.tolist() == list(range(20))


@pytest.mark.parametrize("where", ["begin", "shards", "dense", "manifest", "tidy"])
def test_an_error_of_one_rank_while_it_writes_is_all_ranks_error(
    thread_ranks, make_manager, tmp_path, monkeypatch, where
):
    """`manifest` is what is read again after the save."""

    def fail(error):
        def raise_it(*_):
            raise error

        return raise_it

    if where == "shards":
        write = sharded_checkpoint.write_shards
        monkeypatch.setattr(
            sharded_checkpoint,
            "write_shards",
            lambda partial, tables, owner, owners: (
                fail(MemoryError("no buffer"))() if owner == 1 else write(partial, tables, owner, owners)
            ),
        )
    failing = {
        "begin": (sharded_checkpoint, "clear_leftovers", OSError(5, "Input/output error")),
        "dense": (sharded_checkpoint, "column_of", MemoryError("no buffer")),
        "manifest": (saving.Checkpoint, "open", FileNotFoundError(2, "not seen yet")),
        "tidy": (saving, "remove_old", OSError(5, "Input/output error")),
    }
    if where in failing:
        module, name, error = failing[where]
        monkeypatch.setattr(module, name, fail(error))

    def work(group):
        manager, run, _ = make_manager(group)
        manager.save(Position(3, 1, 3), None)
        manager.close()
        return len(run.failed), group.calls[-1]

    released = [True] if where in ("manifest", "tidy") else [False]
    assert thread_ranks(2, work) == [(1, ("release", *released))] * 2
    assert not list((tmp_path / "checkpoints").glob("*.partial"))


def test_an_error_of_another_kind_ends_its_rank_without_waiting(thread_ranks, tmp_path, monkeypatch):
    """The rank's end is that of the job; here the others' wait is broken off."""
    write = sharded_checkpoint.write_shards

    def write_or_fail(partial, tables, owner, owners):
        if owner == 1:
            raise KeyError("a fault of the program")
        return write(partial, tables, owner, owners)

    monkeypatch.setattr(sharded_checkpoint, "write_shards", write_or_fail)

    def work(group):
        try:
            write_checkpoint(tmp_path, ModelState({}, rows_of(group.rank, 2)), MANIFEST, group=group)
        except KeyError:
            group._ranks.meeting.abort()
            raise

    errors = thread_ranks(2, work)
    assert [type(error) for error in errors] == [threading.BrokenBarrierError, KeyError]


def test_rank_0_decides_whether_a_checkpoint_is_full(thread_ranks, tmp_path, make_manager):
    """The parent's folder is not seen by rank 1 yet."""
    name, manifest = "step-00000003", dataclasses.replace(MANIFEST, id="x")
    (tmp_path / "checkpoints" / name).mkdir(parents=True)
    write_manifest(tmp_path / "checkpoints" / name, manifest)

    def work(group):
        manager, _, parts = make_manager(group)
        manager._options = CheckpointOptions(delta=True)
        seen = "unseen" if group.rank else "checkpoints"
        manager.newest = Checkpoint(tmp_path / seen / name, manifest)
        manager.save(Position(4, 1, 4), None)
        manager.close()
        return parts.changed_only

    assert thread_ranks(2, work) == [[True]] * 2


def test_the_first_rank_s_error_is_every_rank_s(thread_ranks):
    def work(group):
        return first_error(group, UnicodeDecodeError("utf-8", b"x", 0, 1, "bad") if group.rank else None)

    for error in thread_ranks(3, work):
        assert type(error) is ValueError
        assert str(error).startswith("rank 1: 'utf-8' codec")
        assert is_collective(error)
    assert thread_ranks(2, lambda group: first_error(group, None)) == [None, None]
