"""Functions that make native and reference tables for a `TablesSpec`. Learning rates are constant, as the optimizers'
options give them, unless a test gives other rates.
"""

from typing import get_args

import numpy as np

from app.config.optimizer_settings import (
    AdagradOptions,
    AdamOptions,
    DeepOptimizer,
    FtrlOptions,
    RowwiseAdagradOptions,
    StepSchedule,
    WideOptimizer,
)
from app.tables.checks import check_table, check_values
from app.tables.interface import DEEP, WIDE
from app.tables.native.tables import NativeTables
from app.tables.reference import ReferenceTables


def with_all_of(kinds, *chosen):
    """Return the `chosen` options, and for each other optimizer in the union `kinds` its default options."""
    return [*chosen, *(kind() for kind in get_args(kinds) if kind not in map(type, chosen))]


DEEP_OPTIMIZERS = with_all_of(
    DeepOptimizer,
    AdamOptions(learning_rate=1e-3),
    AdamOptions(beta1=0.0, beta2=0.0),
    AdagradOptions(initial_accumulator=0.5),
    RowwiseAdagradOptions(initial_accumulator=0.25),
    FtrlOptions(l1=1e-3),
    FtrlOptions(l1=1e-3, schedule=StepSchedule()),
)
WIDE_OPTIMIZERS = with_all_of(
    WideOptimizer, FtrlOptions(), FtrlOptions(schedule=StepSchedule()), AdagradOptions(initial_accumulator=0.1)
)


def constant_rates(spec):
    return {WIDE: lambda step: spec.wide_optimizer.learning_rate, DEEP: lambda step: spec.deep_optimizer.learning_rate}


def native_tables(spec, num_threads=None, **rates):
    """Return native tables. `rates` may give a learning rate for a table, as a function of the step:
    `native_tables(spec, deep=lambda step: 0.1 / step)`.
    """
    return NativeTables(spec, constant_rates(spec) | rates, num_threads)


def reference_tables(spec, **rates):
    return ReferenceTables(spec, constant_rates(spec) | rates)


def load_state(tables, state, step):
    """Load `state`, the rows of each table after `step` steps, into `tables`. Raise an error, before anything is
    changed, if the rows do not fit the tables.
    """
    for table, saved in state.items():
        check_table(table, saved.row_ids, saved.layout, tables.spec)
        for name in saved.layout:
            check_values(table, name, saved.row_ids, saved.read(name, slice(None)), step)
    with tables.loading(step) as place:
        for table, saved in state.items():
            write = place(table, saved.row_ids)
            for name in saved.layout:
                write(name, saved.read(name, slice(None)))


def load_model(parts, state, step):
    """Load `state`, the tables and dense arrays after `step` steps, into the training `parts`."""
    parts.check_dense(state.dense, parts.dense_values())
    load_state(parts.step.tables, state.tables, step)
    parts._take_dense(state.dense, step)


def assert_equal_states(found, expected):
    assert found.keys() == expected.keys()
    for table, saved in expected.items():
        np.testing.assert_array_equal(found[table].row_ids, saved.row_ids, table)
        assert found[table].arrays.keys() == saved.arrays.keys()
        for name, array in saved.arrays.items():
            assert found[table].arrays[name].dtype == array.dtype
            np.testing.assert_array_equal(found[table].arrays[name].view(np.uint8), array.view(np.uint8), name)
