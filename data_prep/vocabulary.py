"""The vocabulary: which value of which field has which id.

Ids: the numeric fields, then one out-of-vocabulary id a categorical field, then field by field the values
seen at least `min_count` times in the training rows, by falling count, then by value. A missing cell is a
value of its own (written ""), which has an id however seldom it is seen: missing is never out of vocabulary.

Letters: N numeric fields, C categorical fields, K values of a field, V ids in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

MISSING = -1  # among values as numbers; sorts before all of them, as "" does before all text

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
    values: NDArray[np.int64]  # [K] the number a value's hex digits write, or MISSING
    counts: NDArray[np.int64]  # [K]

    @property
    def end_id(self) -> int:
        """One past the last id."""
        return self.first_id + len(self.values)


def order_values(
    values: NDArray[np.int64], counts: NDArray[np.int64], num_missing: int, min_count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values that get an id and their counts, by falling count, then by value."""
    frequent = counts >= min_count
    values = np.append(values[frequent], MISSING)
    counts = np.append(counts[frequent], num_missing)
    order = np.lexsort((values, -counts))
    return values[order], counts[order]


def make_vocabulary(
    names: Sequence[str], ordered: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], num_numeric: int
) -> list[FieldVocabulary]:
    """Give ids to the ordered values of every field."""
    vocabulary: list[FieldVocabulary] = []
    next_id = num_numeric + len(names)
    for place, (name, (values, counts)) in enumerate(zip(names, ordered, strict=True)):
        vocabulary.append(FieldVocabulary(name, num_numeric + place, next_id, values, counts))
        next_id += len(values)
    return vocabulary


def ids_dtype(vocabulary_size: int) -> str:
    """The smallest of int32 and int64 that holds all ids."""
    return "int32" if vocabulary_size < 2**31 else "int64"


def write_vocabulary(vocabulary: Sequence[FieldVocabulary], path: Path) -> None:
    """Write vocabulary.parquet (field, value, count, id) by rising id, a row group a field."""
    names = pa.array([field.name for field in vocabulary])
    with pq.ParquetWriter(path, _PARQUET_SCHEMA) as writer:
        for place, field in enumerate(vocabulary):
            columns = [
                pa.DictionaryArray.from_arrays(np.full(len(field.values), place, np.int32), names),
                _as_text(field.values),
                field.counts,
                np.arange(field.first_id, field.end_id),
            ]
            writer.write_table(pa.table(columns, schema=_PARQUET_SCHEMA))


def _as_text(values: NDArray[np.int64]) -> pa.Array:
    """Eight hex digits a value, "" for MISSING."""
    shifts = np.arange(28, -1, -4)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[values[:, None] >> shifts & 15]
    text = np.ascontiguousarray(digits).view("S8").ravel()
    text[values == MISSING] = b""
    return pa.array(text.astype("U8"))
