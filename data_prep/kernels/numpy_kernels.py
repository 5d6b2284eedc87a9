"""The kernels in NumPy: the definition of those in native.py, which have the same names.

Letters: n rows, C categorical fields, N integer fields, K values of a field.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.lists import split_lists as split_lists  # kernels of this module too
from data_prep.kernels.parse import parse_chunk as parse_chunk
from data_prep.kernels.strings import PADDING_BYTES, Strings, concatenate_strings, group_equal

# A value and its count are packed into 64 bits, value above count: sorting plain numbers is several times faster than
# sorting by an index.
COUNT_BITS = np.uint64(32)
COUNT_MASK = np.uint64(2**32 - 1)


def count_values(
    values: NDArray[np.uint32], present: NDArray[np.bool_], chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], int]:
    """Return packed (value, count) pairs of the `chosen` values [n], ascending, and the number of missing ones."""
    unique, counts = np.unique(values[chosen & present], return_counts=True)
    return unique.astype(np.uint64) << COUNT_BITS | counts.astype(np.uint64), int(np.sum(chosen & ~present))


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


def count_bins(integers: NDArray[np.int64], present: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of integers [n] in each bin, [NUM_BINS], of those that are `present` and `chosen` [n]."""
    return _count_sizes(integers[present & chosen].astype(np.float64), INTEGER_BINS)


def count_float_bins(
    floats: NDArray[np.float64], present: NDArray[np.bool_], chosen: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the number of floats [n] in each of FLOAT_BINS, as `count_bins`."""
    return _count_sizes(floats[present & chosen], FLOAT_BINS)


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

    def take(self, chosen: NDArray[np.generic] | slice) -> CountedStrings:
        """Return some of them, in memory of their own."""
        return CountedStrings(self.keys[chosen], self.counts[chosen], self.texts.take(chosen).compact())

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
    chosen = order[firsts]
    return CountedStrings(keys[chosen], np.add.reduceat(counts[order], firsts), texts.take(chosen).compact())


def join_strings(parts: Sequence[Strings], present: NDArray[np.bool_]) -> Strings:
    """Join the strings [n] of all parts by *, with a \\ before each * and \\ in them. "" if not `present` [n]."""
    pieces: list[Strings] = []
    stars = Strings.of([b"*"]).take(np.zeros(len(present), np.int64))
    for part in parts:
        pieces += [stars, _escaped(part)] if pieces else [_escaped(part)]
    pieces = [Strings(piece.data, piece.starts, np.where(present, piece.lengths, 0)) for piece in pieces]
    lengths = np.sum([piece.lengths for piece in pieces], axis=0)
    starts = np.cumsum(lengths) - lengths
    data, ends = np.zeros(int(lengths.sum()) + PADDING_BYTES, np.uint8), starts
    for piece in pieces:
        compact = piece.compact()
        data[np.arange(len(compact.data) - PADDING_BYTES) + np.repeat(ends - compact.starts, piece.lengths)] = (
            compact.data[:-PADDING_BYTES]
        )
        ends = ends + piece.lengths
    return Strings(data, starts, lengths)


def _escaped(texts: Strings) -> Strings:
    texts = texts.compact()
    special = (texts.data == ord("*")) | (texts.data == ord("\\"))
    if not special.any():
        return texts
    before = np.concatenate([[0], np.cumsum(special)])
    ends = texts.starts + texts.lengths
    starts, lengths = texts.starts + before[texts.starts], texts.lengths + before[ends] - before[texts.starts]
    return Strings(np.insert(texts.data, np.flatnonzero(special), ord("\\")), starts, lengths)


ID_BITS = np.uint64(32)

ID_MASK = np.uint64(2**32 - 1)


@dataclass(frozen=True, eq=False)  # compared by identity: native.py keeps its form of each
class FieldLookup:
    """Search table of a field whose values are numbers.

    `words` [K] uint64 are value << 32 | (id - base_id), ascending: the search for a value finds its id. A directory
    shortens the search: the words whose value's upper bits are b = value >> shift are words[starts[b] : starts[b + 1]].
    """

    words: NDArray[np.uint64]
    starts: NDArray[np.uint32]
    shift: int
    base_id: int
    missing_id: int
    first_oov_id: int
    num_oov_ids: int


def ids_room(num_rows: int, num_fields: int, dtype: str) -> NDArray[np.signedinteger]:
    """Return an uninitialized array of ids [n, C]."""
    return np.empty((num_rows, num_fields), dtype)


def encode_values(
    fields: Sequence[FieldLookup], values: NDArray[np.uint32], present: NDArray[np.bool_], dtype: str
) -> NDArray[np.signedinteger]:
    """Return ids [n, C] of `dtype` for values [C, n]."""
    ids = ids_room(values.shape[1], len(fields), dtype)
    for index, field in enumerate(fields):
        ids[:, index] = np.where(present[index], _find(field, values[index]), field.missing_id)
    return ids


def _find(field: FieldLookup, values: NDArray[np.uint32]) -> NDArray[np.int64]:
    ids = field.first_oov_id + bucket(values, field.num_oov_ids)
    if len(field.words):
        wanted = values.astype(np.uint64)
        indices = np.minimum(np.searchsorted(field.words, wanted << ID_BITS), len(field.words) - 1)
        words = field.words[indices]
        known = words >> ID_BITS == wanted
        ids[known] = field.base_id + (words[known] & ID_MASK).astype(np.int64)
    return ids


def bucket(values: NDArray[np.uint32], num_buckets: int) -> NDArray[np.int64]:
    """Return a hash of each value, 0 … num_buckets - 1.

    The finalizer of MurmurHash3 (A. Appleby, public domain), scaled by a multiplication (D. Lemire, "Fast
    random integer generation in an interval", 2019).
    """
    mixed = (values ^ values >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ mixed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return (mixed.astype(np.uint64) * np.uint64(num_buckets) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class StringLookup:
    """Search table of a field of text: strings by rising key, those that share a key by their bytes."""

    keys: NDArray[np.uint64]  # [K]
    ids: NDArray[np.int64]  # [K]
    texts: Strings  # [K]
    missing_id: int
    first_oov_id: int
    num_oov_ids: int

    @functools.cached_property
    def later_of_a_key(self) -> dict[bytes, int]:
        """Ids of the strings that share a key with one before them. Python's hashes of them are seeded at random."""
        later = np.flatnonzero(self.keys[1:] == self.keys[:-1]) + 1
        return dict(zip(self.texts.take(later).tolist(), self.ids[later].tolist(), strict=True))


def find_strings(field: StringLookup, texts: Strings, present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return ids [n] of strings [n]."""
    wanted = texts.keys()
    ids = field.first_oov_id + bucket((wanted >> np.uint64(32)).astype(np.uint32), field.num_oov_ids)
    if len(field.keys):
        at = np.minimum(np.searchsorted(field.keys, wanted), len(field.keys) - 1)
        known = np.flatnonzero(field.keys[at] == wanted)
        is_first = texts.take(known).equal(field.texts.take(at[known]))
        ids[known[is_first]] = field.ids[at[known[is_first]]]
        if field.later_of_a_key:
            others = known[~is_first]
            for row, string in zip(others, texts.take(others).tolist(), strict=True):
                ids[row] = field.later_of_a_key.get(string, ids[row])
    ids[~present] = field.missing_id
    return ids
