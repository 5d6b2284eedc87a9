"""Store the results of finished work as files, so that an interrupted preparation can be resumed.

A piece is a file that stores one object as arrays (common/arrays/format.py), followed by a checksum. The last array is
the object as JSON, the others are the arrays in the object, which the reader maps into memory. A piece is written under
a temporary name and then renamed, so after an interruption each piece is either complete or missing. The files in the
folder are the only record of which pieces exist.

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

from common.arrays.format import DTYPE_NAMES, arrays_in, make_header, map_file, take_entries

_JSON = "json"  # Name of the array with the JSON of the stored object (the result of a task).
_ALIGNMENT = 64  # The first array in a file begins at a multiple of this many bytes.
_CHECKSUM_BYTES = 8
_UNFINISHED = ".unfinished-"

_storable: dict[str, type] = {}


def storable(*classes: type) -> None:
    """Register dataclasses, so that their objects may be stored in files by `Pieces.write`.

    A process that reads such files must have registered the same classes. Raise TypeError if a class is no dataclass,
    or if another class of the same name is registered.
    """
    for cls in classes:
        if not dataclasses.is_dataclass(cls) or _storable.setdefault(cls.__name__, cls) is not cls:
            raise TypeError(f"{cls!r} is not a dataclass, or another one of its name is storable")


class Pieces:
    """Stores objects in the files (pieces) of a folder, one object in each file, and reads them again.

    The name of a piece is the name of its file. Any process with access to the folder may write and read pieces.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, value: object) -> None:
        """Store the object `value` in the file (piece) `name`, atomically. After an OSError the folder is unchanged."""
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
        """Return the object that is stored in the file (piece) `name`, or None if the file is missing or damaged.

        The arrays of the object are mapped from the file. A caller may change the arrays without changing the file.
        """
        content = self._map_whole(name)
        if content is None:
            return None
        try:
            return _unpack(self.folder / name, content)
        # A file with a right checksum that does not have the form that `_pack` writes counts as damaged too.
        except (ValueError, LookupError, TypeError, RecursionError):
            return None

    def expect(self, name: str) -> Any:
        """Return the object that is stored in the file (piece) `name`, which must have been written before.

        Raise OSError if the file is missing or damaged.
        """
        value = self.read(name)
        if value is None:
            raise OSError(f"{self.folder / name} does not hold what was written to it; check the disk")
        return value

    def is_whole(self, name: str) -> bool:
        return self._map_whole(name) is not None

    def _map_whole(self, name: str) -> mmap.mmap | None:
        """Map the file of a piece (a stored object) into memory, and return the mapped file.

        Return None if the file is missing or empty, or if its checksum is wrong.
        """
        try:
            content = map_file(self.folder / name, mmap.ACCESS_COPY)
        except (FileNotFoundError, ValueError):  # map_file raises ValueError for an empty file.
            return None
        with memoryview(content) as view:
            is_whole = xxhash.xxh3_64_digest(view[:-_CHECKSUM_BYTES]) == view[-_CHECKSUM_BYTES:]
        return content if is_whole else None

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def clear(self, prefix: str) -> None:
        for path in self.folder.glob(f"{prefix}*"):
            path.unlink()

    def clear_unfinished(self) -> None:
        """Remove the temporary files of objects that an interrupted preparation has not stored completely."""
        for path in self.folder.glob(f"*{_UNFINISHED}*"):
            path.unlink()


def _pack(value: object) -> list[bytes | memoryview]:
    """Return the content of the file (piece) that stores `value`, as a list of byte strings in their order."""
    arrays: dict[str, NDArray[Any]] = {}
    plain = json.dumps(_plain(value, arrays), separators=(",", ":")).encode()
    # The arrays are sorted by the size of their numbers, int64 before int32. Thus each array begins at a multiple of
    # the size of its numbers.
    names = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    whole: dict[str, NDArray[Any]] = {name: arrays[name] for name in names} | {_JSON: np.frombuffer(plain, np.uint8)}
    header = make_header({name: (array.dtype.name, array.shape) for name, array in whole.items()}, _ALIGNMENT)
    parts: list[bytes | memoryview] = [header]
    parts += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in whole.values()]
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return [*parts, digest.digest()]


def _plain(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return `value` as an object that JSON can represent, for storing it in a file (piece).

    A value of a type that JSON lacks becomes {kind: content}, which `_unpack` converts back. An array becomes a
    reference {"array": name}, and the array itself is added to the mapping `arrays` under that name.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item(), arrays)
    if isinstance(value, list):
        return [_plain(item, arrays) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, arrays) for item in value]}
    if isinstance(value, dict):
        kind = "Counter" if isinstance(value, Counter) else "dict"
        return {kind: [_plain([key, item], arrays) for key, item in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": _plain(np.frombuffer(value, np.uint8), arrays)}
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, np.ndarray) and value.dtype.isnative and value.dtype.name in DTYPE_NAMES:
        name = str(len(arrays))
        arrays[name] = value
        return {"array": name}
    name = type(value).__name__
    if _storable.get(name) is not type(value) or not dataclasses.is_dataclass(value):
        raise TypeError(f"a piece cannot hold {name}: only plain values, arrays of numbers and what is `storable`")
    return {name: [_plain([each.name, getattr(value, each.name)], arrays) for each in dataclasses.fields(value)]}


def _unpack(path: Path, content: mmap.mmap) -> Any:
    """Return the object that is stored in the file (piece) at `path`. `content` is the file, mapped into memory."""
    size = len(content) - _CHECKSUM_BYTES
    mapped = arrays_in(content, take_entries(path, content.read, size, most_header_bytes=size))
    # Copy small arrays: a view of less than a page would keep the whole file mapped as long as the view lives.
    arrays = {name: array.copy() if array.nbytes < mmap.PAGESIZE else array for name, array in mapped.items()}
    kinds: dict[str, Callable[[Any], Any]] = {
        "tuple": tuple,
        "dict": dict,
        "Counter": lambda pairs: Counter(dict(pairs)),
        "bytes": np.ndarray.tobytes,
        "path": Path,
        "array": arrays.__getitem__,
    }

    def restore(tagged: dict[str, Any]) -> Any:
        ((kind, plain),) = tagged.items()
        return kinds[kind](plain) if kind in kinds else _storable[kind](**dict(plain))

    return json.loads(arrays[_JSON].tobytes(), object_hook=restore)


def numbered(title: str, number: int, part: str) -> str:
    """Return the name of the file (piece) that stores one part of the result of a task.

    `title` is the title of the pass over the log, `number` the number of the task in this pass, and `part` the name of
    the part.
    """
    return f"{title}-{number:07d}.{part}"
