"""Writing that is over when a function returns: synced, with the checksum taken on the way. Errors are OSError."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypedDict

import xxhash

Progress = Callable[[int], object]  # is told of bytes read or written, as tqdm's `update` is
BLOCK_BYTES = 4 << 20  # hashed while it is still in the core's cache


class FileRecord(TypedDict):
    """What a manifest says of a file; the checksum is "xxh3:" and 16 hex digits."""

    size_bytes: int
    checksum: str


def ignore(_: int) -> None:
    """A `Progress` that nobody watches."""


def write_file(path: Path, parts: Iterable[memoryview | bytes], progress: Progress = ignore) -> FileRecord:
    """Write a new file and sync it."""
    digest, size = xxhash.xxh3_64(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        for part in parts:
            for start in range(0, len(part), BLOCK_BYTES):
                block = part[start : start + BLOCK_BYTES]
                _write_all(descriptor, block)
                digest.update(block)
                size += len(block)
                progress(len(block))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileRecord(size_bytes=size, checksum=f"xxh3:{digest.hexdigest()}")


def _write_all(descriptor: int, block: memoryview | bytes) -> None:
    while block:
        block = block[os.write(descriptor, block) :]


def checksum(path: Path, progress: Progress = ignore) -> str:
    """That of `FileRecord`, read from the file."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            progress(len(block))
    return f"xxh3:{digest.hexdigest()}"


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder: a file that was made or renamed there is found after a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
