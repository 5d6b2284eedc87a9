"""A snapshot of the native tables: copy on write by slots, so that taking one costs a list of the rows and no more.

Letters: T rows of the snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from app.tables.interface import Places, RowArray

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
