"""Tables that grow at random moments have the bits of tables that had all ids from the beginning."""

import numpy as np
import pytest

from app.config.optimizer_settings import AdamOptions, FtrlOptions, LazyAdamOptions
from app.distributed.sharded_tables import ShardedTables
from app.tables.fields import TableField
from app.tables.interface import RowGradients, TablesSpec
from app.tables.parts import PartTables
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


def test_rows_that_several_processes_own_do_not_grow():
    with pytest.raises(ValueError, match="train online in one process"):
        ShardedTables.grow(object.__new__(ShardedTables), 10)
