"""Strings from this project's arrays to pyarrow's, and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.kernels.parsed import MISSING
from data_prep.kernels.strings import Strings

_HEX_DIGITS = np.frombuffer("".join(f"{number:04x}" for number in range(1 << 16)).encode(), "S4")


def to_arrow(texts: Strings) -> pa.LargeStringArray:
    """Return strings, which have to be UTF-8, as a pyarrow array."""
    compact = texts.compact()
    offsets = np.append(compact.starts, len(compact.data) - 8)
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(compact.data))


def from_arrow(strings: pa.StringArray) -> Strings:
    """Return the strings of a pyarrow array."""
    binary = strings.cast(pa.large_binary())
    offsets = np.frombuffer(binary.buffers()[1], np.int64)[binary.offset : binary.offset + len(binary) + 1]
    data = np.frombuffer(binary.buffers()[2] or b"", np.uint8)
    return Strings(np.concatenate([data, np.zeros(8, np.uint8)]), offsets[:-1], np.diff(offsets)).compact()


def hex_text(values: NDArray[np.int64]) -> pa.Array:
    """Return each value as eight hex digits, "" for MISSING."""
    # Built in pyarrow's own layout (digits end to end, and offsets), without a Python string for each value.
    lengths = np.where(values == MISSING, 0, 8)
    digits = np.stack([_HEX_DIGITS[values >> 16 & 0xFFFF], _HEX_DIGITS[values & 0xFFFF]], axis=1)[values != MISSING]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits)))
