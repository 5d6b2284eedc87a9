"""The contract of `HostTables`, for each backend that keeps its tables outside a graph."""

import dataclasses

import numpy as np
import pytest

from app.tables.initial import initial_rows
from app.tables.interface import DEEP, STATE_ARRAYS, WIDE, RowGradients, TableState
from tests.app.tables.tables_of_spec import load_state

IDS = np.array([[4, 9, 4], [9, 9, 0], [49, 4, 30]], np.int32)


@pytest.fixture
def trained(make_tables, make_spec, random_gradients):
    """Tables after three steps, and their spec."""
    spec, rng = make_spec(), np.random.default_rng(1)
    tables = make_tables(spec)
    for _ in range(3):
        tables.update(tables.unique(IDS), random_gradients(spec, len(IDS), rng))
    return tables


def test_untouched_rows_have_their_initial_values(make_tables, make_spec):
    spec = make_spec()
    tables = make_tables(spec)
    rows = tables.lookup(tables.unique(IDS))
    expected = initial_rows(spec.seed, IDS.reshape(-1), spec.embedding_dim, spec.initial_scale)
    np.testing.assert_array_equal(rows.deep, expected.reshape(3, -1))
    np.testing.assert_array_equal(rows.wide, np.zeros(3, np.float32))
    unique_rows = initial_rows(spec.seed, np.unique(IDS), spec.embedding_dim, spec.initial_scale)
    assert rows.squared_norm == pytest.approx(np.square(unique_rows, dtype=np.float64).sum(), rel=1e-12)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([[0, 1, 2], [3, 50, 4]]), "batch row 1, field C2: id 50 is outside 0 … 49"),
        (np.array([[0, 1, -1]], np.int32), "batch row 0, field C3: id -1 is outside"),
        (np.array([[0, 2**40, 1]]), f"batch row 0, field C2: id {2**40} is outside"),
        (np.array([[0.0, 1.0, 2.0]]), "int32 or int64 array, found float64"),
        (np.array([[0, 1, 2]], np.uint32), "int32 or int64 array, found uint32"),
        ([[0, 1, 2]], "int32 or int64 array, found list"),
        (np.array([[0, 1]]), r"shape \[batch, 3\], found \[1, 2\]"),
        (np.array([0, 1, 2]), r"shape \[batch, 3\], found \[3\]"),
    ],
)
def test_bad_ids_are_refused_by_row_field_and_id(trained, make_tables, assert_same_state, ids, message):
    before = trained.state()
    with pytest.raises(ValueError, match=message):
        trained.unique(ids)
    same = make_tables(trained.spec)
    load_state(same, before, trained.step)
    assert_same_state(trained, same)


def with_value(spec, table, place, value):
    deep = np.ones((len(IDS), len(spec.field_names) * spec.embedding_dim), np.float32)
    gradients = RowGradients(deep, np.ones(len(IDS), np.float32))
    getattr(gradients, table)[place] = value
    return gradients


@pytest.mark.parametrize(
    ("table", "place", "value", "message"),
    [
        (DEEP, (2, 7), np.nan, "deep gradient of batch row 2, field C2 is nan"),
        (DEEP, (0, 14), np.inf, "deep gradient of batch row 0, field C3 is inf"),
        (WIDE, 1, -np.inf, "wide gradient of batch row 1 is -inf"),
        (DEEP, (2, 7), 2.0**70, "deep gradient of batch row 2, field C2 is 1.18"),
        (WIDE, 1, -(2.0**60), "wide gradient of batch row 1 is -1.15"),
    ],
)
def test_gradients_that_are_not_finite_change_nothing(
    trained, make_tables, assert_same_state, table, place, value, message
):
    before = trained.state()
    with pytest.raises(FloatingPointError, match=message):
        trained.update(trained.unique(IDS + 1 - IDS // 49), with_value(trained.spec, table, place, value))
    same = make_tables(trained.spec)
    load_state(same, before, 3)
    assert_same_state(trained, same)


def test_checked_gradients_are_not_checked_again(trained):
    trained.update(trained.unique(IDS), with_value(trained.spec, WIDE, 0, np.nan), checked=True)
    assert np.isnan(trained.state()[WIDE].arrays["linear"]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"deep": np.ones((3, 14), np.float32)}, r"deep gradients must be float32 \[3, 15\], found float32 \[3, 14\]"),
        ({"deep": np.ones((3, 15))}, "found float64"),
        ({"wide": np.ones((3, 1), np.float32)}, r"wide gradients must be float32 \[3\]"),
        ({"wide": None}, "found NoneType"),
        ({"scale": np.inf}, "scale of the row gradients must be finite"),
    ],
)
def test_gradients_that_do_not_fit_the_batch_are_refused(trained, change, message):
    gradients = dataclasses.replace(with_value(trained.spec, WIDE, 0, 1), **change)
    with pytest.raises(ValueError, match=message):
        trained.update(trained.unique(IDS), gradients)
    assert trained.step == 3


def test_gradients_need_not_be_contiguous(make_tables, make_spec, random_gradients, assert_same_state):
    spec = make_spec()
    plain, strided = make_tables(spec), make_tables(spec)
    gradients = random_gradients(spec, 3, np.random.default_rng(0))
    plain.update(plain.unique(IDS), gradients)
    columns = RowGradients(np.asfortranarray(gradients.deep), np.repeat(gradients.wide, 2)[::2])
    strided.update(strided.unique(np.asfortranarray(IDS)), columns)
    assert_same_state(strided, plain)


def test_state_is_a_copy(trained):
    before = trained.state()[DEEP].arrays["rows"].copy()
    trained.state()[DEEP].arrays["rows"][:] = 0
    np.testing.assert_array_equal(trained.state()[DEEP].arrays["rows"], before)


def one_row_state(row_id=3, value=1.0, width=5):
    arrays = {name: np.full((1, width), value, np.float32) for name in STATE_ARRAYS[DEEP]}
    return TableState(np.array([row_id]), arrays)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"middle": one_row_state()}, "unknown table 'middle'"),
        ({DEEP: one_row_state(row_id=50)}, "from 50 to 50, outside 0 … 49"),
        ({DEEP: one_row_state(row_id=-1)}, "outside"),
        ({DEEP: one_row_state(width=4)}, r"deep rows must be float32 \[1, 5\]"),
        ({DEEP: one_row_state(value=np.nan)}, "deep rows of row 3 is nan"),
        ({DEEP: TableState(np.array([3, 3]), {})}, "must ascend without repetition"),
        ({DEEP: TableState(np.array([3.0]), {})}, "row_ids must be int64"),
        ({WIDE: one_row_state(width=1)}, "wide state must have the arrays rows, accumulator, linear"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(trained, make_tables, assert_same_state, state, message):
    same = make_tables(trained.spec)
    load_state(same, trained.state(), trained.step)
    with pytest.raises(ValueError, match=message):
        load_state(trained, state, step=9)
    assert_same_state(trained, same)
