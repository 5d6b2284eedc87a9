"""Count values, strings and numbers by size, whole or in a sketch: the kernels in NumPy, which define those in
native_counting.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.hashing import GOLDEN, mix64
from data_prep.kernels.strings import Strings

# A value and its count are packed into 64 bits, value above count: sorting plain numbers is several times faster than
# sorting by an index.
# Values of 64 bits, one form for numbers and for the keys of texts, would leave no room for the count, and np.unique
# takes 1.6 times as long for them: 0.24 µs more, beside the 2.2 µs that a row of Criteo's form takes.
COUNT_BITS = np.uint64(32)
COUNT_MASK = np.uint64(2**32 - 1)


def count_values(values: NDArray[np.uint32], present: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return packed (value, count) pairs of the values [n] that are `present`, of the rows of `mask` [n], ascending."""
    unique, counts = np.unique(values[mask & present], return_counts=True)
    return unique.astype(np.uint64) << COUNT_BITS | counts.astype(np.uint64)


# Numbers are binned by the upper bits of their float64: sign, exponent, three bits of the mantissa. So bins are
# an eighth of an octave wide, and each integer up to 16 has a bin of its own.
class Bins(NamedTuple):
    """The exponent of the smallest number that is not binned with 0, and the number of the bin of 0."""

    smallest: int
    zero: int


INTEGER_BINS = Bins(0, 8 * 63 + 1)  # the largest magnitude is 2**63
FLOAT_BINS = Bins(-64, 8 * (64 + 128))  # 2**128, which is no float32
_DROPPED_BITS = 49
_EXPONENT_OF_ONE = 1023
NUM_BINS = 2 * INTEGER_BINS.zero + 1


def count_bins(integers: NDArray[np.int64], present: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of integers [n] in each bin, [NUM_BINS], of those `present` [n] in the rows of `mask` [n]."""
    return _count_sizes(integers[present & mask].astype(np.float64), INTEGER_BINS)


def count_float_bins(
    floats: NDArray[np.float64], present: NDArray[np.bool_], mask: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the number of floats [n] in each of FLOAT_BINS, as `count_bins`."""
    return _count_sizes(floats[present & mask], FLOAT_BINS)


def _count_sizes(numbers: NDArray[np.float64], bins: Bins) -> NDArray[np.int64]:
    first = (_EXPONENT_OF_ONE + bins.smallest << 3) - 1
    sizes = (np.abs(numbers).view(np.uint64) >> np.uint64(_DROPPED_BITS)).astype(np.int64) - first
    sizes = np.maximum(sizes, 0)
    return np.bincount(bins.zero + np.where(numbers < 0, -sizes, sizes), minlength=2 * bins.zero + 1)


def bin_bounds(number: int, bins: Bins = INTEGER_BINS) -> tuple[float, float]:
    """Return the bounds of a bin, half-open away from 0: those of the one after 0's are 1 and 1.125 for integers."""
    size = abs(number - bins.zero)
    low, high = (_lower_end(size, bins), _lower_end(size + 1, bins)) if size else (0.0, 0.0)
    return (low, high) if number >= bins.zero else (-high, -low)


def _lower_end(size: int, bins: Bins) -> float:
    exponent, eighths = divmod(size - 1, 8)
    return (1 + eighths / 8) * 2.0 ** (exponent + bins.smallest)


def sketch_counts(halves: NDArray[np.uint32], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the counts of keys [n] in a count-min sketch [H, rows, W], the sum of those in each of its H parts."""
    cells = _sketch_cells(keys, halves.shape[1:])
    return np.sum([_least(half, cells) for half in halves], axis=0, dtype=np.int64)


def add_to_sketch(half: NDArray[np.uint32], keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
    """Add the counts of different keys [n] to a part of a sketch [rows, W], with conservative update."""
    cells = _sketch_cells(keys, half.shape)
    # Each sum is of the cells as they were, and a cell takes the largest: the same in any order.
    sums = np.minimum(_least(half, cells) + counts, np.iinfo(np.uint32).max).astype(np.uint32)
    for row, of_row in zip(half, cells, strict=True):
        np.maximum.at(row, of_row, sums)


def _sketch_cells(keys: NDArray[np.uint64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the cells [rows, n] of keys [n]."""
    rows, width = shape
    steps = (np.arange(rows, dtype=np.uint64) * GOLDEN)[:, None]
    upper = mix64(keys + steps) >> np.uint64(32)
    return (upper * np.uint64(width) >> np.uint64(32)).astype(np.int64)


def _least(half: NDArray[np.uint32], cells: NDArray[np.int64]) -> NDArray[np.int64]:
    counts = [row.take(of_row) for row, of_row in zip(half, cells, strict=True)]  # take_along_axis takes 2.6 × the time
    return np.min(counts, axis=0).astype(np.int64)


@dataclass(frozen=True)
class CountedStrings:
    """Distinct strings by rising key, with their counts."""

    keys: NDArray[np.uint64]  # [K]
    counts: NDArray[np.int64]  # [K]
    texts: Strings  # [K]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.counts.nbytes + self.texts.nbytes

    def __getitem__(self, mask: NDArray[np.generic] | slice) -> CountedStrings:
        """Return some of them, in memory of their own."""
        return CountedStrings(self.keys[mask], self.counts[mask], self.texts.take(mask).compact())

    @classmethod
    def concatenate(cls, parts: Sequence[CountedStrings]) -> CountedStrings:
        """Return those of all parts one after the other, which need not be distinct any more."""
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.counts for part in parts]),
            concatenate_strings([part.texts for part in parts]),
        )


