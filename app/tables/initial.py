"""Initial deep rows: a counter-based hash of (seed, table, row, column). No order of arrival, shard count or backend
can change them, and a row that was never touched need not be stored.
"""

from __future__ import annotations

import numpy as np

from common.hashing import GOLDEN, mix64

DEEP_TABLE = 1  # the number of the deep table in the hash; wide rows start at 0 and need none


def initial_rows(seed: int, row_ids: np.ndarray, width: int, scale: float, dtype: str = "float32") -> np.ndarray:
    """Return the initial values of `row_ids` [U]: [U, width] float32, uniform in [-scale, scale).

    The value of column c is (k · 2⁻²³ - 1) · scale, k being the top 24 bits of the hash: exact in
    float32 but for the one product. In tables of dtype bfloat16 it is the nearest one of those.
    """
    with np.errstate(over="ignore"):  # uint64 arithmetic is modulo 2**64 here
        table_key = mix64(np.array(seed % 2**64, np.uint64) + GOLDEN * np.uint64(DEEP_TABLE))
        row_keys = mix64(table_key + GOLDEN * (row_ids.astype(np.uint64) + np.uint64(1)))
        columns = GOLDEN * np.arange(1, width + 1, dtype=np.uint64)
        top_bits = mix64(row_keys[:, None] + columns) >> np.uint64(40)
    values = (top_bits.astype(np.float32) * np.float32(2.0**-23) - np.float32(1)) * np.float32(scale)
    if dtype == "bfloat16":  # by integers: a bundle needs no package for it
        bits = values.view(np.uint32)
        bits += np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        bits &= np.uint32(0xFFFF0000)
    return values
