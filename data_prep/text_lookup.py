"""The vocabulary of a field of text as it is searched: strings to ids, from a file that all workers map.

Letters: n rows, K strings of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.lookup import bucket
from data_prep.texts import Texts
from data_prep.vocabulary import MISSING, FieldVocabulary


@dataclass(frozen=True)
class TextLookup:
    """One field's table; strings stand by rising key."""

    keys: NDArray[np.uint64]  # [K]
    ids: NDArray[np.int64]  # [K]
    texts: Texts  # [K]
    most_of_a_key: int  # strings that share a key; 1 but for collisions
    missing_id: int
    first_oov_id: int
    num_oov_ids: int


def find_texts(field: TextLookup, texts: Texts, present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Ids [n] of the strings of some rows."""
    wanted = texts.keys()
    ids = field.first_oov_id + bucket((wanted >> np.uint64(32)).astype(np.uint32), field.num_oov_ids)
    if len(field.keys):
        places = np.searchsorted(field.keys, wanted)
        for further in range(field.most_of_a_key):
            at = np.minimum(places + further, len(field.keys) - 1)
            found = np.flatnonzero(field.keys[at] == wanted)
            found = found[texts.take(found).equal(field.texts.take(at[found]))]
            ids[found] = field.ids[at[found]]
    ids[~present] = field.missing_id
    return ids


@dataclass(frozen=True)
class TextLookupFile:
    """A finished file of a field's table; small to send to a worker."""

    path: Path
    num_strings: int
    numbers: tuple[int, int, int, int]  # most_of_a_key, missing_id, first_oov_id, num_oov_ids

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
    order = np.argsort(keys, kind="stable")
    texts = field.texts.take(known[order]).compact()
    keys, ids = keys[order], field.value_ids[known[order]]
    with path.open("wb") as file:
        for array in (keys, ids, texts.starts, texts.lengths, texts.data):
            file.write(np.ascontiguousarray(array).data)  # tofile has no errno
    _, uses = np.unique(keys, return_counts=True)
    missing_id = int(field.value_ids[is_missing][0])  # every field has it
    return TextLookupFile(
        path,
        len(keys),
        (int(uses.max(initial=1)), missing_id, field.oov_ids[0], field.oov_ids[1] - field.oov_ids[0]),
    )
