"""An array that is longer than memory should hold, written to a .npy file as it comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class ArrayWriter:
    """Writes int64 numbers to `path`, which appears when it is complete: the bytes that `numpy.save` gives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_suffix(".npy.tmp")
        self._file = self._beside.open("wb")
        self._length = 0
        self._write_header()

    def write(self, numbers: NDArray[np.int64]) -> None:
        """Append numbers [n]."""
        self._file.write(np.ascontiguousarray(numbers).data)
        self._length += len(numbers)

    def finish(self) -> None:
        """Put the file in its place."""
        self._file.seek(0)
        self._write_header()
        self._file.close()
        self._beside.replace(self._path)

    def _write_header(self) -> None:
        # NumPy leaves room for an axis to grow, so the header is as long with the last length as with the first.
        header = {"descr": "<i8", "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)
