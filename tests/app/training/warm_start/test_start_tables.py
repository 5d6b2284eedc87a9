"""Rows and states that a warm start takes or refuses. Any order of steps, with warm starts: test_state_machine.py."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from app.checkpoint.write import ModelState
from app.config.config import ModelOptions
from app.config.optimizer_settings import AdagradOptions, FtrlOptions, LazyAdamOptions, SgdOptions
from app.tables.fields import TableField
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, WIDE, RowGradients, TablesSpec, TableState
from app.tables.reference import ReferenceTables
from app.training.learning_rates import LearningRates
from app.training.warm_start import take_over
from app.training.warm_start.source import InitialTable, Source
from app.training.warm_start.take_over import take_rows
from data_prep.prepared.schema import CategoricalField

V, D = 17, 5
FTRL = FtrlOptions(learning_rate=0.2, l1=1e-3, l2=1e-2, initial_accumulator=0.5)


def make_spec(wide, deep):
    return TablesSpec(V, D, (TableField("C1"),), 7, 0.01, 0.0, wide, deep)


def reference_tables(spec):
    """Tables with their learning rates as `tables.rates`."""
    rates = LearningRates({WIDE: spec.wide_optimizer, DEEP: spec.deep_optimizer})
    tables = ReferenceTables(spec, rates.of_tables())
    tables.rates = rates
    return tables


def make_source(wide, deep):
    """The state of tables after a step on some rows with these optimizers."""
    tables, row_ids = reference_tables(make_spec(wide, deep)), np.arange(9)[:, None]
    tables.update(tables.unique(row_ids), RowGradients(np.ones((9, D), np.float32), np.ones(9, np.float32)))
    return tables.state()


def as_source(state):
    return Source("source", ModelState({}, state), None, (TableField("C1"),), folded=True, steps=30)


def warm(tables, source, init_optimizer):
    """`tables` after a warm start."""
    config = SimpleNamespace(
        train=SimpleNamespace(init_take="all", init_optimizer=init_optimizer), model=ModelOptions()
    )
    schema = SimpleNamespace(num_numeric=0, vocabulary_size=V, categorical=(CategoricalField("C1", (0, V), ()),))
    take_rows(tables.loading, tables.spec, tables.rates, config, schema, source)
    return tables


def test_the_memory_of_another_optimizer_is_refused_and_its_rows_are_taken():
    source = as_source(make_source(FTRL, AdagradOptions()))
    tables = reference_tables(make_spec(FTRL, LazyAdamOptions()))
    message = r"source: deep table has rows .*accumulator .*, expected .* first_moment .*; train\.init_optimizer=false"
    with pytest.raises(ValueError, match=message):
        warm(tables, source, init_optimizer=True)
    assert tables.state()[DEEP].row_ids.size == 0
    warm(tables, source, init_optimizer=False)
    assert tables.state()[DEEP].row_ids.size > 0


def test_rows_of_another_width_are_refused():
    tables = reference_tables(dataclasses.replace(make_spec(FTRL, SgdOptions()), embedding_dim=D - 1))
    message = r"deep table has rows \(float32, 5 wide\), expected rows \(float32, 4 wide\)$"
    with pytest.raises(ValueError, match=message):
        warm(tables, as_source(make_source(FTRL, SgdOptions())), init_optimizer=False)


@pytest.mark.parametrize("most", [3, 2])
def test_untouched_rows_are_taken_up_to_a_size(monkeypatch, caplog, most):
    """Here of another seed, and beside two rows that were touched."""
    monkeypatch.setattr(take_over, "UNTOUCHED_BYTES", most * 4 * D)
    ids, spec, widths = np.arange(2), make_spec(FTRL, SgdOptions()), {WIDE: 1, DEEP: D}
    state = {table: TableState(ids, {"rows": np.ones((2, width), np.float32)}) for table, width in widths.items()}
    origins = np.where(np.arange(V) < 5, np.arange(V), -1)
    source = dataclasses.replace(
        as_source(state), own_initial=True, origins=origins, untouched=lambda row_ids: initial_table(row_ids, spec)
    )
    found = warm(reference_tables(spec), source, init_optimizer=False).state()[DEEP]
    if most == 3:
        assert found.row_ids.tolist() == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(found.arrays["rows"][2:], initial_rows(8, np.arange(2, 5), D, 0.02))
        assert not caplog.records
    else:
        assert found.row_ids.tolist() == [0, 1]
        assert "warning: source: 3 deep rows that no step of it touched begin anew" in caplog.text


def initial_table(row_ids, spec):
    return InitialTable(row_ids, spec.deep_optimizer, spec.layout(DEEP), 8, 0.02)
