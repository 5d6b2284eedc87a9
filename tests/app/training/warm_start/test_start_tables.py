"""Rows and states that a warm start takes or refuses. Any order of steps, with warm starts: test_state_machine.py."""

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest

from app.checkpoint.write import ModelState, write_checkpoint
from app.config.config import Config, LossOptions, ModelOptions, TrainOptions
from app.config.optimizer_settings import AdagradOptions, AdamOptions, FtrlOptions, LazyAdamOptions, SgdOptions
from app.config.schedules import CosineSchedule
from app.tables.fields import TableField
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, WIDE, RowGradients, TablesSpec, TableState
from app.tables.reference import ReferenceTables
from app.training.learning_rates import LearningRate, LearningRates, table_learning_rates, table_spec
from app.training.warm_start import start_tables as warm_start_tables
from app.training.warm_start.source import InitialTable, Source, open_source
from app.training.warm_start.start_tables import take_rows
from data_prep.prepared.schema import CategoricalField, Schema, Split
from tests.checkpoints import run_manifest

V, D = 17, 5
FIELD = CategoricalField("C1", (0, 1), ((1, V),))
SCHEMA = Schema(1, (), (FIELD,), V, "int32", 1, {"train": Split(0, 0, ())}, 0, {}, {}, ())
FTRL = FtrlOptions(learning_rate=0.2, l1=1e-3, l2=1e-2, initial_accumulator=0.5)
FALLING = dataclasses.replace(FTRL, schedule=CosineSchedule(warmup_steps=10, decay_steps=15, final_factor=0.02))


def make_spec(wide, deep):
    return TablesSpec(V, D, (TableField("C1"),), 7, 0.01, 0.0, wide, deep)


def reference_tables(spec):
    """Tables with their learning rates as `tables.rates`."""
    options = {WIDE: spec.wide_optimizer, DEEP: spec.deep_optimizer}
    rates = LearningRates({table: LearningRate(each.learning_rate, each.schedule) for table, each in options.items()})
    tables = ReferenceTables(spec, table_learning_rates(rates, spec.deep_optimizer))
    tables.rates = rates
    return tables


def zero_step(tables, row_ids):
    gradients = RowGradients(np.zeros((row_ids.size, D), np.float32), np.zeros(row_ids.size, np.float32))
    tables.update(tables.unique(row_ids[:, None]), gradients)


def train(tables):
    """Take 30 steps, each on some of the rows but the last three."""
    rng = np.random.default_rng(5)
    for _ in range(30):
        row_ids = np.unique(rng.integers(0, V - 3, 12))
        shapes = (row_ids.size, D), row_ids.size
        gradients = RowGradients(*(rng.standard_normal(shape, np.float32) * np.float32(0.3) for shape in shapes))
        tables.update(tables.unique(row_ids[:, None]), gradients)
    return tables


@functools.cache
def make_source(wide, deep):
    """The state of tables that were trained with these optimizers."""
    return train(reference_tables(make_spec(wide, deep))).state()


def as_source(state):
    return Source("source", ModelState({}, state), None, (TableField("C1"),), folded=True, steps=30)


def warm(tables, source, init_optimizer):
    """`tables` after a warm start."""
    config = SimpleNamespace(
        train=SimpleNamespace(init_take="all", init_optimizer=init_optimizer),
        model=ModelOptions(),
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


@pytest.mark.parametrize("options", [FTRL, FALLING], ids=["constant", "scheduled"])
def test_the_memory_of_the_same_ftrl_is_taken_as_it_is(options):
    state = make_source(options, options)
    found = warm(reference_tables(make_spec(options, options)), as_source(state), init_optimizer=True).state()
    for table, saved in state.items():
        for name, array in saved.arrays.items():
            np.testing.assert_array_equal(found[table].arrays[name], array, f"{table} {name}")


def test_weights_at_the_edge_of_what_l1_holds_at_zero():
    """Tiny weights stay to l1's rounding, those of 0 stay 0 and keep their gathered gradients within the new l1."""
    options = FtrlOptions(learning_rate=0.1, l1=0.5, l2=0.0)
    rows = np.array([[1e-3], [-1e-6], [1e-12], [0.0], [0.0], [0.0]], np.float32)
    linear = np.array([[9], [9], [9], [0.2], [-7.0], [7.0]], np.float32)  # the last three from an l1 of 10
    arrays = {"rows": rows, "accumulator": np.full_like(rows, 4.0), "linear": linear}
    ids = np.arange(6)
    state = {WIDE: TableState(ids, arrays), DEEP: TableState(ids, {"rows": np.ones((6, D), np.float32)})}
    tables = warm(reference_tables(make_spec(options, SgdOptions())), as_source(state), init_optimizer=True)
    found = tables.state()[WIDE].arrays["linear"][3:, 0]
    np.testing.assert_array_equal(found, np.array([0.2, -0.5, 0.5], np.float32))
    zero_step(tables, ids)
    np.testing.assert_allclose(tables.state()[WIDE].arrays["rows"], rows, rtol=1e-6, atol=6e-8 * 0.5 / 20)


@pytest.mark.parametrize("init_optimizer", [False, True])
def test_rows_of_adam_come_as_they_are_after_the_last_step(tmp_path, init_optimizer):
    """L2 has moved rows since their own last step, and those that no step touched."""
    config = Config(
        model=ModelOptions(embedding_dim=D),
        loss=LossOptions(l2_coef=0.1),
        wide_optimizer=SgdOptions(),
        deep_optimizer=AdamOptions(learning_rate=0.01),
        train=TrainOptions(init_from=str(tmp_path / "step-00000030"), init_optimizer=init_optimizer),
    )
    spec = table_spec(config, SCHEMA)
    trained, found = train(reference_tables(spec)), reference_tables(spec)
    write_checkpoint(tmp_path, ModelState({}, trained.state()), run_manifest(30, config, SCHEMA, ""))
    take_rows(found.loading, spec, found.rates, config, SCHEMA, open_source(config, SCHEMA, tmp_path))
    rows, expected = (each.lookup(each.unique(np.arange(1, V)[:, None])).deep for each in (found, trained))
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("most", [3, 2])
def test_untouched_rows_are_taken_up_to_a_size(monkeypatch, caplog, most):
    """Here of another seed, and beside two rows that were touched."""
    monkeypatch.setattr(warm_start_tables, "UNTOUCHED_BYTES", most * 4 * D)
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
