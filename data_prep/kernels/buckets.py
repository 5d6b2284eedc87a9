"""Integer fields as categorical ones too: each bucket of an integer is a value with an id of its own.

A bucket is floor(ln(x)²) for x > 2, else x itself: the transform of the BARS benchmarks (J. Zhu et al., "BARS:
Towards open benchmarking for recommender systems", SIGIR 2022), from the winners of Criteo's contest.

Letters: n rows, M categorical columns that are worked on as numbers: hex values, then buckets.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.rows import LogRows

# Buckets are kept as values from 0 on, in the order of the integers; smaller integers share the first one.
SMALLEST_BUCKET = -(2**31)


def number_columns(rows: LogRows, integer_buckets: bool) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Values and where they are present, both [M, n]."""
    if not integer_buckets:
        return rows.values, rows.values_present
    buckets = (bucket_of(rows.integers) - SMALLEST_BUCKET).astype(np.uint32)
    return np.concatenate([rows.values, buckets]), np.concatenate([rows.values_present, rows.integers_present])


def bucket_of(integers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bucket of each integer."""
    squares = np.square(np.log(np.maximum(integers, 1).astype(np.float64)))
    return np.where(integers > 2, np.floor(squares).astype(np.int64), np.maximum(integers, SMALLEST_BUCKET))
