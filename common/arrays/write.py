"""Write a file of arrays in the safetensors format, which format.py describes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.arrays.disk import Part, Progress, RowSource, no_progress, write_file
from common.arrays.format import make_header
from common.files import FileRecord

ALIGNMENT = 8  # By default, the first array of a file begins at a multiple of this many bytes.


@dataclass(frozen=True)
class ArraySource:
    """An array to be written to a file: its dtype, its shape, and a function that returns its values in parts."""

    dtype: str
    shape: tuple[int, ...]
    # Returns consecutive parts of the array, which together are all its values. Parts that are arrays are C-contiguous.
    pieces: Callable[[], Iterable[np.ndarray | RowSource]]


def column_of(array: np.ndarray) -> ArraySource:
    """Return an `ArraySource`, for `write_arrays`, of an array that is in memory."""
    return ArraySource(array.dtype.name, array.shape, lambda: [np.ascontiguousarray(array)])


def write_arrays(
    path: Path, columns: dict[str, ArraySource], progress: Progress = no_progress, alignment: int = ALIGNMENT
) -> FileRecord:
    """Write a file of the arrays in `columns`, which maps their names to their sources, and sync the file.

    Return the file's size and checksum. Each dtype must be in `DTYPE_NAMES`. The first array begins at a multiple of
    `alignment` bytes. `progress` is called with the number of bytes after each block.
    """
    return write_file(path, _parts(columns, alignment), progress)


def _parts(columns: dict[str, ArraySource], alignment: int) -> Iterator[Part]:
    yield make_header({name: (column.dtype, column.shape) for name, column in columns.items()}, alignment)
    for column in columns.values():
        for piece in column.pieces():
            yield piece if isinstance(piece, RowSource) else piece.reshape(-1).view(np.uint8).data
