"""The vocabulary of a field of text as it is searched: strings to ids, from a file that all workers map.

Letters: n rows, K strings of the vocabulary.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.lookup import bucket
from data_prep.texts import Texts, group_equal
from data_prep.vocabulary import MISSING, FieldVocabulary


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


@dataclass(frozen=True)
class TextLookupFile:
    """A finished file of a field's table; small to send to a worker."""

    path: Path
    num_strings: int
    numbers: tuple[int, int, int]  # missing_id, first_oov_id, num_oov_ids

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def open(self) -> TextLookup:
        """The table, mapped from the file."""
        file = np.memmap(self.path, np.uint8, "r")
        end = 8 * self.num_strings
        keys, ids, starts, lengths = (file[number * end : (number + 1) * end] for number in range(4))
        texts = Texts(file[4 * end :], starts.view(np.int64), lengths.view(np.int64))
        return TextLookup(keys.view(np.uint64), ids.view(np.int64), texts, *self.numbers)


def write_text_lookup(path: Path, field: FieldVocabulary) -> TextLookupFile:
    """The table of a field whose vocabulary has texts."""
    assert field.texts is not None
    is_missing = field.values == MISSING
    known = np.flatnonzero(~is_missing)
    keys = field.texts.keys()[known]
    order, _ = group_equal(keys, field.texts.take(known))
    texts = field.texts.take(known[order]).compact()
    keys, ids = keys[order], field.value_ids[known[order]]
    with path.open("wb") as file:
        for array in (keys, ids, texts.starts, texts.lengths, texts.data):
            file.write(np.ascontiguousarray(array).data)  # tofile has no errno
    missing_id = int(field.value_ids[is_missing][0])  # every field has it
    return TextLookupFile(path, len(keys), (missing_id, field.oov_ids[0], field.oov_ids[1] - field.oov_ids[0]))
