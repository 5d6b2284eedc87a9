"""Write and read vocabulary.parquet.

This module is separate from vocabulary.py, because workers import that one, and pyarrow costs memory and time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_prep.encoding.vocabulary import FieldVocabulary, OrderedValues
from data_prep.kernels.counting import NOTHING, concatenate_strings
from data_prep.kernels.parsed import MISSING, SMALLEST_BUCKET
from data_prep.kernels.strings import Strings
from data_prep.options.columns import CategoricalColumn
from data_prep.prepared.schema import CategoricalField
from data_prep.raw_log.arrow_to_text import hex_text

_GROUP_ROWS = 1 << 20  # Maximum number of rows in a row group of vocabulary.parquet.
_PARQUET_SCHEMA = pa.schema(
    [
        ("field", pa.dictionary(pa.int32(), pa.string())),
        ("value", pa.string()),
        ("count", pa.int64()),
        ("id", pa.int64()),
    ]
)
_VALUE_OF_DIGIT = np.array([int(chr(byte), 16) if chr(byte) in "0123456789abcdef" else 0 for byte in range(256)])


class VocabularyWriter:
    """Writer of vocabulary.parquet, which has the columns field, value, count and id.

    Fields follow each other, and the ids of a field are in ascending order.
    """

    def __init__(self, path: Path, columns: Sequence[CategoricalColumn]) -> None:
        self._names = [column.name for column in columns]
        self._kinds = {column.name: column.kind for column in columns}
        self._dictionary = to_arrow(Strings.of([name.encode() for name in self._names])).cast(pa.string())
        self._writer = pq.ParquetWriter(path, _PARQUET_SCHEMA)

    def add(self, field: FieldVocabulary) -> None:
        """Write a field. Its row groups contain no other field."""
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
        """Copy the files of another vocabulary with the same fields. Call this before any `add`."""
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
    """Reader of the fields of a vocabulary, which may consist of several files in the order of their ids."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [pq.ParquetFile(path) for path in paths]
        # Files and numbers of the row groups, by field. A row group never contains several fields.
        self._groups: dict[str, list[tuple[pq.ParquetFile, int]]] = {}
        for file in self._files:
            for number in range(file.num_row_groups):
                name = file.metadata.row_group(number).column(0).statistics.min
                self._groups.setdefault(name, []).append((file, number))

    def read(self, field: CategoricalField, column: CategoricalColumn) -> FieldVocabulary:
        """Read the values of a field. Their ids are `field.id_ranges`, which the caller restricts to these files."""
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
    """Order strings by falling count and then by their bytes, and keep the first `max_size` of them.

    The missing value is added with the count `num_missing`, as in `vocabulary.order_values`.
    """
    arrays = [to_arrow(texts), _numbers(counts, pa.int64())]
    table = pa.Table.from_arrays(arrays, ["text", "count"])
    sorted_rows = pc.sort_indices(table, [("count", "descending"), ("text", "ascending")])
    # The buffer is read directly, because `to_numpy` would import pandas.
    order = np.frombuffer(sorted_rows.buffers()[1], np.uint64)[: len(table)][:max_size]
    counts, texts = counts[order], texts.take(order).compact()
    # The missing value "" comes before all other strings of the same count.
    missing_index = int(np.searchsorted(-counts, -num_missing))
    numbers = np.insert(np.arange(len(counts)), missing_index, MISSING)
    with_missing = np.insert(1 + np.arange(len(counts)), missing_index, 0)
    all_texts = concatenate_strings([Strings.of([b""]), texts]).take(with_missing).compact()
    return numbers, np.insert(counts, missing_index, num_missing), all_texts


def _numbers(numbers: NDArray[np.signedinteger], kind: pa.DataType) -> pa.Array:
    """Convert integers to a pyarrow array. This avoids `pa.array`, which imports pandas if it is installed."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _smallest(kind: str) -> int:
    """Return the number that the value 0 stands for in a column of buckets, hours or weekdays."""
    return SMALLEST_BUCKET if kind == "bucket" else 0


def _hex_values(texts: pa.StringArray) -> NDArray[np.int64]:
    """Convert texts of eight hex digits to values [K]. The text "" becomes MISSING."""
    is_missing = pc.equal(texts, "")
    # All texts now have the same length, so their digits follow each other without gaps in the array's memory.
    filled = pc.if_else(is_missing, "0" * 8, texts)
    digits = np.frombuffer(filled.buffers()[2], np.uint8, 8 * len(filled)).reshape(-1, 8)
    values = _VALUE_OF_DIGIT[digits] @ 16 ** np.arange(7, -1, -1)
    return np.where(is_missing.to_numpy(zero_copy_only=False), MISSING, values)


def to_arrow(texts: Strings) -> pa.LargeStringArray:
    """Convert strings to a pyarrow array. They must be valid UTF-8."""
    compact = texts.compact()
    offsets = np.append(compact.starts, len(compact.data) - 8)
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(compact.data))


def from_arrow(strings: pa.StringArray) -> Strings:
    """Convert a pyarrow array to strings."""
    binary = strings.cast(pa.large_binary())
    offsets = np.frombuffer(binary.buffers()[1], np.int64)[binary.offset : binary.offset + len(binary) + 1]
    data = np.frombuffer(binary.buffers()[2] or b"", np.uint8)
    return Strings(np.concatenate([data, np.zeros(8, np.uint8)]), offsets[:-1], np.diff(offsets)).compact()
