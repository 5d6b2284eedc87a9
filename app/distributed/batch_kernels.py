"""Process a batch whose embedding rows lie on other ranks: find the batch's distinct ids, copy the row of each id to
all positions of the batch that have the id ("expand"), and sum the gradients of these positions by id.
"""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np

from app.tables.interface import TablesSpec, UniqueIds
from app.tables.native.library import NativeHandle, NativeUniqueIds, own
from app.tables.reference import expand, find_unique, sum_deep_by_id, sum_wide_by_id
from common.arrays.pages import HugeBuffer
from common.native_library import address, output_address


class BatchKernels:
    """Finds a batch's distinct ids, expands their rows (copies the row of an id to all positions of the batch with that
    id), and sums the gradients of these positions by id, in NumPy.

    Ranks with the table backend `reference` use these functions. The native kernels must return the same results.
    """

    def __init__(self, spec: TablesSpec) -> None:
        self._spec = spec

    def unique(self, ids: np.ndarray) -> UniqueIds:
        """Return the distinct ids of a batch. `ids` [B, P] has the ids of the B rows, each with P of them. Raise
        ValueError for a wrong dtype or shape, or for an id outside 0 … V-1.
        """
        return find_unique(ids, self._spec)

    def reorder(self, unique: UniqueIds, order: np.ndarray) -> UniqueIds:
        """Return the distinct ids `unique` in another order: at index i, the result has the id that `unique` has at
        index `order[i]`.
        """
        inverse = _inverse_of(order)[unique.inverse]
        return dataclasses.replace(unique, values=unique.values[order], inverse=inverse)

    def expand(self, unique: UniqueIds, deep_rows: np.ndarray, wide_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays for the batch: `deep` [B, C * D], the embedding rows of its fields side by side, and `wide`
        [B], the sum of the wide weights of each batch row.

        `deep_rows` [U, D] and `wide_rows` [U] are the rows of the batch's distinct ids, in the order of `unique`. The
        result is valid until the call after the next one.
        """
        return expand(unique, deep_rows, wide_rows)

    def sum_by_id(self, unique: UniqueIds, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sum the gradients `deep` [B, C * D] and `wide` [B] by distinct id. Return the deep sums [U, D] and the wide
        sums [U].

        The gradients of an id are added in the order of their positions in the batch. The result is valid until the
        next call.
        """
        return sum_deep_by_id(unique, deep, self._spec.embedding_dim), sum_wide_by_id(unique, wide)


class NativeBatchKernels(BatchKernels):
    """`BatchKernels` whose functions are C++: find a batch's distinct ids, copy their rows to the positions of the
    batch, sum gradients by id.

    The C++ functions need a handle of tables, so this class makes tables. They stay empty and take no memory.
    """

    def __init__(self, spec: TablesSpec, num_threads: int) -> None:
        super().__init__(spec)
        self._handle = NativeHandle(spec, num_threads)
        self._expanded = (HugeBuffer(), HugeBuffer())
        self._sums = HugeBuffer()

    def unique(self, ids: np.ndarray) -> NativeUniqueIds:
        return self._handle.unique(ids)

    def reorder(self, unique: UniqueIds, order: np.ndarray) -> UniqueIds:
        unique = own(unique)
        counts = np.diff(unique.offsets)[order]
        offsets = np.zeros_like(unique.offsets)
        np.cumsum(counts, out=offsets[1:])
        # In the array `positions`, the positions of an id stand next to each other, in the order of the ids. `moved` is
        # the distance from the new place of each position in the array to its old place.
        moved = np.repeat(unique.offsets[:-1][order] - offsets[:-1], counts)
        positions = unique.positions[np.arange(unique.positions.size, dtype=np.int32) + moved]
        inverse = _inverse_of(order)[unique.inverse]
        values = unique.values[order]
        return dataclasses.replace(unique, values=values, inverse=inverse, offsets=offsets, positions=positions)

    def expand(self, unique: UniqueIds, deep_rows: np.ndarray, wide_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        unique = own(unique)
        self._expanded = self._expanded[::-1]
        (batch, num_fields), num_unique, width = unique.shape, unique.values.size, self._spec.embedding_dim
        deep, wide = self._expanded[0].array((batch, num_fields * width)), np.empty(batch, np.float32)
        rows = address(deep_rows, np.float32, num_unique, width), address(wide_rows, np.float32, num_unique)
        self._handle.call("expand", ctypes.byref(unique.struct), *rows, output_address(deep), output_address(wide))
        return deep, wide

    def sum_by_id(self, unique: UniqueIds, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        unique = own(unique)
        (batch, num_fields), num_unique, width = unique.shape, unique.values.size, self._spec.embedding_dim
        deep, wide = np.ascontiguousarray(deep), np.ascontiguousarray(wide)
        inputs = address(deep, np.float32, batch, num_fields * width), address(wide, np.float32, batch)
        sums = self._sums.array((num_unique, width)), np.empty(num_unique, np.float32)
        self._handle.call("sum_by_id", ctypes.byref(unique.struct), *inputs, *map(output_address, sums))
        return sums


def make_batch_kernels(backend: str, spec: TablesSpec, num_threads: int) -> BatchKernels:
    """Return the `BatchKernels` that fit the table backend: in C++ for `native`, in NumPy for `reference`."""
    return NativeBatchKernels(spec, num_threads) if backend == "native" else BatchKernels(spec)


def _inverse_of(order: np.ndarray) -> np.ndarray:
    inverse = np.empty(order.size, np.int32)
    inverse[order] = np.arange(order.size, dtype=np.int32)
    return inverse
