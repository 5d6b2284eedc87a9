"""vocabulary.parquet, apart from vocabulary.py: workers need no pyarrow, which costs memory and start of each.

Letters: K values of a field.
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
from data_prep.kernels.arrow import hex_text, to_arrow
from data_prep.kernels.reference import CountedTexts
from data_prep.kernels.rows import MISSING, SMALLEST_BUCKET
from data_prep.kernels.texts import Texts, concatenate_texts
from data_prep.options.columns import CategoricalColumn

_GROUP_ROWS = 1 << 20  # of vocabulary.parquet

_PARQUET_SCHEMA = pa.schema(
    [
        ("field", pa.dictionary(pa.int32(), pa.string())),
        ("value", pa.string()),
        ("count", pa.int64()),
        ("id", pa.int64()),
    ]
)


class VocabularyWriter:
    """Writes vocabulary.parquet (field, value, count, id) by rising id, a field after the other."""

    def __init__(self, path: Path, columns: Sequence[CategoricalColumn]) -> None:
        self._names = [column.name for column in columns]
        self._are_buckets = {column.name: column.kind == "bucket" for column in columns}
        self._dictionary = to_arrow(Texts.of([name.encode() for name in self._names])).cast(pa.string())
        self._writer = pq.ParquetWriter(path, _PARQUET_SCHEMA)

    def add(self, field: FieldVocabulary) -> None:
        """Write a field, in row groups of its own."""
        ids = field.value_ids
        for first in range(0, len(field.values), _GROUP_ROWS):
            rows = slice(first, first + _GROUP_ROWS)
            values = field.values[rows]
            place = np.full(len(values), self._names.index(field.name), np.int32)
            columns = [
                pa.DictionaryArray.from_arrays(_numbers(place, pa.int32()), self._dictionary),
                self._texts(field, rows),
                _numbers(field.counts[rows], pa.int64()),
                _numbers(ids[rows], pa.int64()),
            ]
            self._writer.write_table(pa.table(columns, schema=_PARQUET_SCHEMA))

    def copy(self, path: Path) -> None:
        """Write all of another vocabulary.parquet, of the same fields, first."""
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number)
                names = group["field"].cast(pa.string()).combine_chunks()
                place = pc.index_in(names, value_set=self._dictionary)
                field = pa.DictionaryArray.from_arrays(place, self._dictionary)
                self._writer.write_table(pa.table([field, *group.columns[1:]], schema=_PARQUET_SCHEMA))

    def _texts(self, field: FieldVocabulary, rows: slice) -> pa.Array:
        """Some of a field's values, written."""
        if field.texts is not None:
            return to_arrow(field.texts.take(rows)).cast(pa.string())
        return (_bucket_text if self._are_buckets[field.name] else hex_text)(field.values[rows])

    def finish(self) -> None:
        """Close the file."""
        self._writer.close()


def _numbers(numbers: NDArray[np.signedinteger], kind: pa.DataType) -> pa.Array:
    """As pyarrow has them, without its own look at what they are: that imports pandas, where it is installed."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def order_texts(counted: CountedTexts, num_missing: int, max_size: int | None = None) -> OrderedValues:
    """The same as `vocabulary.order_values` of strings: by falling count, then by their bytes."""
    arrays = [to_arrow(counted.texts), _numbers(counted.counts, pa.int64())]
    table = pa.Table.from_arrays(arrays, ["text", "count"])
    order = pc.sort_indices(table, [("count", "descending"), ("text", "ascending")]).to_numpy()[:max_size]
    counts, texts = counted.counts[order], counted.texts.take(order).compact()
    place = int(np.searchsorted(-counts, -num_missing))  # "" comes before all other strings
    numbers = np.insert(np.arange(len(counts)), place, MISSING)
    with_missing = np.insert(1 + np.arange(len(counts)), place, 0)
    all_texts = concatenate_texts([Texts.of([b""]), texts]).take(with_missing).compact()
    return numbers, np.insert(counts, place, num_missing), all_texts


def _bucket_text(values: NDArray[np.int64]) -> pa.Array:
    """A bucket's number, "" for MISSING."""
    texts = ["" if value == MISSING else str(value + SMALLEST_BUCKET) for value in values.tolist()]
    return pa.array(texts, pa.string())
