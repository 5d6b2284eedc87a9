"""Finished pieces of work as files, so that a preparation that was ended goes on where it was.

A piece is a Python object in a file of its own, its arrays beside each other: the reader maps them into its memory.
It is written under another name and renamed, and its checksum stands in front: it is there whole or it is made again.
No list says which pieces there are, so none can be wrong.
"""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import socket
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

_MAGIC = b"wd-piece"
_NUMBERS = np.dtype("<u8")  # of the header: checksum of all that follows it, number of parts, their sizes
_ALIGNMENT = 64  # where arrays start in a file, so that they lie as NumPy and the native kernels like them
_UNFINISHED = ".unfinished-"


class Pieces:
    """The pieces in a folder, by name. Any process that sees the folder may write and read them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, value: object) -> None:
        """Put a piece there, in one rename. Raises OSError, after which it is as if it had not been tried."""
        path = self.folder / name
        beside = path.with_name(f"{name}{_UNFINISHED}{socket.gethostname()}-{os.getpid()}")
        try:
            with beside.open("wb") as file:
                file.writelines(_pack(value))
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> Any:
        """A piece; None where it is not there, or not as it was written. Its arrays are the reader's own."""
        content = self._mapped(name)
        return _unpack(content) if _is_whole(content) else None

    def is_whole(self, name: str) -> bool:
        """Whether a piece is there as it was written."""
        return _is_whole(self._mapped(name))

    def _mapped(self, name: str) -> memoryview:
        """A piece's file in memory; nothing where there is none."""
        try:
            with (self.folder / name).open("rb") as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
            return memoryview(b"")

    def remove(self, name: str) -> None:
        """Remove a piece if it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def clear(self, prefix: str) -> None:
        """Remove all pieces whose names start so."""
        for path in self.folder.glob(f"{prefix}*"):
            path.unlink()

    def clear_unfinished(self) -> None:
        """Remove what was being written when a run ended."""
        for path in self.folder.glob(f"*{_UNFINISHED}*"):
            path.unlink()


def _pack(value: object) -> list[bytes | memoryview]:
    """The parts of a piece's file."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
    sizes = np.array([len(parts), *(part.nbytes for part in parts)], _NUMBERS).tobytes()
    content: list[bytes | memoryview] = [sizes]
    end = len(_MAGIC) + _NUMBERS.itemsize + len(sizes)
    for part in parts:
        content += [bytes(-end % _ALIGNMENT), part]
        end += -end % _ALIGNMENT + part.nbytes
    digest = xxhash.xxh3_64()
    for block in content:
        digest.update(block)
    return [_MAGIC, np.array(digest.intdigest(), _NUMBERS).tobytes(), *content]


def _is_whole(content: memoryview) -> bool:
    """Whether a piece's file is as it was written."""
    start = len(_MAGIC) + _NUMBERS.itemsize
    if len(content) < start + _NUMBERS.itemsize or content[: len(_MAGIC)] != _MAGIC:
        return False
    checksum = int(np.frombuffer(content, _NUMBERS, 1, len(_MAGIC))[0])
    return xxhash.xxh3_64_intdigest(content[start:]) == checksum


def _unpack(content: memoryview) -> Any:
    start = len(_MAGIC) + _NUMBERS.itemsize
    num_parts = int(np.frombuffer(content, _NUMBERS, 1, start)[0])
    sizes = np.frombuffer(content, _NUMBERS, num_parts, start + _NUMBERS.itemsize).tolist()
    end = start + _NUMBERS.itemsize * (1 + num_parts)
    parts = []
    for size in sizes:
        first = end + -end % _ALIGNMENT
        end = first + size
        parts.append(content[first:end])
    return pickle.loads(parts[0], buffers=parts[1:])


def numbered(title: str, number: int, part: str) -> str:
    """The name of a part of the result of a reading's task."""
    return f"{title}-{number:07d}.{part}"


def leading(pieces: Pieces, title: str, part: str) -> Any:
    """The parts of that name of task 0, 1, … up to the first that is not whole."""
    for number in itertools.count():
        value = pieces.read(numbered(title, number, part))
        if value is None:
            return
        yield value
