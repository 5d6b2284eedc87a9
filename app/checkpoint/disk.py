"""Files written once, sequentially, with the checksum computed on the way. Errors are OSError.

Bypasses the page cache (O_DIRECT) where the file system supports it: copying into fresh pages costs more than the disk,
and a checkpoint is not read again soon. Threads write two buffers while the caller fills a third, so the disk always
has a next request. `read_once` reads in the same way.
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

from common.files import FileRecord, format_checksum
from common.pages import huge_pages

Progress = Callable[[int], object]  # called with the number of bytes just read or written, as tqdm's `update`


@dataclass(frozen=True)
class Rows:
    """Rows that are read to where they are written from, without a copy."""

    count: int
    row_bytes: int
    read: Callable[[slice, np.ndarray], None]  # the rows to read, and where to: uint8 [their bytes]


Part = memoryview | bytes | Rows
BUFFER_BYTES = 4 << 20
BLOCK_BYTES = 1 << 20  # copied and hashed while it is in the core's cache
ALIGNMENT = 4096  # of all that O_DIRECT moves: enough for any disk
WRITES_ON_THEIR_WAY = 2  # a disk that waits for the next one is a sixth slower; three are no faster


def no_progress(_: int) -> None:
    """Do nothing: a `Progress` that is not shown."""


def write_file(path: Path, parts: Iterable[Part], progress: Progress = no_progress) -> FileRecord:
    """Write a new file and sync it."""
    descriptor = open_direct(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        threads = ThreadPoolExecutor(WRITES_ON_THEIR_WAY, "disk")
        with lend_buffers(WRITES_ON_THEIR_WAY + 1) as buffers, threads:
            writer = _Writer(descriptor, buffers, threads)
            for part in parts:
                for num_bytes in writer.write_rows(part) if isinstance(part, Rows) else writer.write(memoryview(part)):
                    progress(num_bytes)
            record = writer.finish()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return record


class _Writer:
    """Fills one buffer while threads write the others."""

    def __init__(self, descriptor: int, buffers: list[np.ndarray], threads: ThreadPoolExecutor) -> None:
        self._descriptor = descriptor
        self._views = deque(buffer.data for buffer in buffers)
        self._threads = threads
        self._on_their_way: deque[Future[None]] = deque()
        self._digest = xxhash.xxh3_64()
        self._filled = self._num_written = 0  # bytes in the buffer at hand, and those of all before it

    def write(self, part: memoryview) -> Iterator[int]:
        """Copy `part`, and yield the number of bytes of each block after it."""
        while part:
            block = part[: min(BLOCK_BYTES, BUFFER_BYTES - self._filled)]
            self._views[0][self._filled : self._filled + len(block)] = block
            part = part[len(block) :]
            yield self._advance(len(block))

    def write_rows(self, rows: Rows) -> Iterator[int]:
        """Let `rows` be read into the buffers. Yield as `write`."""
        start = 0
        while start < rows.count:
            count = min((BUFFER_BYTES - self._filled) // rows.row_bytes, rows.count - start)
            if count > 0:
                num_bytes = count * rows.row_bytes
                room = np.frombuffer(self._views[0], np.uint8, num_bytes, self._filled)
                rows.read(slice(start, start + count), room)
                yield self._advance(num_bytes)
            else:  # a row in two buffers
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
        """Write the rest, padded to a whole block, and truncate the file to its size."""
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
    """Open a file beside the page cache if the file system allows it, and return the descriptor."""
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that have a page cache only
            raise
        return os.open(path, flags, 0o666)


_FREE_BUFFERS: list[np.ndarray] = []  # kept: fresh pages cost more than what is done with them


@contextmanager
def lend_buffers(count: int) -> Iterator[list[np.ndarray]]:
    """Lend buffers on huge pages: a request to the disk lists its pages, which are then few."""
    buffers = [_FREE_BUFFERS.pop() if _FREE_BUFFERS else huge_pages(BUFFER_BYTES) for _ in range(count)]
    yield buffers
    _FREE_BUFFERS.extend(buffers)
