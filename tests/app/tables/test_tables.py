"""The contract of `HostTables`, for each backend that keeps its tables outside a graph."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from app.config.optimizer_settings import AdamOptions, FtrlOptions, StepSchedule
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, STATE_ARRAYS, WIDE, RowGradients, TableState
from app.tables.native import tables as native_module
from app.tables.rounding import nearest
from tests.app.tables.tables_of_spec import assert_equal_states, load_state, native_tables

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


@pytest.mark.parametrize(("embedding_dim", "dtype"), [(5, "float32"), (16, "float32"), (16, "bfloat16")])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_wherever_it_is(make_tables, make_spec, bad, embedding_dim, dtype):
    tables = make_tables(make_spec(embedding_dim=embedding_dim, dtype=dtype))
    row_ids = np.arange(3, 40)
    for table, width in ((WIDE, 1), (DEEP, embedding_dim)):
        for row, column in ((0, 0), (17, width // 2), (36, width - 1)):
            values = nearest(np.ones((row_ids.size, width), np.float32), tables.spec.layout(table)["rows"].dtype)
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


def read_all(snapshot):
    """The snapshot as the state that it stands for."""
    return {
        table: TableState(part.row_ids, {name: part.read(name, slice(None)).copy() for name in part.layout})
        for table, part in snapshot.tables.items()
    }


def test_a_snapshot_is_released_before_the_next_one_and_before_a_load(make_tables, make_spec, run_steps):
    """Both would free the rows that its reader has not come to."""
    tables = make_tables(make_spec(vocabulary_size=400))
    run_steps(tables, 2, seed=1)
    before = tables.state()
    snapshot = tables.snapshot(changed_only=False)
    with pytest.raises(RuntimeError, match="a snapshot of the tables is open: release it"):
        tables.snapshot(changed_only=True)
    with pytest.raises(RuntimeError, match="a snapshot of the tables is open: release it"):
        load_state(tables, before, tables.step)
    run_steps(tables, 1, seed=2)
    assert_equal_states(read_all(snapshot), before)
    snapshot.release(saved=True)
    load_state(tables, before, tables.step)
    assert_equal_states(read_all(tables.snapshot(changed_only=False)), before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reading_beside_updates_never_sees_half_of_one(native_library, make_spec, run_steps, dtype):
    """The reader goes over the rows again and again while a thread updates them: in some reads there are updates."""
    tables = native_tables(make_spec(vocabulary_size=2000, embedding_dim=80, dtype=dtype), 2)
    run_steps(tables, 3, seed=1, batch=400)
    enough = threading.Event()

    def update():
        while not enough.is_set():
            run_steps(tables, 1, seed=tables.step, batch=400)

    for number in range(6):
        expected, reads_beside, give_up = tables.state(), 0, time.monotonic() + 60
        snapshot = tables.snapshot(changed_only=False)
        if number % 2:
            snapshot.awaited.set()  # read by all threads
        enough.clear()
        updates = threading.Thread(target=update)
        updates.start()
        try:
            while reads_beside < 3:
                assert time.monotonic() < give_up
                step = tables.step
                assert_equal_states(read_all(snapshot), expected)
                reads_beside += tables.step > step
        finally:
            enough.set()
            updates.join()
        assert_equal_states(read_all(snapshot), expected)
        snapshot.release(saved=True)


def test_where_no_row_can_be_kept_the_update_waits_for_the_release(
    native_library, make_spec, run_steps, monkeypatch, caplog
):
    tables = native_tables(make_spec(), 1)
    run_steps(tables, 1, seed=1)
    before = tables.state()
    snapshot = tables.snapshot(changed_only=False)
    monkeypatch.setattr(native_module, "require_memory", refuse_memory)
    updates = threading.Thread(target=run_steps, args=(tables, 1, 2))
    updates.start()
    assert snapshot.awaited.wait(10)
    assert_equal_states(read_all(snapshot), before)
    snapshot.release(saved=True)
    updates.join(10)
    assert tables.step == 2
    assert "waiting for it" in caplog.text
    monkeypatch.undo()
    assert tables.snapshot(changed_only=True).tables[DEEP].row_ids.size > 0


def refuse_memory(num_bytes, purpose, reserved_bytes):
    raise MemoryError(purpose)
