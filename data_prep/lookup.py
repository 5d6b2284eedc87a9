"""The vocabulary as it is searched: the values of each field to ids.

The tables of all fields lie in one file, which every worker maps into its memory: they have it once together.

Letters: n rows, C categorical fields, K values of a field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.vocabulary import MISSING, FieldVocabulary

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


@dataclass(frozen=True)
class Place:
    """A field's table in the file: where its arrays start (in bytes), how long they are, and its numbers."""

    words_offset: int
    num_words: int
    starts_offset: int
    num_starts: int
    numbers: tuple[int, int, int, int, int]  # shift, base_id, missing_id, first_oov_id, num_oov_ids


@dataclass(frozen=True)
class LookupFile:
    """A finished file of tables; small to send to a worker."""

    path: Path
    places: tuple[Place, ...]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def open(self) -> list[FieldLookup]:
        """The tables of all fields, mapped from the file."""
        file = np.memmap(self.path, np.uint8, "r")
        return [_read(file, place) for place in self.places]


def _read(file: NDArray[np.uint8], place: Place) -> FieldLookup:
    words_end = place.words_offset + 8 * place.num_words
    starts_end = place.starts_offset + 4 * place.num_starts
    words = file[place.words_offset : words_end].view(np.uint64)
    starts = file[place.starts_offset : starts_end].view(np.uint32)
    return FieldLookup(words, starts, *place.numbers)


class LookupWriter:
    """Writes the tables of the fields, one after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._places: list[Place] = []

    def add(self, vocabulary: FieldVocabulary) -> None:
        """Write the next field's table."""
        field = make_lookup(vocabulary)
        words_offset = self._file.tell()
        self._file.write(field.words.data)  # tofile has no errno
        starts_offset = self._file.tell()
        self._file.write(field.starts.data)
        self._file.write(bytes(-self._file.tell() % 8))  # the next field's words start at a whole word
        numbers = (field.shift, field.base_id, field.missing_id, field.first_oov_id, field.num_oov_ids)
        self._places.append(Place(words_offset, len(field.words), starts_offset, len(field.starts), numbers))

    def finish(self) -> LookupFile:
        """The file, with all tables."""
        self._file.close()
        return LookupFile(self._path, tuple(self._places))


def make_lookup(field: FieldVocabulary) -> FieldLookup:
    """A field's table in memory."""
    base_id = field.id_ranges[0][0]
    words = field.values.astype(np.uint64) << _ID_BITS | (field.value_ids - base_id).astype(np.uint64)
    missing_place = int(np.flatnonzero(field.values == MISSING)[0])  # every field has it
    missing_id = base_id + int(words[missing_place] & _ID_MASK)
    words[missing_place] = words[-1]
    words = words[:-1]
    words.sort()
    directory_bits = max(1, len(words).bit_length() - 1)  # one to four words a bucket, where values spread evenly
    buckets = (words >> np.uint64(64 - directory_bits)).astype(np.int64)
    starts = np.cumsum(np.bincount(buckets, minlength=1 << directory_bits), dtype=np.uint32)
    return FieldLookup(
        words,
        np.concatenate([np.zeros(1, np.uint32), starts]),
        32 - directory_bits,
        base_id,
        missing_id,
        field.oov_ids[0],
        field.oov_ids[1] - field.oov_ids[0],
    )


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
