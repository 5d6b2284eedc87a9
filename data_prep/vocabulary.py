"""The vocabulary: which value of which field has which id.

Ids: the numeric fields, then one out-of-vocabulary id a categorical field, then field by field the values
seen at least `min_count` times in the training rows, by falling count, then by value. A missing cell is a
value of its own (written ""), which has an id however seldom it is seen: missing is never out of vocabulary.

Letters: N numeric fields, C categorical fields, K values of a field, V ids in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_prep.buckets import BUCKET_FIELDS, SMALLEST_BUCKET
from data_prep.schema import CategoricalField

MISSING = -1  # among values as numbers; sorts before all of them, as "" does before all text

_COUNT_BITS = np.uint64(32)
_COUNT_MASK = np.uint64(2**32 - 1)
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


@dataclass(frozen=True)
class FieldVocabulary:
    """The values of a categorical field in the order of their ids: `first_id` + place."""

    name: str
    oov_id: int
    first_id: int
    values: NDArray[np.int64]  # [K] the number a value's hex digits write, or MISSING (of buckets, see buckets.py)
    counts: NDArray[np.int64]  # [K]

    @property
    def end_id(self) -> int:
        """One past the last id."""
        return self.first_id + len(self.values)

    @property
    def ids(self) -> CategoricalField:
        """The field's ids as the schema names them."""
        return CategoricalField(self.name, (self.oov_id, self.oov_id + 1), ((self.first_id, self.end_id),))


def order_values(words: NDArray[np.uint64], num_missing: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Values and their counts, by falling count, then by value, from words of (value, count); MISSING among them."""
    # Sorted as one number: the count's complement above, the value below.
    order = (_COUNT_MASK - (words & _COUNT_MASK)) << _COUNT_BITS | words >> _COUNT_BITS
    order.sort()
    missing_place = np.searchsorted(order, (_COUNT_MASK - np.uint64(num_missing)) << _COUNT_BITS)
    values = (order & _COUNT_MASK).astype(np.int64)
    counts = (_COUNT_MASK - (order >> _COUNT_BITS)).astype(np.int64)
    return np.insert(values, missing_place, MISSING), np.insert(counts, missing_place, num_missing)


def make_vocabulary(
    names: Iterable[str], ordered: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], num_numeric: int
) -> Iterator[FieldVocabulary]:
    """Give ids to the ordered values of every field, a field at a time: all of them may be large."""
    names = list(names)
    next_id = num_numeric + len(names)
    for place, (name, (values, counts)) in enumerate(zip(names, ordered, strict=True)):
        yield FieldVocabulary(name, num_numeric + place, next_id, values, counts)
        next_id += len(values)


def ids_dtype(vocabulary_size: int) -> str:
    """The smallest of int32 and int64 that holds all ids."""
    return "int32" if vocabulary_size < 2**31 else "int64"


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
