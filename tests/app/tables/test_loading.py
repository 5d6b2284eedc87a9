"""Rows written into empty tables, array by array: what is not written has its initial value."""

import numpy as np
import pytest

from app.schedules import StepSchedule
from app.tables.interface import DEEP, WIDE
from app.tables.native import NativeTables
from app.tables.optimizer_options import (
    AdagradOptions,
    AdamOptions,
    FtrlOptions,
    LazyAdamOptions,
    RowwiseAdagradOptions,
    SgdOptions,
)
from app.tables.reference import ReferenceTables

DEEP_OPTIMIZERS = [
    LazyAdamOptions(),
    AdamOptions(),
    AdagradOptions(initial_accumulator=0.5),
    RowwiseAdagradOptions(initial_accumulator=0.25),
    FtrlOptions(schedule=StepSchedule()),
]
WIDE_OPTIMIZERS = [FtrlOptions(), AdagradOptions(initial_accumulator=0.1), SgdOptions()]


def random_writes(spec, rng):
    """Some arrays of some rows, in pieces: table, name, row ids and values."""
    for table in (WIDE, DEEP):
        for name, (dtype, width) in spec.layout(table).items():
            for _ in range(rng.integers(0, 3)):
                row_ids = np.flatnonzero(rng.random(spec.vocabulary_size) < 0.2)
                values = rng.integers(1, 9, (row_ids.size, width)).astype(dtype)
                yield table, name, row_ids, values


@pytest.mark.parametrize("embedding_dim", [5, 16])
@pytest.mark.parametrize("wide", WIDE_OPTIMIZERS, ids=lambda options: options.name)
@pytest.mark.parametrize("deep", DEEP_OPTIMIZERS, ids=lambda options: options.name)
def test_what_is_not_written_is_initial(
    native_library, make_spec, assert_same_state, random_ids, random_gradients, deep, wide, embedding_dim
):
    spec = make_spec(300, embedding_dim, wide=wide, deep=deep)
    for seed in range(6):
        tables, rng = (NativeTables(spec, num_threads=2), ReferenceTables(spec)), np.random.default_rng(seed)
        writes = list(random_writes(spec, rng))
        ids, gradients = random_ids(spec, 20, rng), random_gradients(spec, 20, rng)
        for each in tables:
            each.update(each.unique(ids), gradients)  # to be forgotten
            with each.loading(step=4) as write:
                for arguments in writes:
                    write(*arguments)
        assert_same_state(*tables)
        for each in tables:
            each.update(each.unique(ids), gradients)
        assert_same_state(*tables)


@pytest.mark.parametrize("embedding_dim", [5, 16])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_wherever_it_is(make_tables, make_spec, bad, embedding_dim):
    tables = make_tables(make_spec(embedding_dim=embedding_dim))
    row_ids = np.arange(3, 40)
    for table, width in ((WIDE, 1), (DEEP, embedding_dim)):
        for row, column in ((0, 0), (17, width // 2), (36, width - 1)):
            values = np.ones((row_ids.size, width), np.float32)
            values[row, column] = bad
            with (
                pytest.raises(ValueError, match=f"{table} rows of row {row_ids[row]} is"),
                tables.loading(step=1) as write,
            ):
                write(table, "rows", row_ids, values)
            assert tables.state()[table].row_ids.size == 0 and tables.step == 0


def test_values_may_lie_anywhere_in_memory(make_tables, make_spec):
    """A file's header may have any length."""
    tables = make_tables(make_spec(embedding_dim=16))
    block, row_ids = np.zeros(1 + 4 * 16 * 7, np.uint8), np.arange(7)
    values = block[1:].view(np.float32).reshape(7, 16)
    values[:] = np.arange(7)[:, None]
    with tables.loading(step=1) as write:
        write(DEEP, "rows", row_ids, values)
    np.testing.assert_array_equal(tables.state()[DEEP].arrays["rows"], values)
