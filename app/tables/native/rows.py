"""Manage the touched rows of the native tables: their slots, state arrays and snapshots.

A row is touched once a step has updated it or it was loaded. Only touched rows are stored. A slot is the number of a
row's place in memory. Taking a snapshot only lists the touched rows. A row is copied when it is about to be updated
while the snapshot is open.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from app.tables.checks import check_finite, check_released
from app.tables.interface import Indices, RowArray, TablesSpec
from app.tables.native.library import NO_MEMORY, OK, TABLE_NUMBERS, NativeHandle
from common.arrays.format import dtype_of
from common.native_library import address, output_address
from common.process import require_memory

log = logging.getLogger(__name__)

# Upper bound of stored rows per process: a row's slot (place in memory) is int32, and the map from ids to slots stores
# slot + 1.
MAX_TOUCHED = 2**31 - 2

# Upper bound of the bytes per touched row that a snapshot (a view of the rows at one moment) needs when it is taken. A
# row's slot is the number of its place in memory. While the ids are sorted, a row needs 28 bytes: id, slot, and both as
# a pair. Afterwards it needs at most 35: id and slot (12), change flags by slot and by id (2), slots of changed rows
# (4), id and slot once more if only changed rows are included (12), and the slot in the list that the C++ library keeps
# of the rows in the snapshot, with room to grow (5).
LIST_BYTES = 36

# A function of (table, array name, slots [n], output [n, width]) that fills `output` with the state array of the rows
# in these slots (places in memory).
ReadArray = Callable[[str, str, np.ndarray, np.ndarray], None]


@dataclass(frozen=True)
class NativeTableSnapshot:
    """The rows of one table at one moment (`TableSnapshot`), read from the tables or, for rows that were updated later,
    from copies.
    """

    table: str
    row_ids: np.ndarray
    slots: np.ndarray  # int32 [T]: the slot of each row, which is the number of its place in memory.
    layout: dict[str, RowArray]
    read_array: ReadArray
    buffer: list[np.ndarray]  # Memory for the result of `read`. Every call of `read` uses this memory again.

    def read(self, name: str, indices: Indices) -> np.ndarray:
        slots = np.ascontiguousarray(self.slots[indices])
        dtype, width = dtype_of(self.layout[name].dtype), self.layout[name].width
        num_bytes = slots.size * width * dtype.itemsize
        if not self.buffer or self.buffer[0].size < num_bytes:
            self.buffer[:] = [np.empty(num_bytes, np.uint8)]
        values = self.buffer[0][:num_bytes].view(dtype).reshape(slots.size, width)
        self.read_array(self.table, name, slots, values)
        return values

    def read_into(self, name: str, indices: Indices, out: np.ndarray) -> None:
        self.read_array(self.table, name, np.ascontiguousarray(self.slots[indices]), out)


@dataclass
class NativeSnapshot:
    """A `Snapshot` (a read-only view of the rows at one moment) of the native tables.

    `release` may run in any thread, so it only sets flags. The training thread frees the memory at its next update or
    snapshot.
    """

    tables: Mapping[str, NativeTableSnapshot]
    # Slots (places in memory) of the rows that had changed since the previous snapshot. If this snapshot is released
    # without being saved, these rows count as changed again.
    changed_slots: np.ndarray
    saved: bool = False

    def __post_init__(self) -> None:
        self.released = threading.Event()
        # Event that is set once training waits until the checkpoint is written and this snapshot is released.
        self.awaited = threading.Event()

    def release(self, saved: bool) -> None:
        self.saved = saved
        self.released.set()


class NativeRows:
    """The touched (updated or loaded) rows in the C++ tables: their places in memory (slots), their values, and which
    of them changed since the last snapshot. At most one snapshot (view of the rows at one moment) is open.
    """

    def __init__(self, handle: NativeHandle, spec: TablesSpec) -> None:
        self._handle = handle
        self._layouts = {table: spec.layout(table) for table in spec.tables}
        self._row_bytes = spec.row_bytes()
        self._open: NativeSnapshot | None = None
        # Argument and results of the last `find`. They are valid until another row gets a slot (place in memory).
        self._cached: tuple[np.ndarray, np.ndarray, int] | None = None

    def find(self, row_ids: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the slots (places in memory) of the rows `row_ids` (int64), -1 for untouched rows. Also return the
        number of untouched rows.

        The result is cached for this array object. The update of a training step passes the same array as the lookup of
        the step, so the update need not search again.
        """
        if self._cached is None or self._cached[0] is not row_ids:
            slots, count = np.empty(row_ids.size, np.int32), row_ids.size
            num_new = self._handle.call("find", address(row_ids, np.int64, count), count, output_address(slots))
            self._cached = row_ids, slots, num_new
        return self._cached[1:]

    def touch(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the slots (places in memory) [U] of distinct `row_ids` [U] int64. Untouched rows first get a slot,
        filled with their initial values.

        Raise MemoryError, and change nothing, if there is no memory for new rows.
        """
        return self._slots_for(row_ids, "touch")

    def _slots_for(self, row_ids: np.ndarray, give_slots: str) -> np.ndarray:
        slots, num_new = self.find(row_ids)
        if num_new == 0:
            return slots
        num_touched = self._handle.call("num_touched")
        if num_touched + num_new > MAX_TOUCHED:
            raise MemoryError(f"one process keeps {MAX_TOUCHED:,} touched rows at most, and these would be more")
        purpose = f"storing {num_new:,} new rows beside {num_touched:,} touched ones, {self._row_bytes:,} bytes each,"
        if growth_bytes := self._handle.call("growth_bytes", num_new):
            require_memory(growth_bytes, purpose, self._handle.call("uncommitted_bytes"))
        ids = address(row_ids, np.int64, row_ids.size), row_ids.size
        self._cached = None
        if self._handle.call(give_slots, *ids, output_address(slots)) == NO_MEMORY:
            raise self._handle.no_memory(
                f"{purpose} needs {growth_bytes / 2**20:,.0f} MiB more, which the system refused"
            )
        return slots

    def forget_last_find(self) -> None:
        """Clear the cached result of `find`, which maps ids to rows. Call this after rows have been given other ids."""
        self._cached = None

    def remove(self, row_ids: np.ndarray) -> None:
        """Make the distinct rows `row_ids` (int64) untouched again. Rows that are untouched already are ignored.

        An open snapshot keeps its copies of these rows.
        """
        self._cached = None  # The caller may have put other ids into the array `row_ids` since the last `find`.
        slots, _ = self.find(row_ids)
        self._cached = None
        is_touched = slots >= 0
        row_ids, slots = row_ids[is_touched], slots[is_touched]
        self.before_change(slots)
        ids = address(row_ids, np.int64, row_ids.size)
        if self._handle.call("remove", ids, *_slots(slots)) == NO_MEMORY:
            raise MemoryError(f"no memory for a list of {slots.size:,} free places")

    def touched(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the touched rows, int64 [T] ascending, and their slots (places in memory), int32 [T]."""
        num_rows = self._handle.call("num_touched")
        row_ids, slots = np.empty(num_rows, np.int64), np.empty(num_rows, np.int32)
        if self._handle.call("touched", output_address(row_ids), output_address(slots)) == NO_MEMORY:
            raise MemoryError(f"no memory to sort the ids of {num_rows:,} touched rows")
        return row_ids, slots

    def read(self, table: str, slots: np.ndarray) -> dict[str, np.ndarray]:
        """Return copies of all state arrays (weights, optimizer state) of the rows at the places in memory `slots`, by
        name.
        """
        layout = self._layouts[table].items()
        arrays = {name: np.empty((slots.size, width), dtype_of(dtype)) for name, (dtype, width) in layout}
        for number, values in enumerate(arrays.values()):
            self._handle.call("read", TABLE_NUMBERS[table], number, *_slots(slots), output_address(values))
        return arrays

    def place(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the slots (places in memory) of the rows `row_ids`, whose state arrays `write` then fills. Untouched
        rows first get a slot.

        Call this only after `clear` and before `end_writing`. The values of new rows are undefined until they are
        written.
        """
        slots = self._slots_for(np.ascontiguousarray(row_ids), "place")
        self._cached = None  # The caller may later put other ids into the array `row_ids`.
        return slots

    def write(self, table: str, name: str, row_ids: np.ndarray, slots: np.ndarray, values: np.ndarray) -> None:
        """Write `values` into the state array `name` of the rows `row_ids` of a table. `slots` come from `place`.

        Raise ValueError if a value is not finite. The contents of the rows are then undefined.
        """
        values = np.require(values, requirements=["C", "A"])
        dtype, width = self._layouts[table][name]
        array = TABLE_NUMBERS[table], self._array_number(table, name)
        self._handle.read_ahead(np.ascontiguousarray(row_ids), will_change=True)
        if not self._handle.call("write", *array, *_slots(slots), address(values, dtype_of(dtype), slots.size, width)):
            check_finite(table, name, row_ids, values)

    def overwrite(self, table: str, slots: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
        """Write weights and optimizer state of the rows at the places in memory `slots`. `arrays` has them in the form
        in which `read` returns them.
        """
        for number, values in enumerate(arrays.values()):
            self._handle.call("write", TABLE_NUMBERS[table], number, *_slots(slots), output_address(values))

    def end_writing(self) -> None:
        """End the writing that began with `clear`: arrays of new rows that `write` has not filled get their initial
        values.
        """
        if self._handle.call("end_writing") == NO_MEMORY:
            raise MemoryError("no memory to find the rows that were written in part")

    def clear(self) -> None:
        """Make all rows untouched: drop their values and return their memory to the system."""
        self._open = self._cached = None
        self._handle.call("clear")

    def snapshot(self, changed_only: bool) -> NativeSnapshot:
        """Return a snapshot (read-only view) of the touched rows as they are now. With `changed_only`, it has only rows
        that were updated since the last snapshot that was saved in a checkpoint.

        Rows are copied only if they are updated before the snapshot is released. Raise MemoryError, and change nothing,
        if there is no memory for a list of the touched rows.
        """
        self.check_released()
        self._close_snapshot()
        self._handle.check_file()
        num_touched = self._handle.call("num_touched")
        purpose = f"listing {num_touched:,} touched rows for a checkpoint"
        require_memory(LIST_BYTES * num_touched, purpose, self._handle.call("uncommitted_bytes"))
        row_ids, slots = self.touched()
        flags = np.empty(self._handle.call("num_slots"), bool)
        all_slots = slots
        self._handle.call("take_changed", output_address(flags))
        try:
            changed_slots = np.flatnonzero(flags).astype(np.int32)
            if changed_only:
                included = flags[slots]
                row_ids, slots = row_ids[included], slots[included]
            if self._handle.call("open_snapshot", *_slots(slots)) == NO_MEMORY:
                raise MemoryError(f"no memory for a snapshot of {slots.size:,} rows")
        except MemoryError:
            # The call `take_changed` has cleared the flags of changed rows. The next delta may save too many rows but
            # not too few, so mark all touched rows as changed.
            self._mark_changed(all_slots)
            raise
        tables = {
            table: NativeTableSnapshot(table, row_ids, slots, layout, self._read_snapshot, [])
            for table, layout in self._layouts.items()
        }
        self._open = NativeSnapshot(tables, changed_slots)
        return self._open

    def check_released(self) -> None:
        """Raise RuntimeError if a snapshot is open: a view of the rows that a checkpoint is still being written from.

        Taking another snapshot or loading a state would free the rows of the open one.
        """
        if self._open is not None:
            check_released(self._open.released.is_set())

    def before_change(self, slots: np.ndarray) -> None:
        """Prepare a change of the rows at the places in memory `slots`: copy the rows if an open snapshot needs them,
        and mark the rows as changed.

        Every method that changes rows must call this one first. If there is no memory for the copies, wait until the
        snapshot is released.
        """
        if self._open is not None and not self._preserve(self._open, slots):
            log.warning("warning: no memory to train on while a checkpoint is written: waiting for it")
            self._open.awaited.set()
            self._open.released.wait()
            self._close_snapshot()
        self._mark_changed(slots)

    def _preserve(self, snapshot: NativeSnapshot, slots: np.ndarray) -> bool:
        if snapshot.released.is_set():
            self._close_snapshot()
            return True
        if growth_bytes := self._handle.call("preserve_bytes", slots.size):
            try:
                reserved = self._handle.call("uncommitted_bytes")
                require_memory(growth_bytes, "keeping rows for the checkpoint that is being written", reserved)
            except MemoryError:
                return False
        return bool(self._handle.call("preserve", *_slots(slots)) == OK)

    def _read_snapshot(self, table: str, name: str, slots: np.ndarray, values: np.ndarray) -> None:
        # While training continues, read with one thread: a second one would take a core from training.
        snapshot = self._open
        num_threads = self._handle.num_threads if snapshot is not None and snapshot.awaited.is_set() else 1
        array = TABLE_NUMBERS[table], self._array_number(table, name)
        self._handle.call("read_snapshot", *array, *_slots(slots), output_address(values), num_threads)

    def _mark_changed(self, slots: np.ndarray) -> None:
        if self._handle.call("mark_changed", *_slots(slots)) == NO_MEMORY:
            raise MemoryError("no memory for a bit a row")

    def _close_snapshot(self) -> None:
        """Free the memory of the last snapshot, which was released. If it was not saved, mark its rows as changed
        again.

        `release` cannot do this itself, because it may run in another thread than training.
        """
        if self._open is None:
            return
        self._handle.call("close_snapshot")
        if not self._open.saved:
            self._mark_changed(self._open.changed_slots)
        self._open = None

    def _array_number(self, table: str, name: str) -> int:
        return list(self._layouts[table]).index(name)


def _slots(slots: np.ndarray) -> tuple[int, int]:
    """Return the address of the array `slots` (rows' places in memory) and its length, which are two consecutive
    arguments of the C++ library's functions.
    """
    return address(slots, np.int32, slots.size), slots.size
