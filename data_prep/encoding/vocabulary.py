"""Hold the values and ids of each categorical field, and write and read vocabulary.parquet and the search tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from data_prep.encoding.encoder import ALIGNMENT, NO_IDS, LookupTables, TableLayout
from data_prep.kernels.numpy_kernels import (
    COUNT_BITS,
    COUNT_MASK,
    ID_BITS,
    ID_MASK,
    NOTHING,
    FieldLookup,
    StringLookup,
    concatenate_strings,
    group_equal,
)
from data_prep.kernels.parsed import MISSING, SMALLEST_BUCKET
from data_prep.kernels.strings import Strings
from data_prep.options.columns import CategoricalColumn
from data_prep.prepared.schema import CategoricalField
from data_prep.raw_log.arrow_to_text import hex_text
from data_prep.statistics.value_counts import check_count

# The values of a field as three arrays: values, their counts, and the strings of a text field (or None). The values are
# ordered by descending count, then by value. MISSING is one of the values.
OrderedValues = tuple[NDArray[np.int64], NDArray[np.int64], Strings | None]
_GROUP_ROWS = 1 << 20  # Maximum number of rows in a row group (a block of rows) of vocabulary.parquet.
_PARQUET_SCHEMA = pa.schema(
    [
        ("field", pa.dictionary(pa.int32(), pa.string())),
        ("value", pa.string()),
        ("count", pa.int64()),
        ("id", pa.int64()),
    ]
)
_VALUE_OF_DIGIT = np.array([int(chr(byte), 16) if chr(byte) in "0123456789abcdef" else 0 for byte in range(256)])


@dataclass(frozen=True)
class FieldVocabulary:
    """The values of one categorical field that have ids, in the order of their ids, with their counts."""

    name: str
    oov_ids: tuple[int, int]  # Half-open range of the out-of-vocabulary ids.
    # Half-open ranges of the ids of the values, in ascending order. There are several ranges if values were added after
    # the first ids were given.
    id_ranges: tuple[tuple[int, int], ...]
    # The values [K]. In a text field they are indices into `texts`, otherwise integers as in ParsedRows.number_columns.
    # The missing value is MISSING.
    values: NDArray[np.int64]
    counts: NDArray[np.int64]  # Number of training rows with each value [K].
    texts: Strings | None = None  # Texts [K] of a text field.
    # Id of each value [K]. None if no id has expired, so that the values have the ids in `id_ranges` in order.
    own_ids: NDArray[np.int64] | None = None

    @property
    def value_ids(self) -> NDArray[np.int64]:
        if self.own_ids is not None:
            return self.own_ids
        return np.concatenate([np.zeros(0, np.int64), *(np.arange(first, end) for first, end in self.id_ranges)])

    @property
    def ids(self) -> CategoricalField:
        return CategoricalField(self.name, self.oov_ids, self.id_ranges)


def without(field: FieldVocabulary, expired: NDArray[np.int64]) -> FieldVocabulary:
    """Return a copy of a field without the values whose ids are in `expired`."""
    rest = np.flatnonzero(~np.isin(field.value_ids, expired))
    if len(rest) == len(field.values):
        return field
    values, texts = field.values[rest], field.texts
    if texts is not None:
        values, texts = np.where(values == MISSING, MISSING, np.arange(len(rest))), texts.take(rest).compact()
    return replace(field, values=values, counts=field.counts[rest], texts=texts, own_ids=field.value_ids[rest])


def added_values(field: FieldVocabulary, old: CategoricalField) -> FieldVocabulary:
    """Return the values of `field` that it did not have when schema.json described it as `old`.

    The value MISSING is put before these values, because every search table needs it.
    """
    (missing,) = np.flatnonzero(field.values == MISSING)
    added = slice(old.num_values, len(field.values))
    values, texts = field.values[added], None
    if field.texts is not None:
        values, texts = np.arange(len(values)), field.texts.take(added)
    ranges = field.id_ranges[len(old.id_ranges) :]
    later = FieldVocabulary(field.name, field.oov_ids, ranges, values, field.counts[added], texts)
    return with_missing(later, int(field.value_ids[missing]))


def with_missing(field: FieldVocabulary, missing_id: int) -> FieldVocabulary:
    """Return a copy of a field that has one more value before its others: MISSING, with the id `missing_id`.

    Every search table needs an id for missing cells.
    """
    values, texts = np.concatenate([[MISSING], field.values]), field.texts
    if texts is not None:
        texts = concatenate_strings([Strings.of([b""]), texts])
        values = np.concatenate([[MISSING], 1 + field.values])
    ranges, counts = ((missing_id, missing_id + 1), *field.id_ranges), np.concatenate([[0], field.counts])
    own_ids = None if field.own_ids is None else np.concatenate([[missing_id], field.own_ids])
    return FieldVocabulary(field.name, field.oov_ids, ranges, values, counts, texts, own_ids)


def checksum_of_values(field: FieldVocabulary, num_ranges: int | None = None) -> int:
    """Return a checksum of the ids and values of a field, as an integer below 2⁶⁴.

    With `num_ranges`, only the field's first ranges of ids are included. The checksum is the sum of a hash of each
    range, modulo 2⁶⁴. The checksum of a vocabulary is therefore the sum of the checksums of its fields, and values that
    are added later only add the hashes of their own ranges.
    """
    total, start = 0, 0
    for first, end in field.id_ranges[:num_ranges]:
        part = slice(start, start := start + end - first)
        checksum = xxhash.xxh3_64(repr((field.name, field.oov_ids, first, end)).encode())
        if field.texts is None:
            checksum.update(field.values[part].tobytes())
        else:
            texts = field.texts.take(part).compact()
            checksum.update(texts.lengths.tobytes())
            checksum.update(texts.data.tobytes())
        total += checksum.intdigest()
    return total % 2**64


def order_values(packed: NDArray[np.uint64], num_missing: int, max_size: int | None = None) -> OrderedValues:
    """Order the values of a field by descending count, then by value. Keep the first `max_size` values.

    `packed` has one number for each value, with the value in the upper bits and its count in the lower bits. The value
    MISSING is added with the count `num_missing`, before other values of the same count, and does not count toward
    `max_size`.
    """
    check_count(num_missing)
    # Count and value are sorted as one number, whose upper bits contain the complement of the count, so that counts
    # descend.
    order = (COUNT_MASK - (packed & COUNT_MASK)) << COUNT_BITS | packed >> COUNT_BITS
    order.sort()
    order = order[:max_size]
    missing_index = np.searchsorted(order, (COUNT_MASK - np.uint64(num_missing)) << COUNT_BITS)
    values = (order & COUNT_MASK).astype(np.int64)
    counts = (COUNT_MASK - (order >> COUNT_BITS)).astype(np.int64)
    return np.insert(values, missing_index, MISSING), np.insert(counts, missing_index, num_missing), None


def make_vocabulary(
    num_oov_ids: Mapping[str, int], ordered: Iterable[OrderedValues], num_numeric: int
) -> Iterator[FieldVocabulary]:
    """Give ids to the ordered values of every field. Yield one field at a time, because all together may be large.

    `num_oov_ids` maps the name of each field to its number of out-of-vocabulary ids. `ordered` has the ordered values
    of each field, with the fields in the order of `num_oov_ids`. Ids begin at `num_numeric`: first the
    out-of-vocabulary ids of all fields, then the ids of values.
    """
    first_oov_id, next_id = num_numeric, num_numeric + sum(num_oov_ids.values())
    for (name, num_oov), of_field in zip(num_oov_ids.items(), ordered, strict=True):
        end_oov_id, end_id = first_oov_id + num_oov, next_id + len(of_field[0])
        yield FieldVocabulary(name, (first_oov_id, end_oov_id), ((next_id, end_id),), *of_field)
        first_oov_id, next_id = end_oov_id, end_id


def ids_dtype(vocabulary_size: int) -> str:
    """Return the dtype of ids: "int32" if all ids below `vocabulary_size` fit in it, otherwise "int64"."""
    return "int32" if vocabulary_size < 2**31 else "int64"


def write_lookup_tables(fields: Iterable[FieldVocabulary], path: Path) -> LookupTables:
    """Make the search table (from values to ids) of each field. Write the tables to the file `path`.

    The tables are in the order of `fields`. Return a `LookupTables`, which reads the tables from the file.
    """
    return write_tables(
        (make_lookup(field) if field.texts is None else _make_text_lookup(field) for field in fields), path
    )


def make_lookup(field: FieldVocabulary) -> FieldLookup:
    """Return the search table, from values to ids, of a field whose values are numbers."""
    base_id = field.id_ranges[0][0]
    words = field.values.astype(np.uint64) << ID_BITS | (field.value_ids - base_id).astype(np.uint64)
    # Every field has the value MISSING, which stands for a missing cell, exactly once.
    missing_index = int(np.flatnonzero(field.values == MISSING)[0])
    missing_id = base_id + int(words[missing_index] & ID_MASK)
    words[missing_index] = words[-1]
    num_oov_ids = field.oov_ids[1] - field.oov_ids[0]
    return number_lookup(words[:-1], base_id, missing_id, field.oov_ids[0], num_oov_ids)


def _make_text_lookup(field: FieldVocabulary) -> StringLookup:
    assert field.texts is not None
    is_missing = field.values == MISSING
    places = np.flatnonzero(~is_missing)
    # Every field has the value MISSING, which stands for a missing cell, exactly once.
    missing_id = int(field.value_ids[is_missing][0])
    num_oov_ids = field.oov_ids[1] - field.oov_ids[0]
    keys, ids, texts = field.texts.keys()[places], field.value_ids[places], field.texts.take(places)
    return text_lookup(keys, ids, texts, missing_id, field.oov_ids[0], num_oov_ids)


def merge_lookup_tables(chain: Sequence[LookupTables], path: Path, expired: NDArray[np.int64] = NO_IDS) -> LookupTables:
    """Merge several sets of search tables into one set, and write it to the file `path`.

    `chain` contains the sets, the oldest first; each has a table for every field. Values whose ids are in `expired` are
    left out. A value may have different ids in the sets, but at most one of its ids may be missing from `expired`.
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
                    remaining = np.flatnonzero(~np.isin(ids, expired))
                    keys, ids, texts = keys[remaining], ids[remaining], texts.take(remaining).compact()
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


