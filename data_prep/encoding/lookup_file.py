"""The vocabulary's search tables, in a file that all workers map into memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.execution.pieces import storable
from data_prep.kernels.numpy_kernels import FieldLookup, StringLookup
from data_prep.kernels.strings import Strings

LOOKUP_FILE = "lookup.bin"
NO_IDS = np.zeros(0, np.int64)
ALIGNMENT = 8  # of each array in the file


@dataclass(frozen=True)
class TableLayout:
    """The search table of a column in the file, after those of the columns before it."""

    is_text: bool
    arrays: tuple[tuple[str, int], ...]  # dtype and length of each, in the file's order
    numbers: tuple[int, ...]  # the other attributes of FieldLookup or StringLookup

    @property
    def num_oov_ids(self) -> int:
        return self.numbers[-1]


@dataclass(frozen=True)
class LookupTables:
    """The tables of all categorical columns, in their order. They are mapped at the first use in a process."""

    path: Path
    layouts: tuple[TableLayout, ...]

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @functools.cached_property
    def opened(self) -> tuple[list[FieldLookup], list[StringLookup]]:
        """The tables of the columns that are numbers, and of those that are text. The file may then be deleted."""
        file = np.memmap(self.path, np.uint8, "r")
        of_numbers, of_texts, start = [], [], 0
        for layout in self.layouts:
            arrays: list[Any] = []
            for dtype, length in layout.arrays:
                end = start + length * np.dtype(dtype).itemsize
                arrays.append(file[start:end].view(dtype))
                start = end + -end % ALIGNMENT
            if layout.is_text:
                keys, ids, starts, lengths, data = arrays
                of_texts.append(StringLookup(keys, ids, Strings(data, starts, lengths), *layout.numbers))
            else:
                words, starts = arrays
                of_numbers.append(FieldLookup(words, starts, *layout.numbers))
        return of_numbers, of_texts

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "layouts": self.layouts}  # not what is mapped


storable(LookupTables, TableLayout)


def without_values(
    tables: tuple[list[FieldLookup], list[StringLookup]],
) -> tuple[list[FieldLookup], list[StringLookup]]:
    """Return tables that find no value, of numbers and of texts, by which each has the id of its values out of it."""
    of_numbers, of_texts = tables
    keys, starts = np.zeros(0, np.uint64), np.zeros(3, np.uint32)
    numbers = [replace(table, words=keys, starts=starts, shift=31) for table in of_numbers]
    return numbers, [replace(table, keys=keys, ids=NO_IDS, texts=Strings.of([])) for table in of_texts]
