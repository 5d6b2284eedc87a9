"""Read files sequentially, from start to end, while threads read the next blocks in advance.

The checksum of a file is computed from the bytes that are read anyway.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash

from common.arrays import disk
from common.arrays.disk import Progress, lend_buffers, no_progress, open_direct
from common.arrays.format import ArrayEntry, dtype_of, take_entries
from common.files import DamagedFileError, FileRecord, check_size, format_checksum

READS_AHEAD = 4


class FileReader:
    """Reads a file once, from start to end, while threads read its next blocks in advance. `read_file` creates one."""

    def __init__(self, descriptor: int, buffers: list[np.ndarray], threads: ThreadPoolExecutor) -> None:
        self._descriptor = descriptor
        self._threads = threads
        self._digest = xxhash.xxh3_64()
        self._size = os.fstat(descriptor).st_size
        self._next_start = 0
        self._coming: deque[tuple[memoryview, Future[int]]] = deque()
        self._block = memoryview(b"")  # Bytes of the current buffer that `take` has not returned yet.
        *ahead, self._at_hand = (buffer.data for buffer in buffers)
        for view in ahead:
            self._fetch(view)

    def available(self) -> int:
        """Return how many bytes the next call of `take` can return without a copy. 0 means the end of the file."""
        if not self._block:
            self._receive()
        return len(self._block)

    def take(self, num_bytes: int) -> memoryview:
        """Return the next `num_bytes` bytes of the file, or fewer at its end. The view is valid until the next call.

        If `num_bytes` is more than `available` returns, the bytes are copied into new memory.
        """
        if num_bytes > self.available():
            whole = np.empty(min(num_bytes, self._size), np.uint8)
            return whole.data[: self.take_into(whole)]
        block, self._block = self._block[:num_bytes], self._block[num_bytes:]
        self._digest.update(block)
        return block

    def take_into(self, target: np.ndarray) -> int:
        """Copy the next bytes of the file into `target` [n] uint8, until it is full or the file ends.

        Return the number of bytes that were copied.
        """
        filled = 0
        while filled < target.size and (ready := self.available()):
            part = self.take(min(ready, target.size - filled, disk.BLOCK_BYTES))
            target[filled : filled + len(part)] = part
            filled += len(part)
        return filled

    def _receive(self) -> None:
        self._fetch(self._at_hand)
        if self._coming:
            self._at_hand, read = self._coming.popleft()
            self._block = self._at_hand[: read.result()]

    def _fetch(self, view: memoryview) -> None:
        start, self._next_start = self._next_start, self._next_start + disk.BUFFER_BYTES

        def read_all() -> int:
            filled = 0
            while filled < len(view) and (count := os.preadv(self._descriptor, [view[filled:]], start + filled)):
                filled += count
            return filled

        if start < self._size:
            self._coming.append((view, self._threads.submit(read_all)))

    def checksum_of_all(self, progress: Progress = no_progress) -> str:
        """Read the rest of the file, and return the checksum of the whole file.

        After each block, `progress` is called with the block's number of bytes.
        """
        while ready := self.available():
            progress(len(self.take(min(ready, disk.BLOCK_BYTES))))
        return format_checksum(self._digest)


@contextmanager
def read_file(path: Path) -> Iterator[FileReader]:
    """Open the file at `path` for the `with` block, and yield a `FileReader`, which reads the file once, from start to
    end.
    """
    descriptor = open_direct(path, os.O_RDONLY)
    try:
        with lend_buffers(READS_AHEAD + 1) as buffers, ThreadPoolExecutor(READS_AHEAD, "disk") as threads:
            yield FileReader(descriptor, buffers, threads)
    finally:
        os.close(descriptor)


@contextmanager
def read_checked(path: Path, expected: FileRecord, progress: Progress = no_progress) -> Iterator[FileReader]:
    """Yield a reader of a file for the `with` block. After the block, compare the file's checksum with `expected`.

    The block need not read all of the file; the rest is read after it. Raise DamagedFileError if the file is missing,
    or if its size or checksum differs from `expected`. If the checksum differs, a ValueError or LookupError that the
    block has raised is dropped, because damaged bytes may have caused it.
    """
    check_size(path, expected)
    with read_file(path) as reader:
        failed: Exception | None = None
        try:
            yield reader
        except (ValueError, LookupError) as error:
            failed = error
        checksum = reader.checksum_of_all(progress)
    if checksum != expected["checksum"]:
        raise DamagedFileError(f"is damaged: checksum {checksum}, expected {expected['checksum']}")
    if failed is not None:
        raise failed


class ArrayReader:
    """Reads the arrays of a file once, in the order of the file. `read_arrays_once` creates one."""

    def __init__(self, path: Path, reader: FileReader, entries: dict[str, ArrayEntry]) -> None:
        self.path = path
        self.entries = entries
        self._reader = reader

    def next_array(self, entry: ArrayEntry) -> np.ndarray:
        """Return the next array of the file, copied into new memory.

        `entry` must be this array's own item of `entries`. Raise DamagedFileError if the file ends before the array
        does.
        """
        array = np.empty(entry.shape, dtype_of(entry.dtype))
        self._check_all_came(self._reader.take_into(array.reshape(-1).view(np.uint8)), entry.num_bytes)
        return array

    def next_rows(self, entry: ArrayEntry, most_bytes: int) -> Iterator[np.ndarray]:
        """Yield the next array of the file in blocks of consecutive rows.

        A block has at most `most_bytes` bytes, but at least one row. `entry` must be this array's own item of
        `entries`. A block is only valid until the next one is taken. Raise DamagedFileError if the file ends before the
        array does.
        """
        start, end = 0, entry.shape[0]
        row_bytes = entry.num_bytes // max(end, 1)
        while start < end:
            ready = min(self._reader.available(), most_bytes) // row_bytes
            count = min(max(ready, 1), end - start)
            block = self._reader.take(count * row_bytes)
            self._check_all_came(len(block), count * row_bytes)
            yield np.frombuffer(block, dtype_of(entry.dtype)).reshape(count, *entry.shape[1:])
            start += count

    def _check_all_came(self, num_bytes: int, expected: int) -> None:
        if num_bytes < expected:
            raise DamagedFileError(f"{self.path} ends early")


def read_arrays_once(path: Path, expected: FileRecord, use: Callable[[ArrayReader], None]) -> None:
    """Call `use` with a reader of the arrays of a file, and then compare the file's checksum with `expected`.

    Each byte of the file is read once. Raise DamagedFileError if the size or the checksum differs from `expected`. The
    caller must then discard everything that `use` has read.
    """
    with read_checked(path, expected) as reader:
        use(ArrayReader(path, reader, take_entries(path, reader.take, expected["size_bytes"])))
