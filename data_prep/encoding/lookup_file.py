"""Store the search tables of a vocabulary in a file that all workers map into memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.execution.pieces import storable
from data_prep.kernels.numpy_kernels import ID_MASK, FieldLookup, StringLookup
from data_prep.kernels.strings import PADDING_BYTES, Strings

LOOKUP_FILE = "lookup.bin"
NO_IDS = np.zeros(0, np.int64)
ALIGNMENT = 8  # Alignment in bytes of each array in the file.


@dataclass(frozen=True)
class TableLayout:
    """The layout of one search table in the file. Tables follow each other in the order of the columns."""

    is_text: bool
    arrays: tuple[tuple[str, int], ...]  # dtype and length of each array, in the order of the file.
    numbers: tuple[int, ...]  # Remaining attributes of the FieldLookup or StringLookup.

    @property
    def num_oov_ids(self) -> int:
        return self.numbers[-1]


@dataclass(frozen=True)
class LookupTables:
    """The search tables of all vocabularies, in order. The file is mapped at the first use in a process."""

    path: Path
    layouts: tuple[TableLayout, ...]

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @functools.cached_property
    def opened(self) -> tuple[list[FieldLookup], list[StringLookup]]:
        """Tables of the integer columns, and tables of the text columns. The file may be deleted afterwards."""
        file = np.memmap(self.path, np.uint8, "r")
        of_numbers, of_texts, start = [], [], 0
        for layout in self.layouts:
            arrays: list[Any] = []
            for dtype, length in layout.arrays:
                end = start + length * np.dtype(dtype).itemsize
                if not start <= end <= len(file):
                    raise ValueError(f"{self.path} is damaged: it has {len(file):,} bytes, and a table ends at {end:,}")
                arrays.append(file[start:end].view(dtype))
                start = end + -end % ALIGNMENT
            if layout.is_text:
                keys, ids, starts, lengths, data = arrays
                of_texts.append(StringLookup(keys, ids, Strings(data, starts, lengths), *layout.numbers))
            else:
                words, starts = arrays
                of_numbers.append(FieldLookup(words, starts, *layout.numbers))
        return of_numbers, of_texts

    def check(self, num_ids: int) -> None:
        """Raise ValueError unless every search stays within the file and finds ids from 0 to `num_ids` - 1.

        The native kernels rely on this and do not check it again. The check reads the whole file.
        """
        of_numbers, of_texts = self.opened
        is_within, ids = True, []
        for table in of_numbers:
            ends = np.append(table.starts, np.uint32(len(table.words)))
            is_within &= len(ends) == (1 << (32 - table.shift)) + 2 and bool(np.all(ends[1:] >= ends[:-1]))
            ids.append(table.base_id + np.append(0, (table.words & ID_MASK).max(initial=0).astype(np.int64)))
        for each in of_texts:
            starts, lengths, size = each.texts.starts, each.texts.lengths, len(each.texts.data) - PADDING_BYTES
            is_within &= len(each.keys) == len(each.ids) == len(starts) == len(lengths)
            is_within &= bool(np.all((starts >= 0) & (lengths >= 0) & (lengths <= size) & (starts <= size - lengths)))
            ids.append(each.ids)
        all_tables: list[FieldLookup | StringLookup] = [*of_numbers, *of_texts]
        ids += [
            np.array([each.missing_id, each.first_oov_id, each.first_oov_id + each.num_oov_ids - 1])
            for each in all_tables
        ]
        if not is_within or any(each.min(initial=0) < 0 or each.max(initial=0) >= num_ids for each in ids):
            raise ValueError(f"{self.path} is damaged: its search tables lead beyond the file or the {num_ids:,} ids")

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "layouts": self.layouts}  # A pickle does not contain the mapped arrays.


storable(LookupTables, TableLayout)


def without_values(
    tables: tuple[list[FieldLookup], list[StringLookup]],
) -> tuple[list[FieldLookup], list[StringLookup]]:
    """Return copies of search tables that contain no values, so that each value gets an out-of-vocabulary id."""
    of_numbers, of_texts = tables
    keys, starts = np.zeros(0, np.uint64), np.zeros(3, np.uint32)
    numbers = [replace(table, words=keys, starts=starts, shift=31) for table in of_numbers]
    return numbers, [replace(table, keys=keys, ids=NO_IDS, texts=Strings.of([])) for table in of_texts]
