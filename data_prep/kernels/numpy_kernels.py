"""The kernels in NumPy. They define what the faster kernels of the same names in native.py must return.

They parse lines, look up the ids of values in search tables, and count values, strings and numbers: exactly, in the
bins of a histogram, or approximately in a count-min sketch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.arrays.hashing import GOLDEN, MURMUR3, mix32, mix64
from data_prep.kernels.parse import parse_chunk as parse_chunk
from data_prep.kernels.parse import parse_vectors as parse_vectors
from data_prep.kernels.strings import PADDING_BYTES, Strings
from data_prep.kernels.strings import split_lists as split_lists


def join_strings(parts: Sequence[Strings], present: NDArray[np.bool_]) -> Strings:
    """Return, for each row [n], the strings that the arrays `parts` have in the row, joined with * between them.

    Each * and \\ within a string gets a \\ before it. The result is "" for rows that `present` [n] does not mark.
    """
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


# `eq=False`: two tables count as equal only if they are the same object, so native.py can use a table as the key of a
# cache.
@dataclass(frozen=True, eq=False)
class FieldLookup:
    """Search table from values to ids, for a field whose values are integers.

    `words` [K] are the numbers value << 32 | (id - base_id) in ascending order, so a binary search for a value finds
    its id. `base_id` is the first id of the field. `starts` is a directory that shortens the search: the words of
    the values that have the same upper bits b = value >> shift are words[starts[b] : starts[b + 1]].
    """

    words: NDArray[np.uint64]
    starts: NDArray[np.uint32]
    shift: int
    base_id: int
    missing_id: int
    first_oov_id: int
    num_oov_ids: int


def encode_values(
    fields: Sequence[FieldLookup], values: NDArray[np.uint32], present: NDArray[np.bool_], dtype: str
) -> NDArray[np.signedinteger]:
    """Return the ids [n, C], with dtype `dtype`, of the `values` [C, n] of C fields in n rows.

    `fields` are the search tables of the C fields, in which the ids are looked up. `present` [C, n] marks the cells
    that are not missing. A missing cell gets the `missing_id` of its field.
    """
    ids = np.empty((values.shape[1], len(fields)), dtype)
    for index, field in enumerate(fields):
        ids[:, index] = np.where(present[index], find_values(field, values[index]), field.missing_id)
    return ids


def find_values(field: FieldLookup, values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the ids [n] that the search table `field` has for integer values [n].

    A value that is not in the table gets an out-of-vocabulary id, which a hash of the value chooses.
    """
    ids = field.first_oov_id + bucket(values, field.num_oov_ids)
    if len(field.words):
        keys = values.astype(np.uint64)
        indices = np.minimum(np.searchsorted(field.words, keys << ID_BITS), len(field.words) - 1)
        words = field.words[indices]
        is_known = words >> ID_BITS == keys
        ids[is_known] = field.base_id + (words[is_known] & ID_MASK).astype(np.int64)
    return ids


