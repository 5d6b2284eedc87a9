"""Load the C++ library of the tower's layers (`csrc/`), and wrap its functions that are called outside a graph.

This module does not import MindSpore.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np

from common.native_library import NativeLibrary, address, output_address

LIBRARY = NativeLibrary(
    "dense_layer",
    __file__,
    ["dense_layer.h", "distinct_layer.h", "tower_step.h"],
    "dense layer is",
    "continue with MindSpore's operators",
)

NATIVE_ACTIVATION = "relu"  # The activation function of the library's layers.

TowerShape, TowerArrays, TowerBatch = (
    LIBRARY.interface.structures[name] for name in ("TowerShape", "TowerArrays", "TowerBatch")
)


class TowerPointers:
    """The addresses of a model's arrays in the form of the C structure `TowerArrays`.

    `arrays` are the model's arrays by parameter name. The addresses are valid as long as this object lives.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        matrices = [output_address(values) for name, values in arrays.items() if name.startswith("tower.matrix_")]
        biases = [output_address(values) for name, values in arrays.items() if name.startswith("tower.bias_")]
        self._arrays = arrays
        self._lists = [(ctypes.c_void_p * len(addresses))(*addresses) for addresses in (matrices, biases)]
        tower = (f"tower.{name}" for name in ("numeric_rows", "numeric_matrix", "vector_matrix"))
        names = "wide.bias", "wide.numeric_weight", *tower
        plain = (output_address(arrays[name]) if name in arrays else None for name in names)
        self._struct = TowerArrays(*plain, *map(ctypes.addressof, self._lists))
        self.pointer = ctypes.pointer(self._struct)


def distinct_rows(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct rows that the ids of a batch, `ids` [B, C], look up, grouped by field.

    Return three arrays: the ids of the rows, int64 [U]; for each cell of `ids` the index of its row, int32 [B, C]; and
    the index of each field's first row, int32 [C + 1], with U as the last value. Raise OSError if the library is not
    built.
    """
    ids = np.ascontiguousarray(ids, np.int64)
    rows, index = np.empty(ids.size, np.int64), np.empty(ids.shape, np.int32)
    starts = np.empty(ids.shape[1] + 1, np.int32)
    outputs = output_address(rows), output_address(index), output_address(starts)
    if LIBRARY.load().distinct_rows(address(ids, np.int64, *ids.shape), *ids.shape, *outputs):
        raise MemoryError(f"no memory to find the distinct ones of {ids.size} ids")
    return rows[: starts[-1]], index, starts


def check_status(status: int) -> None:
    """Raise RuntimeError unless `status`, the result of a C++ function that multiplies by oneDNN, is 0 (success)."""
    if status:
        raise RuntimeError(f"oneDNN refused the tower's products with status {status}; is there memory left?")
