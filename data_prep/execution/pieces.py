"""Store the results of finished work as files, so that an interrupted preparation can be resumed.

A piece is one object in a file: JSON, followed by its arrays, which the reader maps into memory. It is written under
another name and renamed, and starts with its checksum. So a piece is either complete or computed again. There is no
list of pieces that could be wrong.

A piece can hold plain values, arrays of numbers, and objects of the dataclasses registered with `storable`. Unlike
unpickling, reading a piece runs no code that the file names. Somebody who can write to the folder can change
numbers, but cannot run programs.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

_MAGIC = b"wd-piece"
# Type of the numbers in the header: checksum of everything behind it, number of parts, sizes of the parts.
_NUMBERS = np.dtype("<u8")
_ALIGNMENT = 64  # Alignment in bytes of arrays in a file, which NumPy and the native kernels prefer.
_UNFINISHED = ".unfinished-"
_NUMBER_KINDS = "biuf"  # Kinds of NumPy types whose bytes are numbers.

_storable: dict[str, type] = {}


def storable(*classes: type) -> None:
    """Register dataclasses whose objects may be stored in pieces.

    The process that reads the pieces must register the classes too.
    """
    for cls in classes:
        if not dataclasses.is_dataclass(cls) or _storable.setdefault(cls.__name__, cls) is not cls:
            raise TypeError(f"{cls!r} is not a dataclass, or another one of its name is storable")


class Pieces:
    """The pieces in a folder, by name. Any process with access to the folder may write and read them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, value: object) -> None:
        """Write a piece atomically. After an OSError the folder is unchanged."""
        path, content = self.folder / name, _pack(value)
        beside = path.with_name(f"{name}{_UNFINISHED}{socket.gethostname()}-{os.getpid()}")
        try:
            with beside.open("wb") as file:
                file.writelines(content)
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> Any:
        """Return the object in a piece, or None if it is missing or damaged.

        Changes to its arrays do not reach the file.
        """
        content = self._mapped(name)
        if not _is_whole(content):
            return None
        try:
            return _unpack(content)
        # The checksum is right, but the content has another form.
        except (ValueError, LookupError, TypeError, RecursionError):
            return None

    def expect(self, name: str) -> Any:
        """Return the object in a piece that was written before.

        Raise OSError if the piece is now missing or damaged.
        """
        value = self.read(name)
        if value is None:
            raise OSError(f"{self.folder / name} does not hold what was written to it; check the disk")
        return value

    def is_whole(self, name: str) -> bool:
        return _is_whole(self._mapped(name))

    def _mapped(self, name: str) -> memoryview:
        """Return a piece's file mapped into memory. It is empty if there is no file."""
        try:
            with (self.folder / name).open("rb") as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except (FileNotFoundError, ValueError):  # An empty file cannot be mapped.
            return memoryview(b"")

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def clear(self, prefix: str) -> None:
        for path in self.folder.glob(f"{prefix}*"):
            path.unlink()

    def clear_unfinished(self) -> None:
        """Remove the files that an interrupted run was writing."""
        for path in self.folder.glob(f"*{_UNFINISHED}*"):
            path.unlink()


def _pack(value: object) -> list[bytes | memoryview]:
    """Return the parts of the file of a piece that holds `value`."""
    buffers: list[memoryview] = []
    plain = json.dumps(_plain(value, buffers), separators=(",", ":")).encode()
    parts = [memoryview(plain), *buffers]
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


def _plain(value: Any, buffers: list[memoryview]) -> Any:
    """Convert a value for JSON.

    Types that JSON lacks become {kind: content}; bytes and arrays are appended to `buffers`.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item(), buffers)
    if isinstance(value, list):
        return [_plain(item, buffers) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, buffers) for item in value]}
    if isinstance(value, dict):
        kind = "Counter" if isinstance(value, Counter) else "dict"
        return {kind: [[_plain(key, buffers), _plain(item, buffers)] for key, item in value.items()]}
    if isinstance(value, bytes):
        buffers.append(memoryview(value))
        return {"bytes": len(buffers)}
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBER_KINDS:
        buffers.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return {"array": [len(buffers), value.dtype.str, list(value.shape)]}
    if isinstance(value, Path):
        return {"path": str(value)}
    name = type(value).__name__
    if _storable.get(name) is not type(value) or not dataclasses.is_dataclass(value):
        raise TypeError(f"a piece cannot hold {name}: only plain values, arrays of numbers and what is `storable`")
    return {name: {field.name: _plain(getattr(value, field.name), buffers) for field in dataclasses.fields(value)}}


def _is_whole(content: memoryview) -> bool:
    """Return True if the content of a piece's file matches its checksum."""
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
    return _value(json.loads(bytes(parts[0])), parts)


def _value(plain: Any, parts: list[memoryview]) -> Any:
    """Convert a value from JSON back. `parts` are all parts of the file, the JSON first."""
    if isinstance(plain, list):
        return [_value(item, parts) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind in _KINDS:
        return _KINDS[kind](content, parts)
    return _storable[kind](**{name: _value(item, parts) for name, item in content.items()})


def _array(content: Any, parts: list[memoryview]) -> NDArray[Any]:
    part, dtype, shape = content
    if np.dtype(dtype).kind not in _NUMBER_KINDS:
        raise TypeError(f"an array of {dtype} is not an array of numbers")
    array = np.ndarray(shape, dtype, parts[part])
    # A view keeps the whole file mapped, which costs more than to copy an array of less than a page.
    return array.copy() if array.nbytes < mmap.PAGESIZE else array


def _pairs(content: Any, parts: list[memoryview]) -> dict[Any, Any]:
    return {_value(key, parts): _value(item, parts) for key, item in content}


_KINDS: dict[str, Callable[[Any, list[memoryview]], Any]] = {
    "tuple": lambda content, parts: tuple(_value(item, parts) for item in content),
    "dict": _pairs,
    "Counter": lambda content, parts: Counter(_pairs(content, parts)),
    "bytes": lambda content, parts: bytes(parts[content]),
    "array": _array,
    "path": lambda content, _: Path(content),
}


def numbered(title: str, number: int, part: str) -> str:
    """Return the name of the piece with one part of a task's result. `title` is the title of the pass."""
    return f"{title}-{number:07d}.{part}"
