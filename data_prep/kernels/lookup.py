"""Find the ids of values and strings, in NumPy: the definition.

Letters: n rows, C categorical fields, K values of a field.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.texts import Texts

_ID_BITS = np.uint64(32)

_ID_MASK = np.uint64(2**32 - 1)


@dataclass(frozen=True)
class FieldLookup:
    """One field's table.

    `words` [K] uint64 are value << 32 | (id - base_id), ascending: searched by value, the id comes with it. A
    directory makes the search short: the words whose value's upper bits are b = value >> shift are
    words[starts[b] : starts[b + 1]].
    """

    words: NDArray[np.uint64]
    starts: NDArray[np.uint32]
    shift: int
    base_id: int
    missing_id: int
    first_oov_id: int
    num_oov_ids: int


def ids_room(num_rows: int, num_fields: int, dtype: str) -> NDArray[np.signedinteger]:
    """Room for ids [n, C]."""
    return np.empty((num_rows, num_fields), dtype)


def encode_values(
    fields: Sequence[FieldLookup], values: NDArray[np.uint32], present: NDArray[np.bool_], dtype: str
) -> NDArray[np.signedinteger]:
    """Ids [n, C] of `dtype` for values [C, n]."""
    ids = ids_room(values.shape[1], len(fields), dtype)
    for place, field in enumerate(fields):
        ids[:, place] = np.where(present[place], _find(field, values[place]), field.missing_id)
    return ids


def _find(field: FieldLookup, values: NDArray[np.uint32]) -> NDArray[np.int64]:
    ids = field.first_oov_id + bucket(values, field.num_oov_ids)
    if len(field.words):
        wanted = values.astype(np.uint64)
        places = np.minimum(np.searchsorted(field.words, wanted << _ID_BITS), len(field.words) - 1)
        words = field.words[places]
        known = words >> _ID_BITS == wanted
        ids[known] = field.base_id + (words[known] & _ID_MASK).astype(np.int64)
    return ids


def bucket(values: NDArray[np.uint32], num_buckets: int) -> NDArray[np.int64]:
    """A hash of each value, 0 … num_buckets - 1.

    The finalizer of MurmurHash3 (A. Appleby, public domain), scaled by a multiplication (D. Lemire, "Fast
    random integer generation in an interval", 2019).
    """
    mixed = (values ^ values >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ mixed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return (mixed.astype(np.uint64) * np.uint64(num_buckets) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class TextLookup:
    """One field's table; strings stand by rising key, those that share a key by their bytes."""

    keys: NDArray[np.uint64]  # [K]
    ids: NDArray[np.int64]  # [K]
    texts: Texts  # [K]
    missing_id: int
    first_oov_id: int
    num_oov_ids: int

    @functools.cached_property
    def later_of_a_key(self) -> dict[bytes, int]:
        """The ids of strings whose key another one before them has; Python's hashes of them are random."""
        later = np.flatnonzero(self.keys[1:] == self.keys[:-1]) + 1
        return dict(zip(self.texts.take(later).tolist(), self.ids[later].tolist(), strict=True))


def find_texts(field: TextLookup, texts: Texts, present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Ids [n] of the strings of some rows."""
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