NOTHING = CountedStrings(np.empty(0, np.uint64), np.empty(0, np.int64), Strings.of([]))


def count_strings(texts: Strings) -> CountedStrings:
    """Return the distinct strings among strings [n]."""
    return add_up(texts.keys(), np.ones(len(texts), np.int64), texts)


def merge(parts: Sequence[CountedStrings]) -> CountedStrings:
    """Return the distinct strings of all parts, with the sums of their counts."""
    all_parts = CountedStrings.concatenate(parts)
    return add_up(all_parts.keys, all_parts.counts, all_parts.texts)


def add_up(keys: NDArray[np.uint64], counts: NDArray[np.int64], texts: Strings) -> CountedStrings:
    """Return the distinct strings among strings [n] with these keys and counts, with the sums of their counts."""
    if len(keys) == 0:
        return NOTHING
    order, firsts = group_equal(keys, texts)
    mask = order[firsts]
    return CountedStrings(keys[mask], np.add.reduceat(counts[order], firsts), texts.take(mask).compact())


def concatenate_strings(parts: Sequence[Strings]) -> Strings:
    """Return the strings of all parts, in order."""
    offsets = np.cumsum([0, *(len(part.data) for part in parts[:-1])])
    return Strings(
        np.concatenate([part.data for part in parts]),
        np.concatenate([part.starts + offset for part, offset in zip(parts, offsets, strict=True)]),
        np.concatenate([part.lengths for part in parts]),
    )


def group_equal(keys: NDArray[np.uint64], texts: Strings) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an order [n] in which equal strings are adjacent, and the start of each group of equal ones in it.

    The order is by key, and by bytes among different strings that share a key.
    """
    order = np.argsort(keys, kind="stable")
    if len(order) == 0:
        return order, order
    sorted_keys = keys[order]
    is_new = np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]])
    repeated = np.flatnonzero(~is_new)  # keys
    is_new[repeated] = ~texts.take(order[repeated]).equal(texts.take(order[repeated - 1]))
    collisions = repeated[is_new[repeated]]
    if len(collisions):
        _order_by_bytes(order, sorted_keys, np.unique(sorted_keys[collisions]), texts)
        is_new[repeated] = ~texts.take(order[repeated]).equal(texts.take(order[repeated - 1]))
    return order, np.flatnonzero(is_new)


def _order_by_bytes(
    order: NDArray[np.int64], sorted_keys: NDArray[np.uint64], shared: NDArray[np.uint64], texts: Strings
) -> None:
    """Sort the strings of each shared key by their bytes, so that equal ones are adjacent."""
    for key in shared:
        run = slice(np.searchsorted(sorted_keys, key), np.searchsorted(sorted_keys, key, side="right"))
        strings = texts.take(order[run]).tolist()
        order[run] = order[run][sorted(range(len(strings)), key=strings.__getitem__)]
