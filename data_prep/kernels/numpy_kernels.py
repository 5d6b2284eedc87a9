"""Kernels in NumPy. They define the results of the faster kernels in native.py, which have the same names."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Both functions are re-exported, so that this module has all kernels of native.py.
from data_prep.kernels.lists import split_lists as split_lists
from data_prep.kernels.parse import parse_chunk as parse_chunk
from data_prep.kernels.strings import PADDING_BYTES, Strings


def join_strings(parts: Sequence[Strings], present: NDArray[np.bool_]) -> Strings:
    """Join the strings of all parts in each row [n] with *. Each * and \\ within a string gets a \\ before it.

    Rows that are not `present` [n] get "".
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


# Tables are compared by identity, so that native.py can cache its form of each table.
@dataclass(frozen=True, eq=False)
class FieldLookup:
    """Search table from values to ids, for a field whose values are integers.

    `words` [K] are the numbers value << 32 | (id - base_id) in ascending order, so a binary search for a value finds
    its id. `starts` is a directory that shortens the search: the values with the upper bits b = value >> shift are in
    words[starts[b] : starts[b + 1]].
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
    """Return the ids [n, C], of type `dtype`, of values [C, n]. A cell that is not `present` gets `missing_id`."""
    ids = np.empty((values.shape[1], len(fields)), dtype)
    for index, field in enumerate(fields):
        ids[:, index] = np.where(present[index], find_values(field, values[index]), field.missing_id)
    return ids


def find_values(field: FieldLookup, values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the ids [n] of integer values [n]. A value that the table lacks gets an out-of-vocabulary id by a hash."""
    ids = field.first_oov_id + bucket(values, field.num_oov_ids)
    if len(field.words):
        keys = values.astype(np.uint64)
        indices = np.minimum(np.searchsorted(field.words, keys << ID_BITS), len(field.words) - 1)
        words = field.words[indices]
        is_known = words >> ID_BITS == keys
        ids[is_known] = field.base_id + (words[is_known] & ID_MASK).astype(np.int64)
    return ids


def bucket(values: NDArray[np.uint32], num_buckets: int) -> NDArray[np.int64]:
    """Return a hash of each value, from 0 to `num_buckets` - 1.

    It is the finalizer of MurmurHash3 (A. Appleby, public domain), scaled by a multiplication (D. Lemire, "Fast random
    integer generation in an interval", 2019).
    """
    mixed = (values ^ values >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ mixed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return (mixed.astype(np.uint64) * np.uint64(num_buckets) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class StringLookup:
    """Search table from texts to ids, for a text field.

    The K strings are sorted by key, and strings that share a key are sorted by their bytes.
    """

    keys: NDArray[np.uint64]  # Hash of each string [K], in ascending order.
    ids: NDArray[np.int64]  # Id of each string [K].
    texts: Strings  # The strings [K].
    missing_id: int
    first_oov_id: int
    num_oov_ids: int

    @functools.cached_property
    def later_of_a_key(self) -> dict[bytes, int]:
        """Ids of the strings whose key equals that of the string before them, by string.

        Many such strings cannot slow down the lookup, because Python seeds the hashes of a dictionary at random.
        """
        later = np.flatnonzero(self.keys[1:] == self.keys[:-1]) + 1
        return dict(zip(self.texts.take(later).tolist(), self.ids[later].tolist(), strict=True))


def find_strings(field: StringLookup, texts: Strings, present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the ids [n] of strings [n]. A string that the table lacks gets an out-of-vocabulary id by a hash.

    Rows that are not `present` [n] get `missing_id`.
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
