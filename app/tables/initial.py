"""Compute the initial values of the deep table's rows, each value as a hash of (seed, table, row, column).

The hash depends on nothing else, so the order in which rows arrive, the number of shards and the backend do not
matter. A row that was never updated need not be stored.
"""

from __future__ import annotations

import numpy as np

from common.arrays.hashing import GOLDEN, mix64

# Number that stands for the deep table in the hash from which initial values are computed. Wide rows start at 0.
DEEP_TABLE = 1


def initial_rows(seed: int, row_ids: np.ndarray, width: int, scale: float, dtype: str = "float32") -> np.ndarray:
    """Return the initial values of the rows `row_ids` [U], float32 [U, width], uniform in [-scale, scale).

    The value of column c is (k · 2⁻²³ - 1) · scale, where k is the number in the top 24 bits of the hash. Only the
    multiplication by `scale` rounds. With dtype bfloat16 the value is rounded to the nearest bfloat16 and returned as
    float32.
    """
    with np.errstate(over="ignore"):  # Products of uint64 wrap around on purpose.
        table_key = mix64(np.array(seed % 2**64, np.uint64) + GOLDEN * np.uint64(DEEP_TABLE))
        row_keys = mix64(table_key + GOLDEN * (row_ids.astype(np.uint64) + np.uint64(1)))
        columns = GOLDEN * np.arange(1, width + 1, dtype=np.uint64)
        top_bits = mix64(row_keys[:, None] + columns) >> np.uint64(40)
    values = (top_bits.astype(np.float32) * np.float32(2.0**-23) - np.float32(1)) * np.float32(scale)
    # Round with integer operations, because bundles (exported models) use this function, and must not need a package
    # for bfloat16.
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        bits += np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        bits &= np.uint32(0xFFFF0000)
    return values
