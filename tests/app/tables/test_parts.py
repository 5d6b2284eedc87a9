"""Tables whose wide and deep part see different fields, against tables of each part's fields alone."""

import dataclasses

import numpy as np
import pytest

from app.config.optimizer_settings import AdagradOptions, AdamOptions, LazyAdamOptions, SgdOptions
from app.tables.backends import make_host_tables
from app.tables.checks import load_state
from app.tables.fields import TableField
from app.tables.interface import DEEP, WIDE, RowGradients
from tests.app.tables.job_in_threads import JobInThreads
from tests.app.tables.tables_of_spec import constant_rates, reference_tables

PARTS = {
    "crosses": ("wd", "wd", "w"),
    "apart": ("w", "d", "w"),
    "no deep": ("w", "w", ""),
    "no wide": ("d", "d", "d"),
}


def parts_spec(spec, seen):
    fields = tuple(TableField(f"C{i + 1}", "w" in parts, "d" in parts) for i, parts in enumerate(seen))
    return dataclasses.replace(spec, fields=fields)


def ranks_of_spec(backend, servers):
    return lambda spec: JobInThreads(spec, constant_rates(spec), backend, 2, servers)


def tables_of_spec(backend):
    return lambda spec: make_host_tables(backend, spec, constant_rates(spec), 2)


MAKERS = {
    **{backend: tables_of_spec(backend) for backend in ("native", "reference")},
    "ranks": ranks_of_spec("native", 0),
    "server": ranks_of_spec("reference", 1),
}


class Alone:
    """The definition: reference tables of all rows over each part's columns, of which the other table is ignored."""

    def __init__(self, spec):
        self.spec = spec
        self.columns = {table: spec.columns_of(table) for table in (WIDE, DEEP)}
        self.tables = {}
        for table, columns in self.columns.items():
            fields = tuple(TableField(spec.field_names[place]) for place in columns)
            self.tables[table] = reference_tables(dataclasses.replace(spec, fields=fields))

    def lookup(self, ids):
        rows = {table: part.lookup(part.unique(ids[:, self.columns[table]])) for table, part in self.tables.items()}
        deep = rows[DEEP].deep if self.columns[DEEP] else np.zeros((len(ids), self.spec.embedding_dim), np.float32)
        return deep, rows[WIDE].wide, rows[DEEP].squared_norm

    def update(self, ids, gradients):
        for table, part in self.tables.items():
            shape = len(ids), len(self.columns[table]) * self.spec.embedding_dim
            deep = gradients.deep if table == DEEP and self.columns[DEEP] else np.zeros(shape, np.float32)
            part.update(part.unique(ids[:, self.columns[table]]), dataclasses.replace(gradients, deep=deep))

    def state(self):
        return {table: part.state()[table] for table, part in self.tables.items()}


def assert_equal_states(found, expected):
    assert found.keys() == expected.keys()
    for table, saved in expected.items():
        np.testing.assert_array_equal(found[table].row_ids, saved.row_ids, table)
        assert found[table].arrays.keys() == saved.arrays.keys()
        for name, array in saved.arrays.items():
            np.testing.assert_array_equal(found[table].arrays[name].view(np.int32), array.view(np.int32), name)


def random_step(spec, rng, batch=7):
    """Ids of few rows, and gradients that add up exactly in any order."""
    ids = (rng.random((batch, len(spec.fields))) ** 3 * spec.vocabulary_size).astype(np.int32)
    shape = batch, len(spec.deep_names) * spec.embedding_dim
    deep, wide = (rng.integers(-4, 5, size).astype(np.float32) / 8 for size in (shape, batch))
    return ids, RowGradients(deep, wide, 0.5)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("seen", PARTS)
@pytest.mark.parametrize(
    "optimizers",
    [{}, {"wide": SgdOptions(), "deep": AdamOptions()}, {"wide": AdagradOptions(), "deep": AdagradOptions()}],
    ids=("default", "adam", "adagrad"),
)
def test_each_part_learns_its_own_fields_alone(native_library, make_spec, maker, seen, optimizers):
    spec, rng = parts_spec(make_spec(**optimizers), PARTS[seen]), np.random.default_rng(1)
    tables, alone = MAKERS[maker](spec), Alone(spec)
    for _ in range(3):
        ids, gradients = random_step(spec, rng)
        unique = tables.unique(ids)
        rows, expected = tables.lookup(unique), alone.lookup(ids)
        np.testing.assert_array_equal(rows.deep, expected[0])
        np.testing.assert_array_equal(rows.wide, expected[1])
        assert rows.squared_norm == pytest.approx(expected[2], rel=1e-12, abs=0)
        tables.update(unique, gradients)
        alone.update(ids, gradients)
    assert tables.step == 3
    assert_equal_states(tables.state(), alone.state())


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_snapshots_and_loads_keep_the_rows_of_both_parts(native_library, make_spec, backend):
    spec, rng = parts_spec(make_spec(deep=LazyAdamOptions()), PARTS["crosses"]), np.random.default_rng(2)
    tables, other = MAKERS[backend](spec), MAKERS[backend](spec)
    for _ in range(2):
        ids, gradients = random_step(spec, rng)
        tables.update(tables.unique(ids), gradients)
    tables.snapshot(changed_only=False).release(saved=True)
    before = tables.state()
    ids, gradients = random_step(spec, rng, batch=1)
    tables.update(tables.unique(ids), gradients)
    changed = tables.snapshot(changed_only=True)
    assert changed.tables[WIDE].row_ids.tolist() == np.unique(ids).tolist()
    assert changed.tables[DEEP].row_ids.tolist() == np.unique(ids[:, :2]).tolist()
    changed.release(saved=False)
    load_state(other, before, 2)
    other.update(other.unique(ids), gradients)
    assert_equal_states(other.state(), tables.state())
    with pytest.raises(ValueError, match="batch row 0, field C3: id 50 is outside 0 … 49"):
        tables.unique(np.array([[0, 1, 50]]))
    with pytest.raises(FloatingPointError, match="deep gradient of batch row 0, field C2 is nan; no row was updated"):
        gradients.deep[0, -1] = np.nan
        tables.update(tables.unique(ids), gradients)
    assert_equal_states(other.state(), tables.state())


def test_a_load_that_fails_leaves_both_parts_empty(make_spec):
    spec = parts_spec(make_spec(), PARTS["crosses"])
    tables = MAKERS["reference"](spec)
    with pytest.raises(ValueError, match="wide accumulator of row 3 is -1"), tables.loading(5) as write:
        write(DEEP, "rows", np.array([1]), np.ones((1, 5), np.float32))
        write(WIDE, "accumulator", np.array([3]), -np.ones((1, 1), np.float32))
    assert [rows.row_ids.size for rows in tables.state().values()] == [0, 0]
    assert tables.step == 0
