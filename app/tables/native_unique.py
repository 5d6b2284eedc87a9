"""The distinct ids of a batch, with their positions, as the native kernels want them.

Letters: B batch, C looked-up fields, U unique ids of a batch.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from app.tables.checks import check_ids, check_ids_shape
from app.tables.interface import TablesSpec, UniqueIds
from app.tables.native_handle import NativeHandle
from app.tables.native_library import BAD_ID, COUNT, NO_MEMORY, Batch
from common.native_library import address, room

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
