"""Files of arrays in the safetensors format: make and read their headers, and map their arrays into memory.

Such a file consists of 8 bytes with the length of the header, a JSON header, and the bytes of the arrays
(https://github.com/huggingface/safetensors#format). The safetensors library is not used, because it computes no
checksum while writing, does not sync, raises no OSError if the disk is full, and holds a whole file in memory.
"""

from __future__ import annotations

import json
import math
import mmap
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short_repr

import numpy as np

DTYPE_NAMES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64", "bfloat16": "BF16"}
# The following dtypes do not occur in checkpoints, but only in exported models (bundles) and in the temporary files
# that the preparation of a log writes.
DTYPE_NAMES |= {"float16": "F16", "int8": "I8", "uint8": "U8", "uint64": "U64", "bool": "BOOL", "uint32": "U32"}
DTYPES = {short: name for name, short in DTYPE_NAMES.items()}
LENGTH_BYTES = 8
# Largest accepted header, enough for some 10,000 arrays. The limit bounds the memory that a damaged file can take,
# because parsed JSON takes many times the length of its text.
MOST_HEADER_BYTES = 1 << 20
MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class ArrayEntry:
    """Dtype, shape and location of an array in a file.

    `start` is the offset of the array's first byte from the beginning of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def item_bytes(dtype: str) -> int:
    """Return the number of bytes of one value of `dtype`.

    NumPy is not asked about bfloat16: it knows this name only if the package ml_dtypes is imported, which exported
    models (bundles) do not require.
    """
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def dtype_of(name: str) -> np.dtype:
    """Return the dtype with a name of `DTYPE_NAMES`. The dtype bfloat16 is that of the package ml_dtypes.

    `np.dtype("bfloat16")` would be another one as soon as MindSpore is imported, which registers its own dtype under
    this name. Arrays of the two dtypes have the same bits, but the dtypes compare as different.
    """
    if name == "bfloat16":
        # Import ml_dtypes only if it is needed, because an exported model (bundle) is used without this package.
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def make_header(arrays: Mapping[str, tuple[str, tuple[int, ...]]], alignment: int) -> bytes:
    """Return the first bytes, length and header, of a file that will hold `arrays`, which maps names to (dtype, shape).

    Dtypes must be in `DTYPE_NAMES`. The caller writes the bytes of the arrays after the header, in the order of
    `arrays`, each array C-contiguous. The header is padded so that the first array begins at a multiple of `alignment`
    bytes.
    """
    header: dict[str, object] = {}
    end = 0
    for name, (dtype, shape) in arrays.items():
        start, end = end, end + math.prod(shape) * item_bytes(dtype)
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % alignment)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def map_file(path: Path, access: int = mmap.ACCESS_READ) -> mmap.mmap:
    """Map a whole file into memory, by default read-only. Raise ValueError if the file is empty."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=access)


def arrays_in(content: mmap.mmap, entries: Mapping[str, ArrayEntry]) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name, as views of the file's memory-mapped `content`.

    `entries` maps the name of each array to its dtype, its shape and the offset of its first byte.
    """
    return {name: np.ndarray(e.shape, dtype_of(e.dtype), content, e.start) for name, e in entries.items()}


def map_arrays(path: Path) -> dict[str, np.ndarray]:
    """Map a file of arrays into memory, and return its arrays by name. Raise ValueError if the file's header is
    damaged.
    """
    entries = read_entries(path)
    return arrays_in(map_file(path), entries)


def read_entries(path: Path) -> dict[str, ArrayEntry]:
    """Read the header of a file of arrays. Return dtype, shape and offset of each array by name, in the order of the
    file.

    Raise ValueError if the header is damaged, or is not one that `make_header` could have made for a file of this size.
    """
    with path.open("rb") as file:
        return take_entries(path, file.read, path.stat().st_size)


def take_entries(
    path: Path, take: Callable[[int], bytes | memoryview], size: int, most_header_bytes: int = MOST_HEADER_BYTES
) -> dict[str, ArrayEntry]:
    """Read the header of a file of arrays. Return dtype, shape and offset of each array by name, in the order of the
    file.

    `size` is the file's number of bytes. `take(n)` returns the next n bytes of the file; its first call must return the
    file's first n bytes. `most_header_bytes` limits the length of the header. Raise ValueError, naming the file and the
    array, unless the header is one that `make_header` could have made for a file of this size. The check is strict,
    because the header decides how much memory is allocated and which bytes are read.
    """
    first = bytes(take(LENGTH_BYTES))
    length = int.from_bytes(first, "little")
    if len(first) < LENGTH_BYTES or length > min(most_header_bytes, size - LENGTH_BYTES):
        raise ValueError(
            f"{path} is not a safetensors file: it has {size:,} bytes, and its header should take {length:,}"
        )
    header = bytes(take(length))
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
    """Return dtype, shape and offset of one array, from `entry`, its description in the header of a file.

    `begin` is the offset at which the first array of the file begins. The array must start `start` bytes after `begin`
    and end within the file's `size` bytes. Raise ValueError if the description is wrong. The message of the error
    begins with a verb: the caller puts the array's name before it.
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
