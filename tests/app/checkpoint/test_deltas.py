"""Full checkpoints and the deltas after them: put together, kept as long as they are needed, made full."""

import dataclasses
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.__main__ import main
from app.checkpoint.manifest import ParentRecord, read_manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import compact, remove_old, rewrite, whole_checkpoints
from app.checkpoint.write import ModelState, write_checkpoint
from app.config.config import CheckpointOptions
from app.tables.interface import DEEP, WIDE, TableState
from tests.checkpoints import load, plain_manifest
from tests.damage import flip_bit

ARRAYS = {WIDE: {"rows": 1, "any": 1}, DEEP: {"rows": 3, "other": 3, "one": 1}}  # of whatever optimizer


class Run:
    """A folder of checkpoints. `states` has, by step, the whole state that the checkpoint must restore."""

    def __init__(self, folder, num_shards=1):
        self.folder, self.num_shards = folder, num_shards
        self.rng = np.random.default_rng(0)
        self.states = {}
        self.values = {table: {} for table in ARRAYS}
        self.parent = None

    def save(self, step, rows, full=False, auc=None):
        """Give `rows` new random values, and write a delta with them or, with `full`, a full checkpoint."""
        for table, arrays in ARRAYS.items():
            for row in rows:
                self.values[table][row] = {
                    name: self.rng.standard_normal((1, width), np.float32) for name, width in arrays.items()
                }
        dense = {"tower.bias_0": self.rng.standard_normal(2, np.float32)}
        self.states[step] = ModelState(dense, self._tables(self.values[DEEP]))
        written = self.states[step] if full or self.parent is None else ModelState(dense, self._tables(rows))
        parent = None if full else self.parent
        manifest = plain_manifest(step, metrics={} if auc is None else {"auc": auc}, parent=parent)
        path = write_checkpoint(self.folder, written, manifest, self.num_shards)
        self.parent = ParentRecord(step=step, id=read_manifest(path).id)
        return path

    def _tables(self, rows):
        row_ids = np.array(sorted(rows), np.int64)
        return {table: TableState(row_ids, self._arrays(table, row_ids.tolist())) for table in ARRAYS}

    def _arrays(self, table, rows):
        return {
            name: np.concatenate([np.zeros((0, width), np.float32), *(self.values[table][row][name] for row in rows)])
            for name, width in ARRAYS[table].items()
        }


@pytest.fixture
def run(tmp_path):
    """A full checkpoint at step 1 and deltas at 2, 3 and 4."""
    made = Run(tmp_path / "run")
    made.save(1, {1, 5, 9})
    made.save(2, {5, 7}, auc=0.9)
    made.save(3, {})
    made.save(4, {0, 9})
    return made


def path_of(run, step):
    return run.folder / f"step-{step:08d}"


def steps_in(folder):
    return [checkpoint.manifest.step for checkpoint in whole_checkpoints(folder)]


saves = st.lists(st.tuples(st.sets(st.integers(0, 30), max_size=10), st.booleans()), min_size=1, max_size=6)


@given(saves=saves, num_shards=st.integers(1, 3), layouts=st.lists(st.integers(1, 4), max_size=2))
@settings(max_examples=25)
def test_any_chain_in_any_layout_gives_the_state_s_bits(assert_same_bits, saves, num_shards, layouts):
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run", num_shards)
        for step, (rows, full) in enumerate(saves, start=1):
            path = run.save(step, rows, full)
        expected = run.states[len(saves)]
        assert_same_bits(load(path)[1], expected)
        for number, layout in enumerate(layouts):
            path = rewrite(Checkpoint.open(path), Path(folder) / str(number), layout)
            manifest, found = load(path)
            assert (manifest.parent, set(manifest.shards.values())) == (None, {layout})
            assert_same_bits(found, expected)


def test_a_chain_that_is_broken_is_refused_by_the_link_that_is_at_fault(run):
    with (path_of(run, 2) / "deep-0-of-1.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    with pytest.raises(ValueError, match=r"step-00000002/deep-0-of-1.safetensors is damaged"):
        Checkpoint.open(path_of(run, 4)).verify()
    Checkpoint.open(path_of(run, 1)).verify()
    shutil.rmtree(path_of(run, 2))
    with pytest.raises(ValueError, match=r"step-00000003 holds changes since step-00000002, which cannot be used"):
        Checkpoint.open(path_of(run, 4)).verify()
    assert steps_in(run.folder) == [1]


def test_a_parent_that_was_written_anew_is_another_one(run):
    manifest = dataclasses.replace(read_manifest(path_of(run, 2)), parent=None, shards={}, files={}, id="")
    write_checkpoint(run.folder, run.states[4], manifest)
    with pytest.raises(ValueError, match=r"step-00000003 holds changes since step-00000002 with id .* written anew"):
        Checkpoint.open(path_of(run, 4)).verify()


def test_the_dense_arrays_of_an_older_link_are_not_needed(run, assert_same_bits):
    (path_of(run, 1) / "dense.safetensors").unlink()
    assert_same_bits(load(path_of(run, 4))[1], run.states[4])


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"), [(1, 0, [1, 2, 3, 4]), (9, 0, [1, 2, 3, 4, 5, 6]), (0, 0, [1, 2, 3, 4, 5, 6])]
)
def test_what_a_kept_delta_needs_is_kept(run, keep_last, keep_best, kept, assert_same_bits):
    options = CheckpointOptions(keep_last=keep_last, keep_best=keep_best, delta=True)
    if keep_last != 1:
        run.save(5, {3}, full=True)
        run.save(6, {4})
    remove_old(run.folder, options, "auc")
    assert steps_in(run.folder) == kept
    assert_same_bits(load(path_of(run, kept[-1]))[1], run.states[kept[-1]])


def test_a_delta_is_made_full_in_place_and_later_ones_stay_valid(run, assert_same_bits):
    compact(Checkpoint.open(path_of(run, 3)), 2)
    assert read_manifest(path_of(run, 3)).parent is None
    remove_old(run.folder, CheckpointOptions(keep_last=2, keep_best=0, delta=True), "auc")
    assert steps_in(run.folder) == [3, 4]
    for step in (3, 4):
        assert_same_bits(load(path_of(run, step))[1], run.states[step])
    run.save(5, {1})
    assert_same_bits(load(path_of(run, 5))[1], run.states[5])


def test_compaction_copies_no_damage(run):
    flip_bit(path_of(run, 1) / "deep-0-of-1.safetensors")
    with pytest.raises(ValueError, match="is damaged"):
        compact(Checkpoint.open(path_of(run, 4)), 1)
    assert read_manifest(path_of(run, 4)).parent is not None


def test_the_commands_know_deltas(run, capsys, tmp_path, assert_same_bits):
    assert main(["checkpoint", "list", "--folder", str(run.folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("AUC ")[1].split("  ")[1] for line in lines] == [
        "full",
        *(f"changes since step {step}" for step in (1, 2, 3)),
    ]
    last = str(path_of(run, 4))
    assert main(["checkpoint", "verify", last]) == 0
    assert "whole, 4 checkpoints, 9 files" in capsys.readouterr().out
    assert main(["checkpoint", "reshard", "--shards", "1", last, str(tmp_path / "merged")]) == 0
    assert_same_bits(load(tmp_path / "merged" / "step-00000004")[1], run.states[4])
    assert main(["checkpoint", "compact", last]) == 0
    assert "is a full checkpoint now" in capsys.readouterr().out
    assert main(["checkpoint", "compact", last]) == 0
    assert "is a full checkpoint already" in capsys.readouterr().out
    assert_same_bits(load(path_of(run, 4))[1], run.states[4])
