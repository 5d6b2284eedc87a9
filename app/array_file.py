"""Arrays in a file of the safetensors form: 8 bytes with the header's length, a JSON header, the arrays' bytes.

The form is https://github.com/huggingface/safetensors#format. The library is not used: it takes no checksum on the way,
does not sync, says no OSError where the disk is full, and holds all of a file in memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.disk import (
    DamagedFileError,
    FileReader,
    FileRecord,
    Part,
    Progress,
    check_size,
    ignore,
    read_file,
    write_file,
)

DTYPE_NAMES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64"}
DTYPES = {short: name for name, short in DTYPE_NAMES.items()}
ALIGNMENT = 8  # of the arrays' first byte
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100 << 20  # as the safetensors library has it


@dataclass(frozen=True)
class Column:
    """An array to be written: its values come in pieces, C-contiguous and in order."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[np.ndarray]]

    @property
    def num_bytes(self) -> int:
        """Of all values."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Place:
    """Where an array lies in a file: `start` counts from the file's begin."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def column_of(array: np.ndarray) -> Column:
    """An array that is in memory."""
    return Column(array.dtype.name, array.shape, lambda: [np.ascontiguousarray(array)])


def write_arrays(path: Path, columns: dict[str, Column], progress: Progress = ignore) -> FileRecord:
    """Write and sync a file of `columns`, each of a dtype of `DTYPE_NAMES`."""
    return write_file(path, _parts(columns), progress)


def _parts(columns: dict[str, Column]) -> Iterator[Part]:
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
    text += b" " * (-len(text) % ALIGNMENT)
    yield len(text).to_bytes(LENGTH_BYTES, "little") + text
    for column in columns.values():
        for piece in column.pieces():
            yield piece.reshape(-1).view(np.uint8).data


def read_places(path: Path) -> dict[str, Place]:
    """Where each array of a file lies, in the order of the file. Raises ValueError where it has another form."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > min(MOST_HEADER_BYTES, path.stat().st_size):
            raise ValueError(f"{path} is not a safetensors file: it says that its header has {length} bytes")
        return _places(path, file.read(length))


def _places(path: Path, header: bytes) -> dict[str, Place]:
    try:
        places, end = {}, 0
        for name, entry in json.loads(header).items():
            start, array_end = entry["data_offsets"]
            dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
            num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            if (start, array_end) != (end, end + num_bytes):
                raise ValueError(f"{name} lies at {start} … {array_end}, expected {end} … {end + num_bytes}")
            places[name] = Place(dtype, shape, LENGTH_BYTES + len(header) + start, num_bytes)
            end = array_end
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error!r}") from error
    return places


class ArrayReader:
    """Reads a file's arrays once, in the order of the file; made by `read_arrays_once`."""

    def __init__(self, path: Path, reader: FileReader, places: dict[str, Place], progress: Progress) -> None:
        self.path = path
        self.places = places
        self._reader = reader
        self._progress = progress

    def next_array(self, place: Place) -> np.ndarray:
        """The whole array that comes next, a copy."""
        array = np.empty(place.shape, place.dtype)
        self._got(self._reader.take_into(array.reshape(-1).view(np.uint8)), place.num_bytes)
        return array

    def next_rows(self, place: Place, most_bytes: int) -> Iterator[np.ndarray]:
        """The array that comes next, in pieces of some rows each (as many as lie side by side in memory); a piece is
        valid until the next."""
        start, end = 0, place.shape[0]
        row_bytes = place.num_bytes // max(end, 1)
        while start < end:
            ready = min(self._reader.available(), most_bytes) // row_bytes
            count = min(max(ready, 1), end - start)
            taken = self._reader.take(count * row_bytes)
            self._got(len(taken), count * row_bytes)
            yield np.frombuffer(taken, place.dtype).reshape(count, *place.shape[1:])
            start += count

    def _got(self, num_bytes: int, expected: int) -> None:
        if num_bytes < expected:
            raise DamagedFileError(f"{self.path} ends early")
        self._progress(num_bytes)


def read_arrays_once(
    path: Path, expected: FileRecord, use: Callable[[ArrayReader], None], progress: Progress = ignore
) -> None:
    """Let `use` read the arrays, each byte of the file being read once, and compare the checksum then.

    Raises DamagedFileError where size or checksum is not the expected one: what `use` has read is to be thrown away.
    """
    check_size(path, expected)
    with read_file(path) as reader:
        failed: Exception | None = None
        try:
            length = int.from_bytes(reader.take(LENGTH_BYTES), "little")
            places = _places(path, bytes(reader.take(min(length, expected["size_bytes"]))))
            use(ArrayReader(path, reader, places, progress))
        except (ValueError, IndexError) as error:  # damaged bytes may mean anything
            failed = error
        found = reader.checksum_of_all(progress)
    if found != expected["checksum"]:
        raise DamagedFileError(f"is damaged: checksum {found}, expected {expected['checksum']}")
    if failed is not None:
        raise failed
