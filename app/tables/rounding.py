"""Store rows in bfloat16, which is float32 without its last 16 bits.

Arithmetic is in float32: values are widened when they are read. When a step writes its result, each value is rounded up
or down at random. The chance of rounding up equals the fraction that would be lost (Gupta et al. 2015), so the expected
value is exact, and many small steps move a row as far as in float32. Rounding to nearest would lose any step below
1/512 of a weight. The random number is a hash of (seed, step, row, column, array), so it is the same for any number of
threads or ranks and in any order of rows.

Values that were not computed by a step are rounded to nearest: initial values, and rows that a warm start copies.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from common.arrays.hashing import GOLDEN, GOLDEN32, MURMUR3, mix32, mix64

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LARGEST = np.float32(ml_dtypes.finfo(BFLOAT16).max)
# Number that separates the hash for rounding from the hash for initial rows, which has the number `initial.DEEP_TABLE`.
_STREAM = 2
# The state arrays 0 … 3 of a row need different random numbers. Each takes the upper 16 bits of the row's 32-bit hash
# times one of these factors. The first two factors select the lower and the upper half of the hash. The two odd factors
# give bits that are practically independent of both halves and of each other.
_OF_ARRAY = tuple(map(np.uint32, (1 << 16, 1, 0x85EBCA77, 0xC2B2AE3D)))


def rounding_key(seed: int, step: int) -> int:
    """Return a hash of seed and step, from which `rounded` (as its `key`) derives the random numbers of that step."""
    with np.errstate(over="ignore"):  # Products of uint64 wrap around on purpose.
        of_seed = mix64(np.array(seed % 2**64, np.uint64) + GOLDEN * np.uint64(_STREAM))
        return int(mix64(of_seed + GOLDEN * np.uint64(step + 1)))


def rounded(
    states: Mapping[str, np.ndarray], row_ids: np.ndarray, dtypes: Mapping[str, np.dtype], key: int
) -> dict[str, np.ndarray]:
    """Return the state arrays `states` after a step in the dtypes of the table, rounding float32 to bfloat16 at random.

    `states` maps array names to [U, width], in the order of the table's arrays. Only the first four arrays may be
    bfloat16. `key` comes from `rounding_key`.
    """
    return {
        name: _round(values, row_ids, number, key) if dtypes[name] == BFLOAT16 != values.dtype else values
        for number, (name, values) in enumerate(states.items())
    }


def _round(values: np.ndarray, row_ids: np.ndarray, number: int, key: int) -> np.ndarray:
    """Round float32 `values` [U, width] to bfloat16 at random. `number` (0 … 3) is the number of the state array.

    Finite values stay finite. `key` comes from `rounding_key`.
    """
    with np.errstate(over="ignore"):
        words = mix64(np.uint64(key) + GOLDEN * (row_ids.astype(np.uint64) + np.uint64(1))).astype(np.uint32)
        columns = GOLDEN32 * np.arange(values.shape[1], dtype=np.uint32)
        hashes = mix32(words[:, None] + columns, *MURMUR3)
        noise = hashes * _OF_ARRAY[number] >> np.uint32(16)
        bits = np.ascontiguousarray(values).view(np.uint32)
        # A value beyond the largest bfloat16 is only truncated, because rounding it up could give infinity.
        bits = bits + np.where(np.abs(values) < LARGEST, noise, 0)
    return (bits >> np.uint32(16)).astype(np.uint16).view(BFLOAT16)


def widened(states: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a copy of the dict `states` in which bfloat16 arrays are converted to float32."""
    return {name: widen(values) for name, values in states.items()}


def widen(values: np.ndarray) -> np.ndarray:
    """Convert bfloat16 values to float32. Return other dtypes unchanged."""
    return values.astype(np.float32) if values.dtype == BFLOAT16 else values


def nearest(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round values to the nearest value of `dtype`, if that is bfloat16. Finite values stay finite.

    For any other dtype, return `values` unchanged.
    """
    if dtype != BFLOAT16.name or values.dtype == BFLOAT16:
        return values
    return np.where(np.isfinite(values), values.clip(-LARGEST, LARGEST), values).astype(BFLOAT16)
