"""The native tables' touched rows: their slots, and their state arrays out of and into them.

Letters: T touched rows, U distinct rows of a call.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from app.tables.checks import check_finite, check_ids, check_ids_shape
from app.tables.interface import TablesSpec, UniqueIds
from app.tables.native.library import BAD_ID, COUNT, NO_MEMORY, TABLE_NUMBERS, Batch, NativeHandle
from common.memory import require_memory
from common.native_library import address, room

MAX_TOUCHED = 2**31 - 2  # slots are int32, and the map keeps slot + 1


class NativeRows:
    """The rows of a handle."""

    def __init__(self, handle: NativeHandle, spec: TablesSpec) -> None:
        self._handle = handle
        self._spec = spec

    def find(self, row_ids: np.ndarray) -> tuple[np.ndarray, int]:
        """Slots of `row_ids` int64, -1 where a row is untouched, and how many are."""
        slots = np.empty(row_ids.size, np.int32)
        num_new = self._handle.call("find", address(row_ids, np.int64, row_ids.size), row_ids.size, room(slots))
        return slots, num_new

    def touch(self, row_ids: np.ndarray) -> np.ndarray:
        """The slots [U] of the distinct `row_ids` [U] int64; rows that had none get one, with their initial values."""
        return self._slots_for(row_ids, "touch")

    def _slots_for(self, row_ids: np.ndarray, give_slots: str) -> np.ndarray:
        slots, num_new = self.find(row_ids)
        if num_new == 0:
            return slots
        num_touched = self._handle.call("num_touched")
        if num_touched + num_new > MAX_TOUCHED:
            raise MemoryError(f"one process keeps {MAX_TOUCHED:,} touched rows at most, and these would be more")
        row_bytes = self._spec.row_bytes()
        purpose = f"storing {num_new:,} new rows beside {num_touched:,} touched ones, {row_bytes:,} bytes each,"
        if growth_bytes := self._handle.call("growth_bytes", num_new):
            require_memory(growth_bytes, purpose, self._handle.call("uncommitted_bytes"))
        places = address(row_ids, np.int64, row_ids.size), row_ids.size, room(slots)
        if self._handle.call(give_slots, *places) == NO_MEMORY:
            raise MemoryError(f"{purpose} needs {growth_bytes / 2**20:,.0f} MiB more, which the system refused")
        return slots

    def touched(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the touched rows, int64 [T] ascending, and their slots, int32 [T]."""
        num_rows = self._handle.call("num_touched")
        row_ids, slots = np.empty(num_rows, np.int64), np.empty(num_rows, np.int32)
        if self._handle.call("touched", room(row_ids), room(slots)) == NO_MEMORY:
            raise MemoryError(f"no memory to sort the ids of {num_rows:,} touched rows")
        return row_ids, slots

    def read(self, table: str, slots: np.ndarray) -> dict[str, np.ndarray]:
        """All state arrays of rows, copies."""
        layout = self._spec.layout(table).items()
        arrays = {name: np.empty((slots.size, width), dtype) for name, (dtype, width) in layout}
        places = address(slots, np.int32, slots.size), slots.size
        for number, values in enumerate(arrays.values()):
            self._handle.call("read", TABLE_NUMBERS[table], number, *places, room(values))
        return arrays

    def write(self, table: str, name: str, row_ids: np.ndarray, values: np.ndarray) -> None:
        """One state array of rows that may be new, after `clear`; `end_writing` comes after the last of them.

        Raises ValueError for values that are not finite: then the rows mean nothing.
        """
        values = np.require(values, requirements=["C", "A"])
        slots = self._slots_for(np.ascontiguousarray(row_ids), "place")
        layout = self._spec.layout(table)
        dtype, width = layout[name]
        rows = address(slots, np.int32, slots.size), slots.size, address(values, dtype, slots.size, width)
        if not self._handle.call("write", TABLE_NUMBERS[table], list(layout).index(name), *rows):
            check_finite(table, name, row_ids, values)

    def end_writing(self) -> None:
        """Give what was not written of the new rows its initial values."""
        if self._handle.call("end_writing") == NO_MEMORY:
            raise MemoryError("no memory to find the rows that were written in part")

    def clear(self) -> None:
        """Forget all rows and give their memory back."""
        self._handle.call("clear")


MAX_POSITIONS = 2**31 - 1  # positions of a batch are int32


@dataclass(frozen=True)
class NativeUniqueIds(UniqueIds):
    """`UniqueIds` numbered in order of first position, `values` int64, and their positions.

    Id u has the positions `positions[offsets[u] : offsets[u + 1]]`, ascending.
    """

    offsets: np.ndarray
    positions: np.ndarray

    def as_struct(self) -> Batch:
        """The same for C; valid as long as this object lives."""
        (num_rows, num_fields), num_unique = self.shape, self.values.size
        return Batch(
            num_rows,
            num_fields,
            num_unique,
            address(self.values, np.int64, num_unique),
            address(self.inverse, np.int32, num_rows * num_fields),
            address(self.offsets, np.int32, num_unique + 1),
            address(self.positions, np.int32, num_rows * num_fields),
        )


def own(unique: UniqueIds) -> NativeUniqueIds:
    """`unique`, which must be the native tables' own. Raises TypeError."""
    if not isinstance(unique, NativeUniqueIds):
        raise TypeError(f"the native tables need the result of their own unique(), found {type(unique).__name__}")
    return unique


def find_unique(handle: NativeHandle, ids: np.ndarray, spec: TablesSpec) -> NativeUniqueIds:
    """See `HostTables.unique`; one thread, meant to run beside the step before."""
    check_ids_shape(ids, spec)
    if ids.size > MAX_POSITIONS:
        raise ValueError(f"a batch may have {MAX_POSITIONS} ids, found {ids.size}; choose a smaller batch size")
    ids = np.ascontiguousarray(ids)
    values, inverse, offsets, positions = _arrays_in_one_block(
        (np.int64, ids.size), (np.int32, ids.size), (np.int32, ids.size + 1), (np.int32, ids.size)
    )
    num_unique = COUNT()
    outputs = (*map(room, (values, inverse, offsets, positions)), ctypes.byref(num_unique))
    status = handle.call("unique", address(ids, ids.dtype, *ids.shape), ids.itemsize, ids.size, *outputs)
    if status == BAD_ID:
        check_ids(ids, spec)
    if status == NO_MEMORY:
        raise MemoryError(f"no memory to find the distinct ones of {ids.size} ids")
    count = num_unique.value
    return NativeUniqueIds((ids.shape[0], ids.shape[1]), values[:count], inverse, offsets[: count + 1], positions)


def _arrays_in_one_block(*shapes: tuple[type, int]) -> list[np.ndarray]:
    """Arrays of (dtype, size), side by side in one allocation: the allocator keeps one block for the next batch,
    where it would hand several back to the system."""
    sizes = [np.dtype(dtype).itemsize * size for dtype, size in shapes]
    block, starts = np.empty(sum(sizes), np.uint8), np.cumsum([0, *sizes])
    return [
        block[start : start + size].view(dtype) for (dtype, _), start, size in zip(shapes, starts, sizes, strict=False)
    ]
