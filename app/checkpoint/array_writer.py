"""Write a file of arrays in the safetensors format, which array_file.py describes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.checkpoint.array_file import DTYPE_NAMES, LENGTH_BYTES, item_bytes
from app.checkpoint.disk import Part, Progress, Rows, no_progress, write_file
from common.files import FileRecord

ALIGNMENT = 8  # The first array of a file begins at a multiple of this number of bytes.


@dataclass(frozen=True)
class Column:
    """An array that will be written to a file."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[np.ndarray | Rows]]  # Returns the values in order. Arrays are C-contiguous.

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * item_bytes(self.dtype)


def column_of(array: np.ndarray) -> Column:
    """Return a column with the values of an array in memory."""
    return Column(array.dtype.name, array.shape, lambda: [np.ascontiguousarray(array)])


def write_arrays(
    path: Path, columns: dict[str, Column], progress: Progress = no_progress, alignment: int = ALIGNMENT
) -> FileRecord:
    """Write and sync a file of the given columns, by name. Return its size and checksum.

    Each dtype must be in `DTYPE_NAMES`. The first array begins at a multiple of `alignment` bytes.
    """
    return write_file(path, _parts(columns, alignment), progress)


def _parts(columns: dict[str, Column], alignment: int) -> Iterator[Part]:
    header: dict[str, object] = {}
    end = 0
    for name, column in columns.items():
        start, end = end, end + column.num_bytes
        header[name] = {
            "dtype": DTYPE_NAMES[column.dtype],
            "shape": list(column.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % alignment)
    yield len(text).to_bytes(LENGTH_BYTES, "little") + text
    for column in columns.values():
        for piece in column.pieces():
            yield piece if isinstance(piece, Rows) else piece.reshape(-1).view(np.uint8).data
