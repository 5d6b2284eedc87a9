"""vocabulary.parquet, apart from vocabulary.py: workers need no pyarrow, which costs memory and start of each.

Letters: K values of a field.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_prep.buckets import BUCKET_FIELDS, SMALLEST_BUCKET
from data_prep.vocabulary import MISSING, FieldVocabulary

_GROUP_ROWS = 1 << 20  # of vocabulary.parquet
_HEX_DIGITS = np.frombuffer("".join(f"{number:04x}" for number in range(1 << 16)).encode(), "S4")
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

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        self._names = list(names)
        self._dictionary = pa.array(self._names)
        self._writer = pq.ParquetWriter(path, _PARQUET_SCHEMA)

    def add(self, field: FieldVocabulary) -> None:
        """Write a field, in row groups of its own."""
        for first in range(0, len(field.values), _GROUP_ROWS):
            values = field.values[first : first + _GROUP_ROWS]
            place = np.full(len(values), self._names.index(field.name), np.int32)
            first_id = field.first_id + first
            columns = [
                pa.DictionaryArray.from_arrays(place, self._dictionary),
                (_bucket_text if field.name in BUCKET_FIELDS else _hex_text)(values),
                field.counts[first : first + _GROUP_ROWS],
                np.arange(first_id, first_id + len(values)),
            ]
            self._writer.write_table(pa.table(columns, schema=_PARQUET_SCHEMA))

    def finish(self) -> None:
        """Close the file."""
        self._writer.close()


def _hex_text(values: NDArray[np.int64]) -> pa.Array:
    """Eight hex digits a value, "" for MISSING."""
    # Built in pyarrow's own layout (digits end to end, and where each value starts): no Python string a value.
    lengths = np.where(values == MISSING, 0, 8)
    digits = np.stack([_HEX_DIGITS[values >> 16 & 0xFFFF], _HEX_DIGITS[values & 0xFFFF]], axis=1)[values != MISSING]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits)))


def _bucket_text(values: NDArray[np.int64]) -> pa.Array:
    """A bucket's number, "" for MISSING."""
    texts = ["" if value == MISSING else str(value + SMALLEST_BUCKET) for value in values.tolist()]
    return pa.array(texts, pa.string())
