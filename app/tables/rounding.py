"""Rows in bfloat16, which is float32 without its last 16 bits.

Arithmetic is float32: values are widened as they are read. What a step made of them is rounded up or down at random as
it is written, up with a chance of the part that would be lost (Gupta et al. 2015). So the expected value is the exact
one, and many small steps move a row as far as in float32. Rounded to the nearest, a step below 1/512 of a weight would
not move it at all. The chance is a hash of (seed, step, row, column, array): no thread, rank or order changes it.

What no step made is rounded to the nearest: initial values, and the rows that a warm start takes.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from common.hashing import GOLDEN, mix64

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LARGEST = np.float32(ml_dtypes.finfo(BFLOAT16).max)
_STREAM = 2  # the number of this hash beside `initial.DEEP_TABLE`
_GOLDEN32 = np.uint32(0x9E3779B9)
# The upper half of a hash times this number rounds a row's array 0 … 3: for the first two these are the hash's own
# halves, and those of the odd products are as good as independent of every other.
_OF_ARRAY = tuple(map(np.uint32, (1 << 16, 1, 0x85EBCA77, 0xC2B2AE3D)))


def rounding_key(seed: int, step: int) -> int:
    """Return the hash of seed and step that `rounded` takes."""
    with np.errstate(over="ignore"):  # uint64 arithmetic is modulo 2**64 here
        of_seed = mix64(np.array(seed % 2**64, np.uint64) + GOLDEN * np.uint64(_STREAM))
        return int(mix64(of_seed + GOLDEN * np.uint64(step + 1)))


def rounded(
    states: Mapping[str, np.ndarray], row_ids: np.ndarray, dtypes: Mapping[str, np.dtype], key: int
) -> dict[str, np.ndarray]:
    """Return what a step made of rows as their arrays, of these dtypes, take it: float32 -> bfloat16 at random.

    `states` [U, width] are in the order of the arrays, of which the first four at most are bfloat16.
    """
    return {
        name: _round(values, row_ids, number, key) if dtypes[name] == BFLOAT16 != values.dtype else values
        for number, (name, values) in enumerate(states.items())
    }


def _round(values: np.ndarray, row_ids: np.ndarray, number: int, key: int) -> np.ndarray:
    """Return float32 `values` [U, width] of array 0 … 3 in bfloat16. No finite one becomes infinite."""
    with np.errstate(over="ignore"):
        words = mix64(np.uint64(key) + GOLDEN * (row_ids.astype(np.uint64) + np.uint64(1))).astype(np.uint32)
        hashes = _mix32(words[:, None] + _GOLDEN32 * np.arange(values.shape[1], dtype=np.uint32))
        noise = hashes * _OF_ARRAY[number] >> np.uint32(16)
        bits = np.ascontiguousarray(values).view(np.uint32)
        bits = bits + np.where(np.abs(values) < LARGEST, noise, 0)  # beyond the largest it is cut off
    return (bits >> np.uint32(16)).astype(np.uint16).view(BFLOAT16)


def widened(states: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return states in which bfloat16 is float32."""
    return {name: widen(values) for name, values in states.items()}


def widen(values: np.ndarray) -> np.ndarray:
    """Return bfloat16 values as float32, and others as they are."""
    return values.astype(np.float32) if values.dtype == BFLOAT16 else values


def nearest(values: np.ndarray, dtype: np.dtype | str) -> np.ndarray:
    """Return values in `dtype`, bfloat16 or their own. Finite ones stay finite."""
    if np.dtype(dtype) != BFLOAT16 or values.dtype == BFLOAT16:
        return values
    return np.where(np.isfinite(values), values.clip(-LARGEST, LARGEST), values).astype(BFLOAT16)


def _mix32(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the finalizer of MurmurHash3 (A. Appleby) of each value: 32 bits, as vectors have products of."""
    mixed = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> np.uint32(16))
