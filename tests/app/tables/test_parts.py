"""Tables whose wide and deep part see different fields, against tables of each part's fields alone."""

import dataclasses

import numpy as np
import pytest

from app.config.optimizer_settings import LazyAdamOptions
from app.tables.backends import make_host_tables
from app.tables.checks import load_state
from app.tables.fields import TableField
from app.tables.interface import DEEP, WIDE, RowGradients
from tests.app.tables.job_in_threads import JobInThreads
from tests.app.tables.tables_of_spec import assert_equal_states, constant_rates

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


def random_step(spec, rng, batch=7):
    """Ids of few rows, and gradients that add up exactly in any order."""
    ids = (rng.random((batch, len(spec.fields))) ** 3 * spec.vocabulary_size).astype(np.int32)
    shape = batch, len(spec.deep_names) * spec.embedding_dim
    deep, wide = (rng.integers(-4, 5, size).astype(np.float32) / 8 for size in (shape, batch))
    return ids, RowGradients(deep, wide, 0.5)


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
    again = tables.snapshot(changed_only=True)
    assert again.tables[WIDE].row_ids.tolist() == changed.tables[WIDE].row_ids.tolist()
    again.release(saved=True)
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
    with pytest.raises(ValueError, match="wide accumulator of row 3 is -1"), tables.loading(5) as place:
        place(DEEP, np.array([1]))("rows", np.ones((1, 5), np.float32))
        place(WIDE, np.array([3]))("accumulator", -np.ones((1, 1), np.float32))
    assert [rows.row_ids.size for rows in tables.state().values()] == [0, 0]
    assert tables.step == 0
