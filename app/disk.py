"""Files written and read once, from begin to end, with the checksum taken on the way. Errors are OSError.

Past the page cache (O_DIRECT) where the file system can: copying into fresh pages costs more than the disk, and a
checkpoint is not read again soon. A thread moves one buffer while the caller fills, or uses, the other.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import xxhash

Progress = Callable[[int], object]  # is told of bytes read or written, as tqdm's `update` is
Part = memoryview | bytes
BUFFER_BYTES = 8 << 20
BLOCK_BYTES = 1 << 20  # copied and hashed while it is in the core's cache
ALIGNMENT = 4096  # of all that O_DIRECT moves: enough for any disk


class FileRecord(TypedDict):
    """What a manifest says of a file; the checksum is "xxh3:" and 16 hex digits."""

    size_bytes: int
    checksum: str


def ignore(_: int) -> None:
    """A `Progress` that nobody watches."""


def write_file(path: Path, parts: Iterable[Part], progress: Progress = ignore) -> FileRecord:
    """Write a new file and sync it."""
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with _buffers() as buffers, ThreadPoolExecutor(1, "disk") as thread:
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
    """Fills one buffer while the other is on its way to the disk."""

    def __init__(self, descriptor: int, buffers: list[mmap.mmap], thread: ThreadPoolExecutor) -> None:
        self._descriptor = descriptor
        self._views = [memoryview(buffer) for buffer in buffers]
        self._thread = thread
        self._on_its_way: Future[None] | None = None
        self._digest = xxhash.xxh3_64()
        self._filled = self._written = 0  # bytes in the buffer at hand, and those of all before it

    def write(self, block: memoryview) -> None:
        self._digest.update(block)
        while block:
            taken = block[: BUFFER_BYTES - self._filled]
            self._views[0][self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            block = block[len(taken) :]
            if self._filled == BUFFER_BYTES:
                self._send(BUFFER_BYTES)

    def _send(self, num_bytes: int) -> None:
        self._wait()
        self._on_its_way = self._thread.submit(_write_all, self._descriptor, self._views[0][:num_bytes], self._written)
        self._written += num_bytes
        self._filled = 0
        self._views.reverse()

    def _wait(self) -> None:
        if self._on_its_way is not None:
            self._on_its_way.result()

    def finish(self) -> FileRecord:
        """Write the rest, filled up to a whole block, and cut the file to its size."""
        size = self._written + self._filled
        rest = -(-self._filled // ALIGNMENT) * ALIGNMENT
        self._views[0][self._filled : rest] = bytes(rest - self._filled)
        if rest:
            self._send(rest)
        self._wait()
        if rest and size != self._written:
            os.ftruncate(self._descriptor, size)
        return FileRecord(size_bytes=size, checksum=_as_text(self._digest))


class DamagedFileError(ValueError):
    """A file whose size or content is not what its record says."""


class FileReader:
    """Reads a file once, from begin to end; made by `read_file`."""

    def __init__(self, descriptor: int, buffers: list[mmap.mmap], thread: ThreadPoolExecutor) -> None:
        self._descriptor = descriptor
        self._views = [memoryview(buffer) for buffer in buffers]
        self._thread = thread
        self._digest = xxhash.xxh3_64()
        self._block = memoryview(b"")  # what is left of the buffer at hand
        self._next_start = 0
        self._coming = self._fetch()

    def take(self, num_bytes: int) -> memoryview:
        """The next bytes, valid until the next call; fewer at the file's end."""
        if not self._block:
            self._receive()
        if num_bytes <= len(self._block):
            taken, self._block = self._block[:num_bytes], self._block[num_bytes:]
        else:
            taken = memoryview(self._joined(num_bytes))
        self._digest.update(taken)
        return taken

    def _joined(self, num_bytes: int) -> bytearray:
        joined = bytearray()
        while len(joined) < num_bytes and self._block:
            part = self._block[: num_bytes - len(joined)]
            joined += part
            self._block = self._block[len(part) :]
            if not self._block:
                self._receive()
        return joined

    def _receive(self) -> None:
        num_bytes = self._coming.result()
        self._block = self._views[0][:num_bytes]
        self._views.reverse()
        if num_bytes:
            self._coming = self._fetch()

    def _fetch(self) -> Future[int]:
        start, self._next_start = self._next_start, self._next_start + BUFFER_BYTES
        return self._thread.submit(os.preadv, self._descriptor, [self._views[0]], start)

    def checksum_of_all(self, progress: Progress = ignore) -> str:
        """The checksum of the whole file; reads what was not taken."""
        while rest := self.take(BLOCK_BYTES):
            progress(len(rest))
        return _as_text(self._digest)


@contextmanager
def read_file(path: Path) -> Iterator[FileReader]:
    """A reader of the file at `path`."""
    descriptor = _open(path, os.O_RDONLY)
    try:
        with _buffers() as buffers, ThreadPoolExecutor(1, "disk") as thread:
            yield FileReader(descriptor, buffers, thread)
    finally:
        os.close(descriptor)


def checksum_is(path: Path, expected: FileRecord, progress: Progress = ignore) -> None:
    """Read a file. Raises DamagedFileError where it is missing, or size or checksum is not the expected one."""
    check_size(path, expected)
    with read_file(path) as reader:
        found = reader.checksum_of_all(progress)
    if found != expected["checksum"]:
        raise DamagedFileError(f"is damaged: checksum {found}, expected {expected['checksum']}")


def check_size(path: Path, expected: FileRecord) -> None:
    """Raise DamagedFileError unless the file is there and as large as expected."""
    if not path.is_file():
        raise DamagedFileError("is missing")
    if path.stat().st_size != expected["size_bytes"]:
        raise DamagedFileError(f"has {path.stat().st_size} bytes, expected {expected['size_bytes']}")


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder: a file that was made or renamed there is found after a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what a file system says that has a page cache only
            raise
        return os.open(path, flags, 0o666)


def _write_all(descriptor: int, block: memoryview, start: int) -> None:
    while block:
        written = os.pwrite(descriptor, block, start)
        block, start = block[written:], start + written


def _as_text(digest: xxhash.xxh3_64) -> str:
    return f"xxh3:{digest.hexdigest()}"


_FREE_BUFFERS: list[list[mmap.mmap]] = []  # kept: fresh pages cost more than what is done with them


@contextmanager
def _buffers() -> Iterator[list[mmap.mmap]]:
    """Two buffers that start on a page."""
    try:
        pair = _FREE_BUFFERS.pop()
    except IndexError:
        pair = [mmap.mmap(-1, BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]
    yield pair
    _FREE_BUFFERS.append(pair)
