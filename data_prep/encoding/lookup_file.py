"""The vocabulary as it is searched, in files that all workers map: numbers, strings, and both together.

Letters: n rows, C categorical fields, K values of a field.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.vocabulary import FieldVocabulary
from data_prep.execution.pieces import storable
from data_prep.kernels.reference import ID_BITS, ID_MASK, FieldLookup, TextLookup
from data_prep.kernels.rows import MISSING, LogRows
from data_prep.kernels.texts import Texts, group_equal
from data_prep.options.columns import CategoricalColumn


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
    words = field.values.astype(np.uint64) << ID_BITS | (field.value_ids - base_id).astype(np.uint64)
    missing_place = int(np.flatnonzero(field.values == MISSING)[0])  # every field has it
    missing_id = base_id + int(words[missing_place] & ID_MASK)
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


LOOKUP_FILES = "lookup*.bin"


@dataclass(frozen=True)
class LookupTables:
    """Finished files; small to send to a worker, which maps them at its first chunk."""

    numbers: LookupFile
    texts: tuple[TextLookupFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self.numbers.size + sum(file.size for file in self.texts)

    def moved_to(self, folder: Path) -> LookupTables:
        """The same files in another folder."""
        numbers = dataclasses.replace(self.numbers, path=folder / self.numbers.path.name)
        texts = (dataclasses.replace(file, path=folder / file.path.name) for file in self.texts)
        return LookupTables(numbers, tuple(texts))

    def mapped(self) -> LookupTables:
        """Return the tables with their files mapped, which may then be deleted."""
        _ = self._opened
        return self

    @functools.cached_property
    def _opened(self) -> tuple[list[FieldLookup], list[TextLookup]]:
        return self.numbers.open() if self.numbers.places else [], [file.open() for file in self.texts]

    def encode(
        self,
        rows: LogRows,
        columns: Sequence[CategoricalColumn],
        integer_buckets: bool,
        kernels: ModuleType,
        dtype: str,
    ) -> NDArray[np.signedinteger]:
        """Ids [n, C] of `dtype`."""
        of_numbers, of_texts = self._opened
        ids = kernels.encode_values(of_numbers, *rows.number_columns(integer_buckets), dtype)
        if not of_texts:
            return ids
        together = np.empty((len(rows.labels), len(columns)), dtype)
        for place, column in enumerate(columns):
            if column.is_text:
                here = column.place
                together[:, place] = kernels.find_texts(of_texts[here], rows.texts[here], rows.texts_present[here])
            else:
                together[:, place] = ids[:, column.place]
        return together

    def __getstate__(self) -> dict[str, object]:
        """Without what is mapped."""
        return {"numbers": self.numbers, "texts": self.texts}


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


storable(LookupTables, LookupFile, Place, TextLookupFile)


class LookupTablesWriter:
    """Writes the tables of all columns, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = LookupWriter(folder / "lookup.bin")
        self._texts: list[TextLookupFile] = []

    def add(self, field: FieldVocabulary) -> None:
        """Write the next column's table."""
        if field.texts is None:
            self._numbers.add(field)
        else:
            path = self._folder / f"lookup-text-{len(self._texts):03d}.bin"
            self._texts.append(write_text_lookup(path, field))

    def finish(self) -> LookupTables:
        """All tables."""
        return LookupTables(self._numbers.finish(), tuple(self._texts))


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
