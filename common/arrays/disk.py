"""Write and read files sequentially, and compute the checksum of each file from the bytes that pass. Errors are raised
as OSError. `write_arrays` and `read_arrays_once` are for files of arrays in the safetensors format, which format.py
describes.

The system's page cache is bypassed (O_DIRECT) where the file system supports it: copying the data into fresh pages of
the cache takes longer than writing them to the disk, and a checkpoint is not read again soon. Threads write two buffers
to the disk while the caller fills a third one, so the disk always has a next request. While a file is read, threads
read its next blocks in advance.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from common.arrays.format import ArrayEntry, dtype_of, make_header, take_entries
from common.arrays.pages import huge_pages
from common.files import DamagedFileError, FileRecord, check_size, format_checksum

# Function that is called with the number of bytes just read or written, such as the `update` of tqdm.
Progress = Callable[[int], object]


@dataclass(frozen=True)
class RowSource:
    """`count` rows of `row_bytes` bytes each that will be written to a file.

    `read` copies a range of the rows from memory into the buffer from which they are written to the disk, without
    another copy in between.
    """

    count: int
    row_bytes: int
    # Function that is called with a slice of row indices and a uint8 array, and copies the bytes of these rows into the
    # array.
    read: Callable[[slice, np.ndarray], None]


Part = memoryview | bytes | RowSource
BUFFER_BYTES = 4 << 20
# `write` copies bytes into a buffer in blocks of this size. A block is hashed directly after it was copied, while it is
# still in the processor's cache.
BLOCK_BYTES = 1 << 20
# O_DIRECT demands addresses, offsets and sizes that are multiples of this many bytes. 4096 is enough for any disk.
ALIGNMENT = 4096
# Number of buffers that threads write at the same time. With one, the disk waits between requests, and writing is a
# sixth slower. Three are no faster than two.
WRITES_ON_THEIR_WAY = 2
READS_AHEAD = 4  # Number of blocks of a file that threads read in advance.


def no_progress(_: int) -> None:
    """Do nothing. This function is the default value of the parameters named `progress`, for callers that show no
    progress.
    """


def write_file(path: Path, parts: Iterable[Part], progress: Progress = no_progress) -> FileRecord:
    """Write a file whose content is the given parts one after another, and sync it. Return its size and checksum.

    An existing file is overwritten. The content is copied in blocks of at most `BLOCK_BYTES` bytes. The blocks of a
    part that is a `RowSource`, which computes its rows when they are written, have at most `BUFFER_BYTES` bytes. After
    each block, `progress` is called with the block's number of bytes.
    """
    descriptor = open_direct(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        threads = ThreadPoolExecutor(WRITES_ON_THEIR_WAY, "disk")
        with lend_buffers(WRITES_ON_THEIR_WAY + 1) as buffers, threads:
            writer = _Writer(descriptor, buffers, threads)
            for part in parts:
                for num_bytes in (
                    writer.write_rows(part) if isinstance(part, RowSource) else writer.write(memoryview(part))
                ):
                    progress(num_bytes)
            record = writer.finish()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return record


class _Writer:
    """Writes a file by means of several buffers: the caller fills one while threads write the others to the disk."""

    def __init__(self, descriptor: int, buffers: list[np.ndarray], threads: ThreadPoolExecutor) -> None:
        self._descriptor = descriptor
        self._views = deque(buffer.data for buffer in buffers)
        self._threads = threads
        self._on_their_way: deque[Future[None]] = deque()
        self._digest = xxhash.xxh3_64()
        # `_filled`: number of bytes in the buffer that is being filled. `_num_written`: number of bytes of the file
        # that came before that buffer.
        self._filled = self._num_written = 0

    def write(self, part: memoryview) -> Iterator[int]:
        """Append the bytes `part` to the file: copy them into the buffers block by block.

        Yield each block's number of bytes.
        """
        while part:
            block = part[: min(BLOCK_BYTES, BUFFER_BYTES - self._filled)]
            self._views[0][self._filled : self._filled + len(block)] = block
            part = part[len(block) :]
            yield self._advance(len(block))

    def write_rows(self, rows: RowSource) -> Iterator[int]:
        """Append `rows` to the file: copy them into the buffers block by block. Yield each block's number of bytes."""
        start = 0
        while start < rows.count:
            count = min((BUFFER_BYTES - self._filled) // rows.row_bytes, rows.count - start)
            if count > 0:
                num_bytes = count * rows.row_bytes
                room = np.frombuffer(self._views[0], np.uint8, num_bytes, self._filled)
                rows.read(slice(start, start + count), room)
                yield self._advance(num_bytes)
            else:  # The next row does not fit into the rest of this buffer, so its last bytes go to the next buffer.
                count, row = 1, np.empty(rows.row_bytes, np.uint8)
                rows.read(slice(start, start + 1), row)
                yield from self.write(row.data)
            start += count

    def _advance(self, num_bytes: int) -> int:
        self._digest.update(self._views[0][self._filled : self._filled + num_bytes])
        self._filled += num_bytes
        if self._filled == BUFFER_BYTES:
            self._send(BUFFER_BYTES)
        return num_bytes

    def _send(self, num_bytes: int) -> None:
        def write_all(part: memoryview, start: int) -> None:
            while part:
                count = os.pwrite(self._descriptor, part, start)
                part, start = part[count:], start + count

        self._wait(WRITES_ON_THEIR_WAY - 1)
        self._on_their_way.append(self._threads.submit(write_all, self._views[0][:num_bytes], self._num_written))
        self._num_written += num_bytes
        self._filled = 0
        self._views.rotate(-1)

    def _wait(self, num_left: int) -> None:
        while len(self._on_their_way) > num_left:
            self._on_their_way.popleft().result()

    def finish(self) -> FileRecord:
        """Write the last buffer, padded with zeros to a multiple of ALIGNMENT, then cut off the padding in the file.

        Return the size and the checksum of the file.
        """
        size = self._num_written + self._filled
        rest = -(-self._filled // ALIGNMENT) * ALIGNMENT
        self._views[0][self._filled : rest] = bytes(rest - self._filled)
        if rest:
            self._send(rest)
        self._wait(0)
        if rest and size != self._num_written:
            os.ftruncate(self._descriptor, size)
        return FileRecord(size_bytes=size, checksum=format_checksum(self._digest))


def open_direct(path: Path, flags: int) -> int:
    """Open a file for reads and writes that bypass the system's page cache (O_DIRECT). If the file system does not
    support this, open the file as usual.

    Return the file descriptor.
    """
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL means that the file system does not support O_DIRECT.
            raise
        return os.open(path, flags, 0o666)


# Buffers that no `with` block of `lend_buffers` uses now. The buffers are kept for later calls, because the system
# takes longer to map the pages of a new buffer than to write the bytes of the buffer to the disk.
_FREE_BUFFERS: list[np.ndarray] = []


@contextmanager
def lend_buffers(count: int) -> Iterator[list[np.ndarray]]:
    """Yield `count` uint8 buffers of BUFFER_BYTES bytes. After the `with` block, keep them for the next call.

    The buffers are on huge memory pages, because a request to the disk lists the memory pages of its buffer, and a
    request with a short list is faster.
    """
    buffers = [_FREE_BUFFERS.pop() if _FREE_BUFFERS else huge_pages(BUFFER_BYTES) for _ in range(count)]
    yield buffers
    _FREE_BUFFERS.extend(buffers)


_ARRAY_ALIGNMENT = 8  # By default, the first array of a file begins at a multiple of this many bytes.


@dataclass(frozen=True)
class ArraySource:
    """An array to be written to a file: its dtype, its shape, and a function that returns its values in parts."""

    dtype: str
    shape: tuple[int, ...]
    # Function that returns the values of the array as consecutive parts. Parts that are arrays are C-contiguous.
    pieces: Callable[[], Iterable[np.ndarray | RowSource]]


def column_of(array: np.ndarray) -> ArraySource:
    """Return an `ArraySource`, for `write_arrays`, of an array that is in memory."""
    return ArraySource(array.dtype.name, array.shape, lambda: [np.ascontiguousarray(array)])


def write_arrays(
    path: Path, columns: dict[str, ArraySource], progress: Progress = no_progress, alignment: int = _ARRAY_ALIGNMENT
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
            part = self.take(min(ready, target.size - filled, BLOCK_BYTES))
            target[filled : filled + len(part)] = part
            filled += len(part)
        return filled

    def _receive(self) -> None:
        self._fetch(self._at_hand)
        if self._coming:
            self._at_hand, read = self._coming.popleft()
            self._block = self._at_hand[: read.result()]

    def _fetch(self, view: memoryview) -> None:
        start, self._next_start = self._next_start, self._next_start + BUFFER_BYTES

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
            progress(len(self.take(min(ready, BLOCK_BYTES))))
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
