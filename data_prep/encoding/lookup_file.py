"""The vocabulary's search tables, in a file that all workers map into memory.

Letters: K values of a field.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.execution.pieces import storable
from data_prep.kernels.numpy_kernels import ID_MASK, FieldLookup, StringLookup
from data_prep.kernels.strings import Strings, concatenate_strings, group_equal

LOOKUP_FILE = "lookup.bin"
NO_IDS = np.zeros(0, np.int64)
_ALIGNMENT = 8  # of each array in the file


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
                start = end + -end % _ALIGNMENT
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


def merge_lookup_tables(chain: Sequence[LookupTables], path: Path, expired: NDArray[np.int64] = NO_IDS) -> LookupTables:
    """Write one table a column for all the values that the tables in `chain` have, the oldest first.

    The ids `expired` are left out. A value has one id that is not among them.
    """

    def merged() -> Iterator[FieldLookup | StringLookup]:
        of_numbers, of_texts = (
            list(zip(*tables, strict=True)) for tables in zip(*(t.opened for t in chain), strict=True)
        )
        for layout in chain[0].layouts:
            if layout.is_text:
                tables = of_texts.pop(0)
                first = tables[0]
                keys, ids = (np.concatenate([getattr(table, name) for table in tables]) for name in ("keys", "ids"))
                texts = concatenate_strings([table.texts for table in tables])
                if len(expired):
                    kept = np.flatnonzero(~np.isin(ids, expired))
                    keys, ids, texts = keys[kept], ids[kept], texts.take(kept).compact()
                yield text_lookup(keys, ids, texts, first.missing_id, first.first_oov_id, first.num_oov_ids)
            else:
                base, *later = of_numbers.pop(0)
                added = [table.words + np.uint64(table.base_id - base.base_id) for table in later]
                words = np.concatenate([base.words, *added])
                if len(expired):
                    ids = (words & ID_MASK).astype(np.int64) + base.base_id
                    words = words[~np.isin(ids, expired)]
                yield number_lookup(words, base.base_id, base.missing_id, base.first_oov_id, base.num_oov_ids)

    return write_tables(merged(), path)


def without_values(
    tables: tuple[list[FieldLookup], list[StringLookup]],
) -> tuple[list[FieldLookup], list[StringLookup]]:
    """Return tables that find no value, of numbers and of texts, by which each has the id of its values out of it."""
    of_numbers, of_texts = tables
    none = np.zeros(0, np.uint64)
    numbers = [number_lookup(none.copy(), t.base_id, t.missing_id, t.first_oov_id, t.num_oov_ids) for t in of_numbers]
    texts = [text_lookup(none, NO_IDS, Strings.of([]), t.missing_id, t.first_oov_id, t.num_oov_ids) for t in of_texts]
    return numbers, texts


def write_tables(tables: Iterable[FieldLookup | StringLookup], path: Path) -> LookupTables:
    """Write the tables of all columns, in their order."""
    layouts = []
    with path.open("wb") as file:
        for table in tables:
            if isinstance(table, FieldLookup):
                arrays: list[NDArray[Any]] = [table.words, table.starts]
                numbers: tuple[int, ...] = (table.shift, table.base_id, table.missing_id)
            else:
                texts = table.texts
                arrays = [table.keys, table.ids, texts.starts, texts.lengths, texts.data]
                numbers = (table.missing_id,)
            for array in arrays:
                file.write(np.ascontiguousarray(array).data)  # not tofile, whose errors have no errno
                file.write(bytes(-array.nbytes % _ALIGNMENT))
            numbers = (*numbers, table.first_oov_id, table.num_oov_ids)
            is_text = isinstance(table, StringLookup)
            layouts.append(TableLayout(is_text, tuple((a.dtype.str, len(a)) for a in arrays), numbers))
    return LookupTables(path, tuple(layouts))


def number_lookup(
    words: NDArray[np.uint64], base_id: int, missing_id: int, first_oov_id: int, num_oov_ids: int
) -> FieldLookup:
    """Sort `words`, and return their table."""
    words.sort()
    directory_bits = max(1, len(words).bit_length() - 1)  # one to four words a bucket, if values spread evenly
    buckets = (words >> np.uint64(64 - directory_bits)).astype(np.int64)
    starts = np.zeros((1 << directory_bits) + 1, np.uint32)
    np.cumsum(np.bincount(buckets, minlength=1 << directory_bits), out=starts[1:])
    return FieldLookup(words, starts, 32 - directory_bits, base_id, missing_id, first_oov_id, num_oov_ids)


def text_lookup(
    keys: NDArray[np.uint64],
    ids: NDArray[np.int64],
    texts: Strings,
    missing_id: int,
    first_oov_id: int,
    num_oov_ids: int,
) -> StringLookup:
    """Sort strings by key, and return their table."""
    order, _ = group_equal(keys, texts)
    return StringLookup(keys[order], ids[order], texts.take(order).compact(), missing_id, first_oov_id, num_oov_ids)
