"""Write the MindRecord files of a split, in blocks of up to `block_rows` rows (see schema.py).

Ids are stored as one column of bytes. As integers, MindRecord would store them one by one, each in as few bytes as it
needs. For ids this saves no space, and it took three quarters of the writing time and half of the reading time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.files import NO_ROOM
from common.packages import load_alone
from data_prep.prepared.data_files import block_checksum, data_file
from data_prep.prepared.examples import KEY_PREFIX, VECTORS, Examples, concatenate
from data_prep.prepared.schema import DataFile

# Number of rows in a MindRecord file, which then has about 215 MB. Until a file is finished, its encoded rows also take
# disk space in temporary files. Large files keep few workers busy at the end, because one worker writes a file. Files
# with fewer rows than a window for shuffling would have to read the window's rows several times.
FILE_ROWS = 1_000_000
INDEX_ENDING = ".db"  # Ending of the index file that MindRecord writes beside each file.
# A MindRecord file consists of a header and of pages, which hold the blocks of rows. With MindRecord's default sizes of
# 16 MB and 32 MB, a file of a few rows would have 50 MB. A page holds whole blocks only, and the header lists all
# pages. So a page is made large enough for _PAGE_BLOCKS blocks.
_HEADER_BYTES = 1 << 18
_PAGE_BLOCKS = 8
_MIN_PAGE_BYTES = 1 << 20
_PAGE_UNIT_BYTES = 4096
_BLOCK_EXTRA_BYTES = 64  # Upper bound of the bytes that MindRecord adds to a block: the lengths of its arrays.
_SAMPLES_PER_WRITE = 32


def mindrecord_file(split: str, number: int) -> str:
    """Return the name of MindRecord file `number` of a split. Its index has the same name with .db appended."""
    return f"{split}-{number:05d}.mindrecord"


def _library() -> Any:
    return load_alone("mindspore._c_mindrecord")


class MindRecordWriter:
    """Writes rows into a MindRecord file and its index, in the order in which the caller adds them.

    The files have the same bytes as if MindSpore's FileWriter had written them.
    """

    def __init__(self, path: Path, block_rows: int) -> None:
        self._path = path
        self._block_rows = block_rows
        self._rest: list[Examples] = []  # Added rows that do not fill a block yet.
        self._num_rows = 0
        self._checksums: list[str] = []  # Checksums of the blocks.
        self._writer: Any = None  # Writer object of MindSpore's library, or None until the first block is known.
        self._page_bytes = 0
        self._header: Any = None  # Header object of MindSpore's library. It must exist until the file is committed.
        self._fields: Sequence[str] = ()

    def write(self, rows: Examples) -> None:
        """Append rows to the file, in whole blocks.

        The rows after the last whole block are held back until the next call of `write` or `finish`.
        """
        rows = concatenate([*self._rest, rows])
        whole = len(rows) - len(rows) % self._block_rows
        self._write_blocks([rows.take(slice(i, i + self._block_rows)) for i in range(0, whole, self._block_rows)])
        self._rest = [rows.take(slice(whole, None))] if whole < len(rows) else []

    def finish(self) -> DataFile:
        """Write the rows that were held back as the last block, and write the index file.

        Return the MindRecord file's entry for schema.json. At least one row must have been written.
        """
        self._write_blocks(self._rest)
        self._require_room(0)
        with as_os_error(self._path.parent):
            self._writer.commit()
            index = _library().ShardIndexGenerator(os.path.realpath(self._path), False)
            index.build()
            index.write_to_db()
        return data_file(self._path.parent, self._path.name, self._num_rows, "".join(self._checksums))

    def _write_blocks(self, blocks: Sequence[Examples]) -> None:
        with as_os_error(self._path.parent):
            if blocks and self._writer is None:
                self._open(blocks[0])
            for first in range(0, len(blocks), _SAMPLES_PER_WRITE):
                samples = list(map(_sample, blocks[first : first + _SAMPLES_PER_WRITE]))
                packed = [_packed([sample[name] for name in self._fields]) for sample in samples]
                self._require_room(sum(map(len, packed)))
                self._writer.write_raw_data({}, packed, True, False)
        self._num_rows += sum(map(len, blocks))
        self._checksums += [block_checksum(block.columns()) for block in blocks]

    def _open(self, first_block: Examples) -> None:
        self._page_bytes = self._fitting_page(first_block)
        self._require_room(_HEADER_BYTES)
        library = _library()
        types = {name: {"type": str(column.dtype), "shape": [-1]} for name, column in _sample(first_block).items()}
        schema = library.Schema.build("blocks of rows", types | {"ids": {"type": "bytes"}})
        self._fields = schema.get_blob_fields()
        self._header = library.ShardHeader()
        self._header.add_schema(schema)
        self._writer = library.ShardWriter()
        self._writer.set_header_size(_HEADER_BYTES)
        self._writer.set_page_size(self._page_bytes)
        self._writer.open([str(self._path)], False, False)
        self._writer.set_shard_header(self._header)

    def _require_room(self, num_bytes: int) -> None:
        # At the end of each page, up to the size of one block may stay unused. In addition, two pages may be half full:
        # a page of blocks and a page of the blocks' numbers.
        require_room(self._path, num_bytes + num_bytes // _PAGE_BLOCKS + 2 * self._page_bytes)

    def _fitting_page(self, block: Examples) -> int:
        row_bytes = sum(column.nbytes for column in block.columns()) // len(block)
        needed = max(_PAGE_BLOCKS * (row_bytes * self._block_rows + _BLOCK_EXTRA_BYTES), _MIN_PAGE_BYTES)
        return -(-needed // _PAGE_UNIT_BYTES) * _PAGE_UNIT_BYTES


def _packed(arrays: Sequence[NDArray[Any]]) -> bytes:
    """Return the bytes that MindRecord stores for a sample that consists of `arrays`.

    For each array, they are its length in bytes as 8 bytes, and then its values. The arrays must be contiguous.
    """
    return b"".join(part for array in arrays for part in (array.nbytes.to_bytes(8, "big"), array.data))


def _sample(block: Examples) -> dict[str, NDArray[Any]]:
    """Return the arrays of the MindRecord sample that stores a block of rows, by column name (see schema.py)."""
    beside = {} if block.weights is None else {"weight": block.weights}
    keys = {f"{KEY_PREFIX}{name}": keys for name, keys in block.keys.items()}
    vectors = {VECTORS: block.vectors} if block.vectors.shape[1] else {}
    return {"ids": block.ids, "numeric": block.numeric, "label": block.labels, **beside, **keys, **vectors}


def require_room(path: Path, num_bytes: int) -> None:
    """Raise OSError if the disk has no room for the file `path` to grow by `num_bytes` bytes.

    MindSpore's library may crash if a write fails, so the space is checked first.
    """
    size = path.stat().st_size if path.exists() else 0
    with TemporaryFile(dir=path.parent) as probe:
        try:
            os.posix_fallocate(probe.fileno(), size, num_bytes)
        except OSError as error:
            # All other errors are ignored, because they mean that the file system does not support `posix_fallocate`.
            if error.errno in NO_ROOM:
                raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def as_os_error(folder: Path) -> Iterator[None]:
    """Replace a RuntimeError of MindSpore in the `with` block by an OSError of one line that names `folder`.

    MindSpore reports a full disk and similar faults as a RuntimeError with pages of text.
    """
    try:
        yield
    except RuntimeError as error:
        reason = re.search(r"\[ERROR\] (.*)", str(error))
        raise OSError(f"cannot write to {folder}: {reason[1] if reason else error}") from error


class ArrayWriter:
    """Writes int64 numbers to the .npy file `path` in several calls, without knowing in advance how many there are.

    The file appears at `path` when `finish` is called. Until then it has a temporary name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_suffix(".npy.tmp")
        self._file = self._beside.open("wb")
        self._length = 0
        self._write_header()

    def write(self, numbers: NDArray[np.int64]) -> None:
        """Append `numbers` [n] to the array in the file."""
        self._file.write(np.ascontiguousarray(numbers).data)
        self._length += len(numbers)

    def finish(self) -> None:
        """Write the final length of the array into the header of the .npy file, and rename the file from its temporary
        name to its final path.
        """
        self._file.seek(0)
        self._write_header()
        self._file.close()
        self._beside.replace(self._path)

    def _write_header(self) -> None:
        # NumPy pads the header so that the length can grow. So `finish` can overwrite the header that has length 0 with
        # one that has the final length.
        header = {"descr": "<i8", "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)
