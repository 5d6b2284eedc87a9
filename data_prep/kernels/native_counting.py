"""Call the native kernels that count. They return the same as the functions of counting.py, several times faster."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from common.native_library import address, output_address
from data_prep.kernels import counting, native
from data_prep.kernels.counting import NUM_BINS, CountedStrings, add_up
from data_prep.kernels.native import choose_kernels, load, texts_in_c
from data_prep.kernels.strings import Strings

_ALL_BITS = 2**64 - 1


def choose_counting(choice: str) -> ModuleType:
    """Return the module of the counting kernels to use: this module or `counting`, which have the same functions.

    `choice` and errors are as in `native.choose_kernels`.
    """
    return sys.modules[__name__] if choose_kernels(choice) is native else counting


def count_values(values: NDArray[np.uint32], present: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Count distinct values, as `counting.count_values` does."""
    words, scratch = np.empty(len(values), np.uint64), np.empty(2 * len(values), np.uint32)
    num_words = load().log_kernels_count(
        address(values, np.uint32, len(values)),
        address(present, np.bool_, len(values)),
        address(mask, np.bool_, len(values)),
        len(values),
        output_address(scratch),
        output_address(words),
    )
    return words[:num_words].copy()


def count_bins(integers: NDArray[np.int64], present: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return a histogram of integers, as `counting.count_bins` does."""
    counts = np.empty(NUM_BINS, np.int64)
    load().log_kernels_bins(
        address(integers, np.int64, len(integers)),
        address(present, np.bool_, len(integers)),
        address(mask, np.bool_, len(integers)),
        len(integers),
        output_address(counts),
    )
    return counts


def count_strings(texts: Strings, key_mask: int = _ALL_BITS) -> CountedStrings:
    """Count distinct strings, as `counting.count_strings` does.

    Keys are masked with `key_mask`. Tests pass fewer bits, so that different strings share keys.
    """
    num_rows = len(texts)
    table = np.empty(1 << (2 * num_rows).bit_length(), np.int32)  # Hash table that is at most half full.
    keys, counts, firsts = np.empty(num_rows, np.uint64), np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
    num_distinct = load().log_kernels_count_strings(
        texts_in_c(texts),
        address(_secret(), np.uint64, 2),
        key_mask,
        output_address(table),
        len(table),
        output_address(keys),
        output_address(counts),
        output_address(firsts),
    )
    distinct = slice(num_distinct)
    return add_up(keys[distinct], counts[distinct], texts.take(firsts[distinct]))


def sketch_counts(halves: NDArray[np.uint32], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Look up the counts of keys in a sketch, as `counting.sketch_counts` does."""
    counts = np.empty(len(keys), np.int64)
    load().log_kernels_sketch_counts(
        address(halves, np.uint32, *halves.shape),
        *halves.shape,
        address(keys, np.uint64, len(keys)),
        len(keys),
        output_address(counts),
    )
    return counts


def add_to_sketch(half: NDArray[np.uint32], keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
    """Add counts of keys to a part of a sketch in place, as `counting.add_to_sketch` does."""
    scratch = np.empty(len(keys), np.uint32)
    load().log_kernels_sketch_add(
        output_address(half),
        *half.shape,
        address(keys, np.uint64, len(keys)),
        address(counts, np.int64, len(keys)),
        len(keys),
        output_address(scratch),
    )


@functools.cache
def _secret() -> NDArray[np.uint64]:
    """Return two random numbers, which are the same for the whole process, as a secret for hashing.

    Without the secret, somebody could write a log whose strings all fall into the same slot of the hash table.
    """
    return np.frombuffer(os.urandom(16), np.uint64)
