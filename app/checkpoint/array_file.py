"""Read the header of a file of arrays in the safetensors format.

The file has 8 bytes with the length of the header, a JSON header, and the bytes of the arrays
(https://github.com/huggingface/safetensors#format). The safetensors library is not used, because it computes no
checksum while writing, does not sync, raises no OSError if the disk is full, and holds a whole file in memory.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short_repr

import numpy as np

DTYPE_NAMES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64", "bfloat16": "BF16"}
# These dtypes occur only in the tables of bundles.
DTYPE_NAMES |= {"float16": "F16", "int8": "I8", "uint8": "U8", "uint64": "U64"}
DTYPES = {short: name for name, short in DTYPE_NAMES.items()}
LENGTH_BYTES = 8
# Limit of the header's size. It allows some 10,000 arrays. Parsed JSON takes many times its length in memory.
MOST_HEADER_BYTES = 1 << 20
MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class ArrayEntry:
    """Dtype, shape and location of an array in a file.

    `start` is the offset of its first byte from the beginning of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def item_bytes(dtype: str) -> int:
    """Return the number of bytes of one value of `dtype`.

    NumPy knows the name bfloat16 only if the package ml_dtypes is imported, and bundles do not require that package.
    """
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def read_entries(path: Path) -> dict[str, ArrayEntry]:
    """Return the location of each array in a file, in the order of the file.

    Raise ValueError, naming file and array, unless the header is one that `write_arrays` would write to a file of
    this size. An unchecked header would decide how much memory is allocated and which bytes are read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = header_length(path, file.read(LENGTH_BYTES), size)
        return entries_of(path, file.read(length), size)


def header_length(path: Path, first: bytes, size: int) -> int:
    """Return the length of the JSON header of a file of `size` bytes.

    `first` are the first bytes of the file. Raise ValueError if the length cannot be right.
    """
    length = int.from_bytes(first, "little")
    if len(first) < LENGTH_BYTES or length > min(MOST_HEADER_BYTES, size - LENGTH_BYTES):
        raise ValueError(
            f"{path} is not a safetensors file: it has {size:,} bytes, and its header should take {length:,}"
        )
    return length


def entries_of(path: Path, header: bytes, size: int) -> dict[str, ArrayEntry]:
    """Return the arrays that the JSON `header` of a file of `size` bytes describes.

    Raise ValueError as `read_entries` does.
    """
    try:
        described = json.loads(header.decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a safetensors file: its header is wrong: {error}") from error
    if not isinstance(described, dict):
        raise ValueError(f"{path} is not a safetensors file: its header holds no arrays")
    begin, end = LENGTH_BYTES + len(header), 0
    entries = {}
    for name, description in described.items():
        try:
            entries[name] = _entry(description, begin, end, size)
        except ValueError as error:
            raise ValueError(f"{path} is damaged or no safetensors file: array {name!r} {error}") from error
        end += entries[name].num_bytes
    if begin + end != size:
        raise ValueError(f"{path} has {size:,} bytes, but by its header the last array ends at {begin + end:,}")
    return entries


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {next(name for name in names if names.count(name) > 1)!r} twice")
    return entries


def _entry(entry: object, begin: int, start: int, size: int) -> ArrayEntry:
    """Return the location of one array, from its description in the header.

    The array must start `start` bytes after `begin`, where the arrays' bytes begin, and end within the file's `size`
    bytes. Raise ValueError with the rest of a sentence that begins with the array's name.
    """
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("has not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"has dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
    is_shape = isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)
    if not is_shape or len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"has shape {short_repr(shape)}, expected up to {MOST_DIMENSIONS} whole numbers")
    bytes_each = item_bytes(DTYPES[dtype])
    if math.prod(max(length, 1) for length in shape) > sys.maxsize // bytes_each:
        raise ValueError(f"has shape {short_repr(shape)}, which is too large")
    num_bytes = math.prod(shape) * bytes_each
    if offsets != [start, start + num_bytes] or not all(type(offset) is int for offset in offsets):
        raise ValueError(
            f"lies at {short_repr(offsets)}; expected [{start}, {start + num_bytes}] by its dtype and shape"
        )
    if begin + start + num_bytes > size:
        raise ValueError(f"ends at {begin + start + num_bytes:,}, and the file has {size:,} bytes")
    return ArrayEntry(DTYPES[dtype], tuple(shape), begin + start, num_bytes)
