"""Snapshots of the tables, for each backend: rows as they were, and which rows changed."""

import threading
import time

import pytest

from app.tables.interface import DEEP, TableState
from app.tables.native import tables as native_module
from tests.app.tables.tables_of_spec import assert_equal_states, load_state, native_tables


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


def test_reading_beside_updates_never_sees_half_of_one(native_library, make_spec, run_steps):
    """The reader goes over the rows again and again while a thread updates them: in some reads there are updates."""
    tables = native_tables(make_spec(vocabulary_size=2000, embedding_dim=80), 2)
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
