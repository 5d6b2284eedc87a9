"""Work on a batch whose unique rows lie on other ranks: distinct ids, rows by position, gradients by id."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np

from app.tables.interface import TablesSpec, UniqueIds
from app.tables.native.library import NativeHandle, NativeUniqueIds, own
from app.tables.positions import expand, find_unique, sum_deep_by_id, sum_wide_by_id
from common.native_library import address, output_address
from common.pages import HugeBuffer


class BatchKernels:
    """The operations in NumPy: their definition, and those of the `reference` backend."""

    def __init__(self, spec: TablesSpec) -> None:
        self._spec = spec

    def unique(self, ids: np.ndarray) -> UniqueIds:
        """Find the distinct ids of `ids` [B, P]. Raises as `HostTables.unique` does."""
        return find_unique(ids, self._spec)

    def reorder(self, unique: UniqueIds, order: np.ndarray) -> UniqueIds:
        """Return the same ids, numbered so that number i is the former `order[i]`."""
        inverse = _inverse_of(order)[unique.inverse]
        return dataclasses.replace(unique, values=unique.values[order], inverse=inverse)

    def expand(self, unique: UniqueIds, deep_rows: np.ndarray, wide_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `Rows.deep` and `Rows.wide` of `deep_rows` [U, D] and `wide_rows` [U].

        They are valid until the call after the next.
        """
        return expand(unique, deep_rows, wide_rows)

    def sum_by_id(self, unique: UniqueIds, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sum gradients [B, C * D] and [B] to [U, D] and [U] in order of position, valid until the next call."""
        return sum_deep_by_id(unique, deep, self._spec.embedding_dim), sum_wide_by_id(unique, wide)


class NativeBatchKernels(BatchKernels):
    """The operations in C++. The tables of their handle have no row, so they take no memory."""

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
        # A position of the new order lies in a group whose start has moved by this much.
        moved = np.repeat(unique.offsets[:-1][order] - offsets[:-1], counts)
        positions = unique.positions[np.arange(unique.positions.size, dtype=np.int32) + moved]
        inverse = _inverse_of(order)[unique.inverse]
        values = unique.values[order]
        return dataclasses.replace(unique, values=values, inverse=inverse, offsets=offsets, positions=positions)

    def expand(self, unique: UniqueIds, deep_rows: np.ndarray, wide_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        unique = own(unique)
        self._expanded = self._expanded[::-1]
        batch, num_fields = unique.shape
        deep = self._expanded[0].array((batch, num_fields * self._spec.embedding_dim))
        wide = np.empty(batch, np.float32)
        num_unique = unique.values.size
        self._handle.call(
            "expand",
            ctypes.byref(unique.struct),
            address(deep_rows, np.float32, num_unique, self._spec.embedding_dim),
            address(wide_rows, np.float32, num_unique),
            output_address(deep),
            output_address(wide),
        )
        return deep, wide

    def sum_by_id(self, unique: UniqueIds, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        unique = own(unique)
        deep_sums = self._sums.array((unique.values.size, self._spec.embedding_dim))
        wide_sums = np.empty(unique.values.size, np.float32)
        deep, wide = np.ascontiguousarray(deep), np.ascontiguousarray(wide)
        batch, num_fields = unique.shape
        self._handle.call(
            "sum_by_id",
            ctypes.byref(unique.struct),
            address(deep, np.float32, batch, num_fields * self._spec.embedding_dim),
            address(wide, np.float32, batch),
            output_address(deep_sums),
            output_address(wide_sums),
        )
        return deep_sums, wide_sums


def make_batch_kernels(backend: str, spec: TablesSpec, num_threads: int) -> BatchKernels:
    """Make the operations of a table backend, `native` or `reference`."""
    return NativeBatchKernels(spec, num_threads) if backend == "native" else BatchKernels(spec)


def _inverse_of(order: np.ndarray) -> np.ndarray:
    inverse = np.empty(order.size, np.int32)
    inverse[order] = np.arange(order.size, dtype=np.int32)
    return inverse