def write_tables(tables: Iterable[FieldLookup | StringLookup], path: Path) -> LookupTables:
    """Write the arrays of search tables to the file `path`, one table after another.

    Return a `LookupTables` with the layout of each table, by which the arrays are found in the file.
    """
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
                # ndarray.tofile is not used, because its exceptions have no errno.
                file.write(np.ascontiguousarray(array).data)
                file.write(bytes(-array.nbytes % ALIGNMENT))
            numbers = (*numbers, table.first_oov_id, table.num_oov_ids)
            is_text = isinstance(table, StringLookup)
            layouts.append(TableLayout(is_text, tuple((a.dtype.str, len(a)) for a in arrays), numbers))
    return LookupTables(path, tuple(layouts))


def number_lookup(words: NDArray[np.uint64], *numbers: int) -> FieldLookup:
    """Sort `words` in place, and return the search table from numbers to ids that consists of them.

    A word is a 64-bit number with a value in its upper half, and the value's id minus `base_id` in its lower half.
    `numbers` are the last four fields of FieldLookup: `base_id`, `missing_id`, `first_oov_id` and `num_oov_ids`.
    """
    words.sort()
    # The upper bits of a word choose its bucket. If the values are evenly distributed, a bucket has one to four words.
    directory_bits = max(1, len(words).bit_length() - 1)
    buckets = (words >> np.uint64(64 - directory_bits)).astype(np.int64)
    starts = np.zeros((1 << directory_bits) + 1, np.uint32)
    np.cumsum(np.bincount(buckets, minlength=1 << directory_bits), out=starts[1:])
    return FieldLookup(words, starts, 32 - directory_bits, *numbers)


