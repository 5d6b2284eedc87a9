"""The rows of lists pooled in C++ (`app/tables/lists.py`)."""

from __future__ import annotations

import ctypes

import numpy as np

from app.tables.interface import TablesSpec
from app.tables.lists import ListKernels, PooledIds
from app.tables.native.library import Lists, NativeHandle, NativeUniqueIds, own
from common.memory import HugeBuffer
from common.native_library import address, room


class NativeListKernels(ListKernels):
    """`ListKernels` in C++; the tables of their handle have no row, so they take next to no memory."""

    def __init__(self, spec: TablesSpec, num_threads: int) -> None:
        super().__init__(spec)
        self._handle = NativeHandle(self.row_spec, num_threads)
        self._expanded = (HugeBuffer(), HugeBuffer())
        self._sums = HugeBuffer()

    def unique(self, ids: np.ndarray) -> NativeUniqueIds:
        return self._handle.unique(ids)

    def expand(self, ids: PooledIds, deep_rows: np.ndarray, wide_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._expanded = self._expanded[::-1]
        (batch, num_fields), num_unique = ids.shape, ids.values.size
        deep = self._expanded[0].array((batch, num_fields * self.row_spec.embedding_dim))
        wide = np.empty(batch, np.float32)
        rows = np.ascontiguousarray(deep_rows), np.ascontiguousarray(wide_rows)
        self._call("expand_lists", ids, rows, (num_unique, self.row_spec.embedding_dim), (deep, wide))
        return deep, wide

    def sum_by_id(self, ids: PooledIds, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (batch, num_fields), num_unique = ids.shape, ids.values.size
        sums = self._sums.array((num_unique, self.row_spec.embedding_dim)), np.empty(num_unique, np.float32)
        gradients = np.ascontiguousarray(deep), np.ascontiguousarray(wide)
        self._call("sum_lists_by_id", ids, gradients, (batch, num_fields * self.row_spec.embedding_dim), sums)
        return sums

    def _call(
        self,
        name: str,
        ids: PooledIds,
        inputs: tuple[np.ndarray, np.ndarray],
        shape: tuple[int, int],
        outputs: tuple[np.ndarray, np.ndarray],
    ) -> None:
        deep, wide = inputs
        (batch, num_fields), n = ids.shape, ids.place.size
        lists = Lists(
            batch,
            num_fields,
            address(ids.first, np.int32, batch * num_fields + 1),
            address(ids.place, np.int32, n),
            address(ids.weight, np.float32, n),
        )
        arrays = address(deep, np.float32, *shape), address(wide, np.float32, shape[0])
        found = ctypes.byref(own(ids.found).as_struct())
        self._handle.call(name, found, ctypes.byref(lists), *arrays, *map(room, outputs))