def bucket(values: NDArray[np.uint32], num_buckets: int) -> NDArray[np.int64]:
    """Return a hash of each of `values` [n], between 0 and `num_buckets` - 1.

    The hash is the finalizer of MurmurHash3 (A. Appleby, public domain), scaled to the number of buckets by a
    multiplication (D. Lemire, "Fast random integer generation in an interval", 2019).
    """
    return (mix32(values, *MURMUR3).astype(np.uint64) * np.uint64(num_buckets) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class StringLookup:
    """Search table from strings to ids, for a field whose values are texts.

    The K strings are sorted by their keys (hashes), and strings with the same key by their bytes.
    """

    keys: NDArray[np.uint64]  # Hash of each string [K], in ascending order.
    ids: NDArray[np.int64]  # Id of each string [K].
    texts: Strings  # The strings [K].
    missing_id: int
    first_oov_id: int
    num_oov_ids: int

    @functools.cached_property
    def later_of_a_key(self) -> dict[bytes, int]:
        """Ids, by string, of all strings that have the same key (hash) as the string before them in this table.

        A binary search by key only finds the first string with a key, so `find_strings` looks up later ones here. Even
        many strings with the same key do not slow down the lookup, because Python seeds the hashes of a dictionary at
        random.
        """
        later = np.flatnonzero(self.keys[1:] == self.keys[:-1]) + 1
        return dict(zip(self.texts.take(later).tolist(), self.ids[later].tolist(), strict=True))


def find_strings(field: StringLookup, texts: Strings, present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the ids [n] that the search table `field` has for strings [n].

    A string that is not in the table gets an out-of-vocabulary id, which a hash of the string chooses. Rows that
    `present` [n] does not mark get `missing_id`.
    """
    keys = texts.keys()
    ids = field.first_oov_id + bucket((keys >> np.uint64(32)).astype(np.uint32), field.num_oov_ids)
    if len(field.keys):
        at = np.minimum(np.searchsorted(field.keys, keys), len(field.keys) - 1)
        places = np.flatnonzero(field.keys[at] == keys)
        is_first = texts.take(places).equal(field.texts.take(at[places]))
        ids[places[is_first]] = field.ids[at[places[is_first]]]
        if field.later_of_a_key:
            same_key = places[~is_first]
            for row, string in zip(same_key, texts.take(same_key).tolist(), strict=True):
                ids[row] = field.later_of_a_key.get(string, ids[row])
    ids[~present] = field.missing_id
    return ids


# A value and its count are packed into a 64-bit number, with the value in the upper half. Sorting such numbers is
# several times faster than sorting values and counts by an array of indices. Therefore values have 32 bits. Values of
# 64 bits, such as the keys (hashes) of texts, would leave no room for the count, and np.unique would take 1.6 times as
# long: 0.24 µs more for each row in Criteo's format, which takes 2.2 µs in all.
COUNT_BITS = np.uint64(32)
COUNT_MASK = np.uint64(2**32 - 1)


def count_values(values: NDArray[np.uint32], present: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Count how often each distinct value occurs among those of `values` [n] that `present` and `mask` both mark.

    Return a 64-bit number for each distinct value, with the value in the upper half and its count in the lower half, in
    the order of the values.
    """
    unique, counts = np.unique(values[mask & present], return_counts=True)
    return unique.astype(np.uint64) << COUNT_BITS | counts.astype(np.uint64)


# The upper bits of a number as float64 (sign, exponent, and three bits of the mantissa) decide its bin. There are eight
# bins between two powers of 2, and each integer up to 16 has a bin of its own.
class NumberBins(NamedTuple):
    """The layout of a histogram of numbers whose bins have logarithmic widths."""

    smallest: int  # Numbers between -2**smallest and 2**smallest are in the bin of 0.
    zero: int  # Index of the bin that contains 0.


INTEGER_BINS = NumberBins(0, 8 * 63 + 1)  # Bins of integers of magnitude up to 2**63.
FLOAT_BINS = NumberBins(-64, 8 * (64 + 128))  # Bins of floats of magnitude below 2**128, the end of float32's range.
_DROPPED_BITS = 49
_EXPONENT_OF_ONE = 1023
NUM_BINS = 2 * INTEGER_BINS.zero + 1


def count_bins(integers: NDArray[np.int64], present: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return a histogram of integers: for each of the NUM_BINS bins of INTEGER_BINS, the number of integers in it.

    Only those of `integers` [n] that `present` and `mask` both mark are counted.
    """
    return _count_sizes(integers[present & mask].astype(np.float64), INTEGER_BINS)


def count_float_bins(
    floats: NDArray[np.float64], present: NDArray[np.bool_], mask: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return a histogram of floats: for each bin of FLOAT_BINS, the number of floats in it.

    Only those of `floats` [n] that `present` and `mask` both mark are counted.
    """
    return _count_sizes(floats[present & mask], FLOAT_BINS)


def _count_sizes(numbers: NDArray[np.float64], bins: NumberBins) -> NDArray[np.int64]:
    first = (_EXPONENT_OF_ONE + bins.smallest << 3) - 1
    sizes = (np.abs(numbers).view(np.uint64) >> np.uint64(_DROPPED_BITS)).astype(np.int64) - first
    sizes = np.maximum(sizes, 0)
    return np.bincount(bins.zero + np.where(numbers < 0, -sizes, sizes), minlength=2 * bins.zero + 1)


def bin_bounds(number: int, bins: NumberBins = INTEGER_BINS) -> tuple[float, float]:
    """Return the lower and the upper bound of the numbers in bin `number` of a histogram.

    The bound that is nearer to 0 belongs to the bin, the other one does not. For integers, the bin after the bin of 0
    has the bounds 1 and 1.125.
    """
    size = abs(number - bins.zero)
    low, high = (_lower_end(size, bins), _lower_end(size + 1, bins)) if size else (0.0, 0.0)
    return (low, high) if number >= bins.zero else (-high, -low)


def _lower_end(size: int, bins: NumberBins) -> float:
    exponent, eighths = divmod(size - 1, 8)
    return (1 + eighths / 8) * 2.0 ** (exponent + bins.smallest)


def sketch_counts(halves: NDArray[np.uint32], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the estimated count of each key [n]: the sum of its estimates from H count-min sketches.

    A count-min sketch is a table of cells (counters), and a hash chooses one cell in each of its rows for a key.
    `halves` [H, rows, W] are the cells of the H sketches: `value_counts.ValueSketch` has one for recent counts and one
    for older counts.
    """
    cells = _sketch_cells(keys, halves.shape[1:])
    return np.sum([_least(half, cells) for half in halves], axis=0, dtype=np.int64)


def add_to_sketch(half: NDArray[np.uint32], keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
    """Add the `counts` [n] of distinct `keys` [n] to a count-min sketch with the cells (counters) `half` [rows, W].

    Change `half` in place. The update is conservative: it raises a cell only to the new estimated count of a key that
    has the cell, not by the whole count of each such key.
    """
    cells = _sketch_cells(keys, half.shape)
    # The new estimates of all keys, `sums`, are computed from the cells before the update. A cell is raised to the
    # largest new estimate of the keys that share it, so the order of the keys does not matter.
    sums = np.minimum(_least(half, cells) + counts, np.iinfo(np.uint32).max).astype(np.uint32)
    for row, of_row in zip(half, cells, strict=True):
        np.maximum.at(row, of_row, sums)


def _sketch_cells(keys: NDArray[np.uint64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the index of the cell (counter) of each key [n] in each row of a count-min sketch, as [rows, n]."""
    rows, width = shape
    steps = (np.arange(rows, dtype=np.uint64) * GOLDEN)[:, None]
    upper = mix64(keys + steps) >> np.uint64(32)
    return (upper * np.uint64(width) >> np.uint64(32)).astype(np.int64)


def _least(half: NDArray[np.uint32], cells: NDArray[np.int64]) -> NDArray[np.int64]:
    # A loop over the rows of cells is 2.6 times as fast as np.take_along_axis.
    counts = [row.take(of_row) for row, of_row in zip(half, cells, strict=True)]
    return np.min(counts, axis=0).astype(np.int64)


@dataclass(frozen=True)
class CountedStrings:
    """K distinct strings with their keys (hashes) and counts, sorted by key. Each attribute has K elements."""

    keys: NDArray[np.uint64]
    counts: NDArray[np.int64]
    texts: Strings

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.counts.nbytes + self.texts.nbytes

    def __getitem__(self, mask: NDArray[np.generic] | slice) -> CountedStrings:
        """Return the strings that a mask or a slice selects, with their counts, copied to new memory."""
        return CountedStrings(self.keys[mask], self.counts[mask], self.texts.take(mask).compact())

    @classmethod
    def concatenate(cls, parts: Sequence[CountedStrings]) -> CountedStrings:
        """Return the strings and counts of all `parts`, one part after the other.

        A string that is in several parts is in the result several times.
        """
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.counts for part in parts]),
            concatenate_strings([part.texts for part in parts]),
        )


NOTHING = CountedStrings(np.empty(0, np.uint64), np.empty(0, np.int64), Strings.of([]))


def count_strings(texts: Strings) -> CountedStrings:
    """Count how often each distinct string occurs among the strings [n]."""
    return add_up(texts.keys(), np.ones(len(texts), np.int64), texts)


def merge(parts: Sequence[CountedStrings]) -> CountedStrings:
    """Return the distinct strings in all `parts`. The count of a string is the sum of its counts in the parts."""
    all_parts = CountedStrings.concatenate(parts)
    return add_up(all_parts.keys, all_parts.counts, all_parts.texts)


def add_up(keys: NDArray[np.uint64], counts: NDArray[np.int64], texts: Strings) -> CountedStrings:
    """Return the distinct strings among `texts` [n]. The count of a string is the sum of its `counts` [n].

    `keys` [n] are the hashes of the strings.
    """
    if len(keys) == 0:
        return NOTHING
    order, firsts = group_equal(keys, texts)
    mask = order[firsts]
    return CountedStrings(keys[mask], np.add.reduceat(counts[order], firsts), texts.take(mask).compact())


def concatenate_strings(parts: Sequence[Strings]) -> Strings:
    """Return one array with the strings of several arrays, in order, in a new buffer."""
    offsets = np.cumsum([0, *(len(part.data) for part in parts[:-1])])
    return Strings(
        np.concatenate([part.data for part in parts]),
        np.concatenate([part.starts + offset for part, offset in zip(parts, offsets, strict=True)]),
        np.concatenate([part.lengths for part in parts]),
    )


def group_equal(keys: NDArray[np.uint64], texts: Strings) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort strings such that equal strings are adjacent.

    Return the indices [n] of the strings in sorted order, and the position in this order at which each group of equal
    strings begins. Strings are sorted by their keys (hashes), and different strings with the same key by their bytes.
    """
    order = np.argsort(keys, kind="stable")
    if len(order) == 0:
        return order, order
    sorted_keys = keys[order]
    is_new = np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]])
    repeated = np.flatnonzero(~is_new)  # Positions in the sorted order whose key equals the key before them.
    is_new[repeated] = ~texts.take(order[repeated]).equal(texts.take(order[repeated - 1]))
    collisions = repeated[is_new[repeated]]
    if len(collisions):
        _order_by_bytes(order, sorted_keys, np.unique(sorted_keys[collisions]), texts)
        is_new[repeated] = ~texts.take(order[repeated]).equal(texts.take(order[repeated - 1]))
    return order, np.flatnonzero(is_new)


def _order_by_bytes(
    order: NDArray[np.int64], sorted_keys: NDArray[np.uint64], shared: NDArray[np.uint64], texts: Strings
) -> None:
    """Sort strings that have the same key (hash) by their bytes, by changing the array `order` in place.

    `order` has the indices of all strings, sorted by key, and `sorted_keys` has the keys in this order. `shared` are
    the keys that several different strings have. Strings with other keys keep their places in `order`.
    """
    for key in shared:
        run = slice(np.searchsorted(sorted_keys, key), np.searchsorted(sorted_keys, key, side="right"))
        strings = texts.take(order[run]).tolist()
        order[run] = order[run][sorted(range(len(strings)), key=strings.__getitem__)]