def text_lookup(keys: NDArray[np.uint64], ids: NDArray[np.int64], texts: Strings, *numbers: int) -> StringLookup:
    """Return the search table from strings to ids, which is sorted by the keys (hashes) of the strings.

    `numbers` are the last three fields of StringLookup: `missing_id`, `first_oov_id` and `num_oov_ids`.
    """
    order, _ = group_equal(keys, texts)
    return StringLookup(keys[order], ids[order], texts.take(order).compact(), *numbers)


class VocabularyWriter:
    """Writes vocabulary.parquet, a file with the columns field, value, count and id, and a row for each value.

    The rows of a field follow each other, with ids in ascending order.
    """

    def __init__(self, path: Path, columns: Sequence[CategoricalColumn]) -> None:
        self._names = [column.name for column in columns]
        self._kinds = {column.name: column.kind for column in columns}
        self._dictionary = to_arrow(Strings.of([name.encode() for name in self._names])).cast(pa.string())
        self._writer = pq.ParquetWriter(path, _PARQUET_SCHEMA)

    def add(self, field: FieldVocabulary) -> None:
        """Write the values of a field into row groups of their own, which contain no values of another field."""
        ids = field.value_ids
        for first in range(0, len(field.values), _GROUP_ROWS):
            rows = slice(first, first + _GROUP_ROWS)
            values = field.values[rows]
            if field.texts is not None:
                column = to_arrow(field.texts.take(rows)).cast(pa.string())
            elif self._kinds[field.name] == "hex32":
                column = hex_text(values)
            else:
                smallest = _smallest(self._kinds[field.name])
                texts = [b"" if value == MISSING else b"%d" % (value + smallest) for value in values.tolist()]
                column = to_arrow(Strings.of(texts)).cast(pa.string())
            name_index = np.full(len(values), self._names.index(field.name), np.int32)
            columns = [
                pa.DictionaryArray.from_arrays(_numbers(name_index, pa.int32()), self._dictionary),
                column,
                _numbers(field.counts[rows], pa.int64()),
                _numbers(ids[rows], pa.int64()),
            ]
            self._writer.write_table(pa.table(columns, schema=_PARQUET_SCHEMA))

    def copy(self, paths: Sequence[Path]) -> None:
        """Copy all rows from the files of another vocabulary with the same fields.

        A caller that uses both `copy` and `add` must call `copy` first.
        """
        for path in paths:
            with pq.ParquetFile(path) as file:
                for number in range(file.num_row_groups):
                    group = file.read_row_group(number)
                    names = group["field"].cast(pa.string()).combine_chunks()
                    name_index = pc.index_in(names, value_set=self._dictionary)
                    field = pa.DictionaryArray.from_arrays(name_index, self._dictionary)
                    self._writer.write_table(pa.table([field, *group.columns[1:]], schema=_PARQUET_SCHEMA))

    def finish(self) -> None:
        self._writer.close()


