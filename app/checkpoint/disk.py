"""Files written and read once, sequentially, with the checksum computed on the way. Errors are OSError.

Bypasses the page cache (O_DIRECT) where the file system supports it: copying into fresh pages costs more than the disk,
and a checkpoint is not read again soon. A thread writes one buffer while the caller fills the other, and several
threads read ahead of the caller, so the disk always has a next request.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import numpy as np
import xxhash

from common.files import format_checksum
from common.memory import huge_pages

Progress = Callable[[int], object]  # called with the number of bytes just read or written, as tqdm's `update`
Part = memoryview | bytes
BUFFER_BYTES = 4 << 20
READS_AHEAD = 4
BLOCK_BYTES = 1 << 20  # copied and hashed while it is in the core's cache
ALIGNMENT = 4096  # of all that O_DIRECT moves: enough for any disk


class FileRecord(TypedDict):
    """A file's entry in a manifest."""

    size_bytes: int
    checksum: str  # "xxh3:" and 16 hex digits


def message_of(error: BaseException) -> str:
    """Return an error as the console shows it: the system's errors without their numbers."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"


def no_progress(_: int) -> None:
    """Do nothing: a `Progress` that is not shown."""


def write_file(path: Path, parts: Iterable[Part], progress: Progress = no_progress) -> FileRecord:
    """Write a new file and sync it."""
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with _buffers(2) as buffers, ThreadPoolExecutor(1, "disk") as thread:
            writer = _Writer(descriptor, buffers, thread)
            for part in parts:
                for start in range(0, len(part), BLOCK_BYTES):
                    block = memoryview(part)[start : start + BLOCK_BYTES]
                    writer.write(block)
                    progress(len(block))
            record = writer.finish()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return record


class _Writer:
    """Fills one buffer while a thread writes the other."""

    def __init__(self, descriptor: int, buffers: list[np.ndarray], thread: ThreadPoolExecutor) -> None:
        self._descriptor = descriptor
        self._views = [buffer.data for buffer in buffers]
        self._thread = thread
        self._on_its_way: Future[None] | None = None
        self._digest = xxhash.xxh3_64()
        self._filled = self._written = 0  # bytes in the buffer at hand, and those of all before it

    def write(self, block: memoryview) -> None:
        self._digest.update(block)
        while block:
            part = block[: BUFFER_BYTES - self._filled]
            self._views[0][self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            block = block[len(part) :]
            if self._filled == BUFFER_BYTES:
                self._send(BUFFER_BYTES)

    def _send(self, num_bytes: int) -> None:
        def write_all(part: memoryview, start: int) -> None:
            while part:
                count = os.pwrite(self._descriptor, part, start)
                part, start = part[count:], start + count

        if self._on_its_way is not None:
            self._on_its_way.result()
        self._on_its_way = self._thread.submit(write_all, self._views[0][:num_bytes], self._written)
        self._written += num_bytes
        self._filled = 0
        self._views.reverse()

    def finish(self) -> FileRecord:
        """Write the rest, padded to a whole block, and truncate the file to its size."""
        size = self._written + self._filled
        rest = -(-self._filled // ALIGNMENT) * ALIGNMENT
        self._views[0][self._filled : rest] = bytes(rest - self._filled)
        if rest:
            self._send(rest)
        if self._on_its_way is not None:
            self._on_its_way.result()
        if rest and size != self._written:
            os.ftruncate(self._descriptor, size)
        return FileRecord(size_bytes=size, checksum=format_checksum(self._digest))


class DamagedFileError(ValueError):
    """A file whose size or content differs from its record."""


class FileReader:
    """Reads a file once, sequentially. `read_file` makes it."""

    def __init__(self, descriptor: int, buffers: list[np.ndarray], threads: ThreadPoolExecutor) -> None:
        self._descriptor = descriptor
        self._threads = threads
        self._digest = xxhash.xxh3_64()
        self._size = os.fstat(descriptor).st_size
        self._next_start = 0
        self._coming: deque[tuple[memoryview, Future[int]]] = deque()
        self._block = memoryview(b"")  # the rest of the buffer at hand
        *ahead, self._at_hand = (buffer.data for buffer in buffers)
        for view in ahead:
            self._fetch(view)

    def available(self) -> int:
        """Return the number of next bytes that are contiguous in memory, 0 at the file's end."""
        if not self._block:
            self._receive()
        return len(self._block)

    def take(self, num_bytes: int) -> memoryview:
        """Return the next bytes, fewer at the file's end, valid until the next call. Copy more than are `available`."""
        if num_bytes > self.available():
            joined = np.empty(min(num_bytes, self._size), np.uint8)
            return joined.data[: self.take_into(joined)]
        block, self._block = self._block[:num_bytes], self._block[num_bytes:]
        self._digest.update(block)
        return block

    def take_into(self, target: np.ndarray) -> int:
        """Copy the next bytes into `target` [n] uint8 and return their number, less than n at the file's end."""
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
        """Return the checksum of the whole file, after reading the bytes that were not taken."""
        while ready := self.available():
            progress(len(self.take(min(ready, BLOCK_BYTES))))
        return format_checksum(self._digest)


@contextmanager
def read_file(path: Path) -> Iterator[FileReader]:
    """Open the file at `path` for one sequential read."""
    descriptor = _open(path, os.O_RDONLY)
    try:
        with _buffers(READS_AHEAD + 1) as buffers, ThreadPoolExecutor(READS_AHEAD, "disk") as threads:
            yield FileReader(descriptor, buffers, threads)
    finally:
        os.close(descriptor)


@contextmanager
def read_checked(path: Path, expected: FileRecord, progress: Progress = no_progress) -> Iterator[FileReader]:
    """Open a file for one read, of which the block may leave the rest.

    Raises DamagedFileError, in place of a ValueError or LookupError of the block, if the file is missing or has another
    size or checksum than expected: damaged bytes may mean anything.
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


def check_size(path: Path, expected: FileRecord) -> None:
    """Raise DamagedFileError unless the file exists and has the expected size."""
    if not path.is_file():
        raise DamagedFileError("is missing")
    if path.stat().st_size != expected["size_bytes"]:
        raise DamagedFileError(f"has {path.stat().st_size} bytes, expected {expected['size_bytes']}")


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that have a page cache only
            raise
        return os.open(path, flags, 0o666)


_FREE_BUFFERS: list[np.ndarray] = []  # kept: fresh pages cost more than what is done with them


@contextmanager
def _buffers(count: int) -> Iterator[list[np.ndarray]]:
    """Lend buffers on huge pages: a request to the disk lists its pages, which are then few."""
    buffers = [_FREE_BUFFERS.pop() if _FREE_BUFFERS else huge_pages(BUFFER_BYTES) for _ in range(count)]
    yield buffers
    _FREE_BUFFERS.extend(buffers)
