"""Arrays in a file of the safetensors form: 8 bytes with the header's length, a JSON header, the arrays' bytes.

The format is https://github.com/huggingface/safetensors#format. The library is not used: it computes no checksum while
writing, does not sync, raises no OSError if the disk is full, and holds a whole file in memory.
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
DTYPE_NAMES |= {"float16": "F16", "int8": "I8", "uint8": "U8", "uint64": "U64"}  # of a bundle's tables
DTYPES = {short: name for name, short in DTYPE_NAMES.items()}
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 1 << 20  # some 10,000 arrays; what JSON is read to takes many times its length
MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class ArrayEntry:
    """The position of an array in a file: `start` is its offset from the beginning."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def item_bytes(dtype: str) -> int:
    """Return the bytes of a value. NumPy knows bfloat16 only where its package is imported, and a bundle has none."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def read_entries(path: Path) -> dict[str, ArrayEntry]:
    """Return the position of each array of a file, in the order of the file.

    Raises ValueError, naming file and array, for a header that `write_arrays` does not write to a file of this size:
    an unchecked header would decide how much memory is allocated and which bytes are read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = header_length(path, file.read(LENGTH_BYTES), size)
        return entries_of(path, file.read(length), size)


def header_length(path: Path, first: bytes, size: int) -> int:
    """Return the length of the header of a file of `size` bytes that begins with `first`."""
    length = int.from_bytes(first, "little")
    if len(first) < LENGTH_BYTES or length > min(MOST_HEADER_BYTES, size - LENGTH_BYTES):
        raise ValueError(
            f"{path} is not a safetensors file: it has {size:,} bytes, and its header should take {length:,}"
        )
    return length


def entries_of(path: Path, header: bytes, size: int) -> dict[str, ArrayEntry]:
    """Return the entries of a header of a file of `size` bytes. Raises as `read_entries`."""
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
    """Return the position of one array, which must start `start` bytes after `begin`, in a file of `size` bytes."""
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
