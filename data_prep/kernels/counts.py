"""Count numbers, strings and sizes of integers of a chunk, in NumPy: the definition.

Letters: n rows, C categorical fields, N integer fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.texts import Texts, concatenate_texts, group_equal

# A value and its count in one 64-bit word: what is sorted by value stays with its count, and sorting plain
# numbers is several times faster than sorting by an index.
COUNT_BITS = np.uint64(32)

COUNT_MASK = np.uint64(2**32 - 1)


def count_values(
    values: NDArray[np.uint32], present: NDArray[np.bool_], chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], int]:
    """Words of (value, count), ascending, of the `chosen` [n] ones among values [n]; and how many are missing."""
    unique, counts = np.unique(values[chosen & present], return_counts=True)
    return unique.astype(np.uint64) << COUNT_BITS | counts.astype(np.uint64), int(np.sum(chosen & ~present))


# Integers are binned by the upper bits of their float64: sign, exponent, three bits of the mantissa. So bins are
# an eighth of an octave wide, and all integers up to 16 have one of their own.
_DROPPED_BITS = 49

_EXPONENT_OF_ONE = 1023 << 3

ZERO_BIN = 8 * 63 + 1  # the largest magnitude is 2**63

NUM_BINS = 2 * ZERO_BIN + 1


def count_bins(integers: NDArray[np.int64], present: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many of the integers [n] that are `present` and `chosen` [n] are in each bin: [NUM_BINS]."""
    numbers = integers[present & chosen].astype(np.float64)
    sizes = (np.abs(numbers).view(np.uint64) >> np.uint64(_DROPPED_BITS)).astype(np.int64) - (_EXPONENT_OF_ONE - 1)
    sizes = np.maximum(sizes, 0)
    return np.bincount(ZERO_BIN + np.where(numbers < 0, -sizes, sizes), minlength=NUM_BINS)


def bin_bounds(number: int) -> tuple[float, float]:
    """From and to of a bin, half-open away from 0: of bin ZERO_BIN + 1 they are 1 and 1.125."""
    size = abs(number - ZERO_BIN)
    low, high = (_lower_end(size), _lower_end(size + 1)) if size else (0.0, 0.0)
    return (low, high) if number >= ZERO_BIN else (-high, -low)


def _lower_end(size: int) -> float:
    exponent, eighths = divmod(size - 1, 8)
    return (1 + eighths / 8) * 2.0**exponent


@dataclass(frozen=True)
class CountedTexts:
    """Distinct strings by rising key, with their counts."""

    keys: NDArray[np.uint64]  # [K]
    counts: NDArray[np.int64]  # [K]
    texts: Texts  # [K]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.keys.nbytes + self.counts.nbytes + self.texts.nbytes

    def take(self, chosen: NDArray[np.generic] | slice) -> CountedTexts:
        """Some of them, in memory of their own."""
        return CountedTexts(self.keys[chosen], self.counts[chosen], self.texts.take(chosen).compact())


NOTHING = CountedTexts(np.empty(0, np.uint64), np.empty(0, np.int64), Texts.of([]))


def count_texts(texts: Texts) -> CountedTexts:
    """The distinct ones among strings [n]."""
    return add_up(texts.keys(), np.ones(len(texts), np.int64), texts)


def merge(parts: Sequence[CountedTexts]) -> CountedTexts:
    """The distinct strings of all parts, with the sums of their counts."""
    return add_up(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.counts for part in parts]),
        concatenate_texts([part.texts for part in parts]),
    )


def add_up(keys: NDArray[np.uint64], counts: NDArray[np.int64], texts: Texts) -> CountedTexts:
    """The distinct ones among strings [n] with their keys, and the sums of their counts."""
    if len(keys) == 0:
        return NOTHING
    order, firsts = group_equal(keys, texts)
    chosen = order[firsts]
    return CountedTexts(keys[chosen], np.add.reduceat(counts[order], firsts), texts.take(chosen).compact())
