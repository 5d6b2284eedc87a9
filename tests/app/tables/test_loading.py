"""Rows written into empty tables, array by array: what is not written has its initial value."""

import numpy as np
import pytest

from app.config.optimizer_settings import AdamOptions, FtrlOptions, StepSchedule
from app.tables.interface import DEEP, WIDE
from tests.app.tables.tables_of_spec import native_tables


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
                tables.loading(step=1) as place,
            ):
                place(table, row_ids)("rows", values)
            assert tables.state()[table].row_ids.size == 0 and tables.step == 0


IMPOSSIBLE = [
    (WIDE, "accumulator", -1.5, r"-1\.5, expected 0 or more"),
    (WIDE, "last_rate", -0.5, r"-0\.5, expected 0 or more"),
    (DEEP, "second_moment", -2.0, r"-2\.0, expected 0 or more"),
    (DEEP, "last_step", -1, r"-1, expected 0 … 7, the steps taken"),
    (DEEP, "last_step", -(2**31), r"-2147483648, expected 0 … 7, the steps taken"),
    (DEEP, "last_step", 8, r"8, expected 0 … 7, the steps taken"),
]


@pytest.mark.parametrize(("table", "name", "bad", "message"), IMPOSSIBLE)
def test_values_that_no_step_leaves_are_refused(make_tables, make_spec, table, name, bad, message):
    """A crafted last step would have the kernels read before the begin of the steps' learning rates."""
    tables = make_tables(make_spec(wide=FtrlOptions(schedule=StepSchedule()), deep=AdamOptions()))
    dtype, width = tables.spec.layout(table)[name]
    values, row_ids = np.full((37, width), 7, dtype), np.arange(3, 40)
    with tables.loading(step=7) as place:
        place(table, row_ids)(name, values)
    assert (tables.state()[table].arrays[name] == 7).all()
    values[17, -1] = bad
    with pytest.raises(ValueError, match=f"{table} {name} of row 20 is {message}"), tables.loading(step=7) as place:
        place(table, row_ids)(name, values)
    assert tables.state()[table].row_ids.size == 0 and tables.step == 0


@pytest.mark.parametrize("last_step", [-1, -5000, -(2**31)])
def test_the_kernels_stay_within_the_history(native_library, make_spec, random_gradients, last_step):
    """Were such a row there, it would count as one that no step has touched."""
    spec, rng = make_spec(embedding_dim=16, l2_coef=0.1, deep=AdamOptions()), np.random.default_rng(0)
    ids, gradients = np.arange(30).reshape(10, 3), random_gradients(spec, 10, rng)
    wrong, right = (native_tables(spec, num_threads=2) for _ in "12")
    for tables, value in ((wrong, last_step), (right, 0)):
        with tables.loading(step=2000):
            slots = tables._rows.place(np.arange(30))
            tables._rows.write(DEEP, "last_step", np.arange(30), slots, np.full((30, 1), value, np.int32))
    for _ in range(2):
        rows = [tables.lookup(tables.unique(ids)).deep.copy() for tables in (wrong, right)]
        np.testing.assert_array_equal(*rows)
        for tables in (wrong, right):
            tables.update(tables.unique(ids), gradients)


def test_values_may_lie_anywhere_in_memory(make_tables, make_spec):
    """A file's header may have any length."""
    tables = make_tables(make_spec(embedding_dim=16))
    block, row_ids = np.zeros(1 + 4 * 16 * 7, np.uint8), np.arange(7)
    values = block[1:].view(np.float32).reshape(7, 16)
    values[:] = np.arange(7)[:, None]
    with tables.loading(step=1) as place:
        place(DEEP, row_ids)("rows", values)
    np.testing.assert_array_equal(tables.state()[DEEP].arrays["rows"], values)
