"""The tables of all categorical columns, whether they are worked on as numbers or as text.

Letters: n rows, C categorical columns.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.buckets import number_columns
from data_prep.categorical import CategoricalColumn
from data_prep.kernels import Kernels
from data_prep.lookup import FieldLookup, LookupFile, LookupWriter, Place
from data_prep.pieces import storable
from data_prep.rows import LogRows
from data_prep.text_lookup import TextLookup, TextLookupFile, write_text_lookup
from data_prep.vocabulary import FieldVocabulary

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
        self, rows: LogRows, columns: Sequence[CategoricalColumn], integer_buckets: bool, kernels: Kernels, dtype: str
    ) -> NDArray[np.signedinteger]:
        """Ids [n, C] of `dtype`."""
        of_numbers, of_texts = self._opened
        ids = kernels.encode_values(of_numbers, *number_columns(rows, integer_buckets), dtype)
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
