"""A snapshot of the native tables: copy on write by slots, so that taking one costs a list of the rows and no more.

Letters: T rows of the snapshot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from app.tables.interface import Places, RowArray, TablesSpec
from app.tables.native.library import NO_MEMORY, OK, TABLE_NUMBERS, NativeHandle
from app.tables.native.rows import NativeRows
from app.tables.reference import check_released
from common.memory import require_memory
from common.native_library import address, room

log = logging.getLogger(__name__)

# Of a touched row, at most. While ids are sorted: id, slot, and both as a pair (28). Then id and slot (12), whether it
# has changed, by slot and by id (2), its slot among the changed ones (4), where those alone are meant its id and slot
# again (12), and its place in the tables' own list, with room to grow (5).
LIST_BYTES = 36

ReadArray = Callable[[str, str, np.ndarray, np.ndarray], None]  # table, array, slots [n], out [n, width]


@dataclass(frozen=True)
class NativeTableSnapshot:
    """A `TableSnapshot` whose values are where the tables have them, or had them preserved."""

    table: str
    row_ids: np.ndarray
    slots: np.ndarray  # int32 [T]
    layout: dict[str, RowArray]
    read_array: ReadArray
    buffer: list[np.ndarray]  # used again by each read

    def read(self, name: str, places: Places) -> np.ndarray:
        """See `TableSnapshot.read`."""
        slots = np.ascontiguousarray(self.slots[places])
        dtype, width = self.layout[name]
        num_bytes = slots.size * width * np.dtype(dtype).itemsize
        if not self.buffer or self.buffer[0].size < num_bytes:
            self.buffer[:] = [np.empty(num_bytes, np.uint8)]
        values = self.buffer[0][:num_bytes].view(dtype).reshape(slots.size, width)
        self.read_array(self.table, name, slots, values)
        return values


@dataclass
class NativeSnapshot:
    """A `Snapshot`. The tables end it in their own thread, at their next update or snapshot."""

    tables: Mapping[str, NativeTableSnapshot]
    changed_slots: np.ndarray  # to be marked again where nothing was saved
    saved: bool = False

    def __post_init__(self) -> None:
        self.released = threading.Event()
        self.awaited = threading.Event()  # set where an update cannot go on before the release

    def release(self, saved: bool) -> None:
        """See `Snapshot.release`."""
        self.saved = saved
        self.released.set()


class NativeSnapshots:
    """Takes snapshots of a handle's rows, one at a time, and keeps them as they were."""

    def __init__(self, handle: NativeHandle, spec: TablesSpec) -> None:
        self._handle = handle
        self._spec = spec
        self._open: NativeSnapshot | None = None

    def take(self, rows: NativeRows, changed_only: bool) -> NativeSnapshot:
        """See `HostTables.snapshot`; no row is copied but those that are updated before the release.

        Raises MemoryError, and nothing is changed, where there is no room for lists of all touched `rows`.
        """
        self.check_released()
        self._end()
        num_touched = self._handle.call("num_touched")
        purpose = f"listing {num_touched:,} touched rows for a checkpoint"
        require_memory(LIST_BYTES * num_touched, purpose, self._handle.call("uncommitted_bytes"))
        row_ids, slots = rows.touched()
        flags = np.empty(slots.size, bool)
        all_slots = slots
        self._handle.call("take_changed", room(flags))
        try:
            changed_slots = np.flatnonzero(flags).astype(np.int32)
            if changed_only:
                included = flags[slots]
                row_ids, slots = row_ids[included], slots[included]
            if self._handle.call("open_snapshot", address(slots, np.int32, slots.size), slots.size) == NO_MEMORY:
                raise MemoryError(f"no memory for a snapshot of {slots.size:,} rows")
        except MemoryError:
            self._mark_changed(all_slots)  # too many rather than too few
            raise
        tables = {
            table: NativeTableSnapshot(table, row_ids, slots, self._spec.layout(table), self._read, [])
            for table in TABLE_NUMBERS
        }
        self._open = NativeSnapshot(tables, changed_slots)
        return self._open

    def check_released(self) -> None:
        """Raise RuntimeError while a snapshot is not released, whose rows another snapshot or a load would free."""
        if self._open is not None:
            check_released(self._open.released.is_set())

    def _read(self, table: str, name: str, slots: np.ndarray, values: np.ndarray) -> None:
        array = list(self._spec.layout(table)).index(name)
        # One thread: in the background a second one would take the training's other core.
        rows = address(slots, np.int32, slots.size), slots.size
        self._handle.call("read_snapshot", TABLE_NUMBERS[table], array, *rows, room(values), 1)

    def before_change(self, slots: np.ndarray) -> None:
        """To be called before the states of `slots` change: preserves them where a snapshot needs them."""
        if self._open is not None and not self._preserve(self._open, slots):
            log.warning("warning: no memory to train on while a checkpoint is written: waiting for it")
            self._open.awaited.set()
            self._open.released.wait()
            self._end()
        self._mark_changed(slots)

    def _preserve(self, snapshot: NativeSnapshot, slots: np.ndarray) -> bool:
        if snapshot.released.is_set():
            self._end()
            return True
        if growth_bytes := self._handle.call("preserve_bytes", slots.size):
            try:
                reserved = self._handle.call("uncommitted_bytes")
                require_memory(growth_bytes, "keeping rows for the checkpoint that is being written", reserved)
            except MemoryError:
                return False
        return bool(self._handle.call("preserve", address(slots, np.int32, slots.size), slots.size) == OK)

    def _mark_changed(self, slots: np.ndarray) -> None:
        if self._handle.call("mark_changed", address(slots, np.int32, slots.size), slots.size) == NO_MEMORY:
            raise MemoryError("no memory for a bit a row")

    def _end(self) -> None:
        """What a snapshot's release could not do in its own thread."""
        if self._open is None:
            return
        self._handle.call("close_snapshot")
        if not self._open.saved:
            self._mark_changed(self._open.changed_slots)
        self._open = None

    def forget(self) -> None:
        """To be called where all rows are forgotten."""
        self._open = None
