"""Tables that grow at random moments have the bits of tables that had all ids from the beginning."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.config.optimizer_settings import AdamOptions, FtrlOptions, LazyAdamOptions
from app.distributed.sharded_tables import ShardedTables
from app.tables.backends import PartTables
from app.tables.fields import TableField
from app.tables.interface import RowGradients, TablesSpec
from tests.app.tables.tables_of_spec import assert_equal_states, native_tables, reference_tables

APART = (TableField("a", wide=True, deep=True), TableField("b", wide=False, deep=True))
SAME = (TableField("a"), TableField("b"))


def spec_of(vocabulary_size, fields, deep, ema_decay=0.0):
    return TablesSpec(vocabulary_size, 4, fields, 3, 0.1, 1e-3, FtrlOptions(), deep, ema_decay=ema_decay)


def make(kind, spec):
    plain = native_tables if kind == "native" else reference_tables
    return PartTables(spec, plain) if spec.has_parts else plain(spec)


@pytest.mark.parametrize("fields", [SAME, APART], ids=["same", "apart"])
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("reference", (5, 6, 40)),
        ("native", (5, 6, 40)),  # an array by ids from the first touched row on
        ("native", (1, 2, 3_000)),  # slabs of one row, of two, of all
        ("native", (4_000, 4_001, 60_000)),  # a hash that becomes an array
        ("native", (2**20 - 1, 2**20, 2**20 + 5)),  # another way to make ids distinct
    ],
)
def test_grown_tables_are_as_if_they_had_had_all_ids(kind, sizes, fields):
    rng = np.random.default_rng(sum(sizes))
    for deep, ema_decay in ((LazyAdamOptions(), 0.0), (AdamOptions(), 0.0), (LazyAdamOptions(), 0.9)):
        grown = make(kind, spec_of(sizes[0], fields, deep, ema_decay))
        whole = make(kind, spec_of(sizes[-1], fields, deep, ema_decay))
        for size in sizes:
            if size > sizes[0]:
                grown.grow(size)
            for _ in range(3):
                ids = np.minimum(rng.integers(0, size, (200, 2)), rng.integers(0, size, (200, 2))).astype(np.int32)
                ids[:2] = size - 1
                gradients = rng.normal(0, 0.1, (200, 8)).astype(np.float32), rng.normal(0, 0.1, 200).astype(np.float32)
                looked_up = []
                for tables in (grown, whole):
                    unique = tables.unique(ids)
                    rows = tables.lookup(unique)
                    looked_up.append((rows.deep.copy(), rows.wide.copy()))
                    tables.update(unique, RowGradients(*gradients))
                for found, expected in zip(*looked_up, strict=True):
                    np.testing.assert_array_equal(found, expected)
            snapshots = [tables.snapshot(changed_only=True) for tables in (grown, whole)]
            for table, expected in snapshots[1].tables.items():
                np.testing.assert_array_equal(snapshots[0].tables[table].row_ids, expected.row_ids)
            for snapshot in snapshots:
                snapshot.release(saved=True)
        assert_equal_states(grown.state(), whole.state())
        assert grown.spec == whole.spec
        with pytest.raises(ValueError, match="id"):
            grown.unique(np.full((1, 2), sizes[-1], np.int32))


def num_mappings():
    return len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.usefixtures("native_library")
def test_tables_that_begin_with_one_id_take_no_mapping_a_row():
    """A process may have some 65,000. A checkpoint is written in every phase, and read while the tables grow."""
    spec = replace(spec_of(1, SAME[:1], LazyAdamOptions()), embedding_dim=2)
    tables, before, size = native_tables(spec), num_mappings(), 1
    while size < 2_000_000:
        batch = np.arange(size, dtype=np.int32)[-200_000:, None]
        gradients = RowGradients(np.ones((len(batch), 2), np.float32), np.ones(len(batch), np.float32))
        tables.update(tables.unique(batch), gradients)
        expected = tables.state()
        snapshot = tables.snapshot(changed_only=False)
        size = size * 2 + 1
        tables.grow(size)
        tables.update(tables.unique(batch), gradients)
        for table, rows in snapshot.tables.items():
            for name, values in expected[table].arrays.items():
                np.testing.assert_array_equal(rows.read(name, slice(None)), values)
        snapshot.release(saved=True)
    assert num_mappings() - before < 200


@pytest.mark.parametrize("fields", [SAME, APART], ids=["same", "apart"])
@pytest.mark.parametrize(("kind", "size"), [("reference", 40), ("native", 40), ("native", 60_000)])
def test_removed_rows_begin_anew_and_renumbered_ones_stay_what_they_are(kind, size, fields):
    """Against tables that took the same steps of the rows that are left alone, under the ids that they have at the end.

    Initial rows are those of ids, so these are all 0 here.
    """
    rng, before = np.random.default_rng(size), size + 5
    for deep, ema_decay in ((LazyAdamOptions(), 0.0), (LazyAdamOptions(), 0.9), (FtrlOptions(), 0.0)):
        spec = replace(spec_of(before, fields, deep, ema_decay), initial_scale=0.0)
        lives, expected = make(kind, spec), make(kind, replace(spec, vocabulary_size=size))
        is_removed = rng.random(before) < 0.3
        kept = np.flatnonzero(~is_removed)[: size - 2]
        new_ids = np.full(before, -1)
        new_ids[kept] = rng.permutation(size)[: len(kept)]
        for moment in range(8):
            ids = np.minimum(rng.integers(0, before, (200, 2)), rng.integers(0, before, (200, 2)))
            gradients = rng.normal(0, 0.1, (200, 8)).astype(np.float32), rng.normal(0, 0.1, 200).astype(np.float32)
            counts = (new_ids[ids] >= 0).all(axis=1) & (moment != 5)
            chosen = ids if moment < 5 else ids[counts]
            if moment >= 5:
                gradients = tuple(each[counts] for each in gradients)
            if moment == 5:
                lives.remove(np.setdiff1d(np.arange(before), kept))
                expected = make(kind, replace(spec, vocabulary_size=before))
                with expected.loading(lives.step) as place:
                    for table, state in lives.state().items():
                        assert not is_removed[state.row_ids].any()
                        for name, values in state.arrays.items():
                            place(table, state.row_ids)(name, values)
            for tables in (lives, expected) if moment >= 5 else (lives,):
                tables.update(tables.unique(chosen.astype(np.int32)), RowGradients(*gradients))
        assert_equal_states(lives.state(), expected.state())
        lives.renumber(new_ids, size)
        for table, state in expected.state().items():
            order = np.argsort(new_ids[state.row_ids])
            found = lives.state()[table]
            np.testing.assert_array_equal(found.row_ids, new_ids[state.row_ids][order])
            for name, values in state.arrays.items():
                np.testing.assert_array_equal(found.arrays[name], values[order])
        with pytest.raises(ValueError, match="ascend"):
            lives.renumber(np.zeros(size, np.int64), size)
        with pytest.raises(ValueError, match="id"):
            lives.unique(np.full((1, 2), size, np.int32))
        with pytest.raises(ValueError, match="outside"):
            lives.remove(np.array([size]))


def test_rows_that_several_processes_own_do_not_grow():
    with pytest.raises(ValueError, match="train online in one process"):
        ShardedTables.grow(object.__new__(ShardedTables), 10)
    for refused in (ShardedTables.remove, lambda tables, ids: ShardedTables.renumber(tables, ids, 1)):
        with pytest.raises(ValueError, match="train online in one process"):
            refused(object.__new__(ShardedTables), np.zeros(1, np.int64))