class VocabularyReader:
    """Reads the fields of a vocabulary, which may consist of several files, given in the order of their ids."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [pq.ParquetFile(path) for path in paths]
        # The row groups of each field, by name, as (file, index in the file). A row group never contains several
        # fields.
        self._groups: dict[str, list[tuple[pq.ParquetFile, int]]] = {}
        for file in self._files:
            for number in range(file.num_row_groups):
                name = file.metadata.row_group(number).column(0).statistics.min
                self._groups.setdefault(name, []).append((file, number))

    def read(self, field: CategoricalField, column: CategoricalColumn) -> FieldVocabulary:
        """Return the values of a field, read from the files of the vocabulary.

        The values get the ids in `field.id_ranges`, in order. The caller must restrict these ranges to the ids that the
        files contain.
        """
        groups = self._groups.get(field.name, ())
        if not groups:
            nothing = np.empty(0, np.int64)
            no_texts = NOTHING.texts if column.is_text else None
            return FieldVocabulary(field.name, field.oov_ids, field.id_ranges, nothing, nothing, no_texts)
        table = pa.concat_tables(file.read_row_group(number, ["value", "count"]) for file, number in groups)
        column_values, counts = table["value"].combine_chunks(), table["count"].to_numpy()
        texts = None
        if column.is_text:
            is_missing = pc.equal(column_values, "").to_numpy(zero_copy_only=False)
            values, texts = np.where(is_missing, MISSING, np.arange(len(column_values))), from_arrow(column_values)
        elif column.kind == "hex32":
            values = _hex_values(column_values)
        else:  # Buckets, hours and weekdays have few values, so a Python loop is fast enough.
            smallest = _smallest(column.kind)
            values = np.array(
                [int(text) - smallest if text else MISSING for text in column_values.to_pylist()], np.int64
            )
        return FieldVocabulary(field.name, field.oov_ids, field.id_ranges, values, counts, texts)

    def close(self) -> None:
        for file in self._files:
            file.close()


def order_strings(
    texts: Strings, counts: NDArray[np.int64], num_missing: int, max_size: int | None = None
) -> OrderedValues:
    """Order the strings of a field by descending count, then by their bytes. Keep the first `max_size` strings.

    The missing value is added with the count `num_missing`, before other strings of the same count, and does not count
    toward `max_size`.
    """
    arrays = [to_arrow(texts), _numbers(counts, pa.int64())]
    table = pa.Table.from_arrays(arrays, ["text", "count"])
    sorted_rows = pc.sort_indices(table, [("count", "descending"), ("text", "ascending")])
    # The result is read from its buffer, because `to_numpy` would import pandas.
    order = np.frombuffer(sorted_rows.buffers()[1], np.uint64)[: len(table)][:max_size]
    counts, texts = counts[order], texts.take(order).compact()
    # The missing value "" comes before all other strings of the same count.
    missing_index = int(np.searchsorted(-counts, -num_missing))
    numbers = np.insert(np.arange(len(counts)), missing_index, MISSING)
    with_missing = np.insert(1 + np.arange(len(counts)), missing_index, 0)
    all_texts = concatenate_strings([Strings.of([b""]), texts]).take(with_missing).compact()
    return numbers, np.insert(counts, missing_index, num_missing), all_texts


def _numbers(numbers: NDArray[np.signedinteger], kind: pa.DataType) -> pa.Array:
    """Convert an array of integers to a pyarrow array.

    Unlike `pa.array`, this does not import pandas if it is installed.
    """
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _smallest(kind: str) -> int:
    """Return what is added to a column's values in memory to get the numbers that are written to vocabulary.parquet.

    In memory, the smallest value of the column is 0. `kind` is the column's kind: bucket, hour or weekday.
    """
    return SMALLEST_BUCKET if kind == "bucket" else 0


def _hex_values(texts: pa.StringArray) -> NDArray[np.int64]:
    """Convert K texts of eight hex digits to the integers [K] that they denote. The text "" becomes MISSING."""
    is_missing = pc.equal(texts, "")
    # With "" replaced, all texts have the same length, so the digits of all texts follow each other without gaps in the
    # array's memory.
    filled = pc.if_else(is_missing, "0" * 8, texts)
    digits = np.frombuffer(filled.buffers()[2], np.uint8, 8 * len(filled)).reshape(-1, 8)
    values = _VALUE_OF_DIGIT[digits] @ 16 ** np.arange(7, -1, -1)
    return np.where(is_missing.to_numpy(zero_copy_only=False), MISSING, values)


def to_arrow(texts: Strings) -> pa.LargeStringArray:
    """Convert `Strings`, which must be valid UTF-8, to a pyarrow array."""
    compact = texts.compact()
    offsets = np.append(compact.starts, len(compact.data) - 8)
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(compact.data))


def from_arrow(strings: pa.StringArray) -> Strings:
    """Convert a pyarrow array of strings to `Strings`."""
    binary = strings.cast(pa.large_binary())
    offsets = np.frombuffer(binary.buffers()[1], np.int64)[binary.offset : binary.offset + len(binary) + 1]
    data = np.frombuffer(binary.buffers()[2] or b"", np.uint8)
    return Strings(np.concatenate([data, np.zeros(8, np.uint8)]), offsets[:-1], np.diff(offsets)).compact()
