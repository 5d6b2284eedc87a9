"""The vocabulary: the id of each value of each field.

Ids: the numeric fields, then the out-of-vocabulary ids of each categorical field, then field by field the values
seen at least `min_count` times in the training rows, by falling count, then by value. A missing cell is a
value of its own (written ""), which always has an id: missing is never out of vocabulary.

Letters: K values of a field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep.encoding.lookup_file import LookupTables, number_lookup, text_lookup, write_tables
from data_prep.kernels.counting import COUNT_BITS, COUNT_MASK
from data_prep.kernels.numpy_kernels import ID_BITS, ID_MASK, FieldLookup, StringLookup
from data_prep.kernels.parsed import MISSING
from data_prep.kernels.strings import Strings
from data_prep.prepared.schema import CategoricalField
from data_prep.statistics.value_counts import check_count


@dataclass(frozen=True)
class FieldVocabulary:
    """The values of a categorical field in the order of their ids."""

    name: str
    oov_ids: tuple[int, int]  # half-open
    id_ranges: tuple[tuple[int, int], ...]  # half-open, rising; more than one if values were added later
    values: NDArray[
        np.int64
    ]  # [K] as ParsedRows.number_columns has them, or MISSING; of a text field, indices of `texts`
    counts: NDArray[np.int64]  # [K]
    texts: Strings | None = None  # [K] of a text field

    @property
    def value_ids(self) -> NDArray[np.int64]:
        return np.concatenate([np.arange(first, end) for first, end in self.id_ranges])

    @property
    def ids(self) -> CategoricalField:
        return CategoricalField(self.name, self.oov_ids, self.id_ranges)


def added_values(field: FieldVocabulary, known: CategoricalField) -> FieldVocabulary:
    """Return the values that were added to a field since it was `known`, and MISSING, which every table has."""
    (missing,) = np.flatnonzero(field.values == MISSING)
    missing_id = int(field.value_ids[missing])
    kept = np.concatenate([[missing], np.arange(known.num_values, len(field.values))])
    values, texts = field.values[kept], None
    if field.texts is not None:
        texts = field.texts.take(kept)
        values = np.where(values == MISSING, MISSING, np.arange(len(kept)))
    ranges = ((missing_id, missing_id + 1), *field.id_ranges[len(known.id_ranges) :])
    return FieldVocabulary(field.name, field.oov_ids, ranges, values, field.counts[kept], texts)


def update_checksum(checksum: xxhash.xxh3_64, field: FieldVocabulary, known: CategoricalField) -> None:
    """Add the ids and values that are `known` of a field to a checksum."""
    count = known.num_values
    checksum.update(repr((known.name, known.oov_ids, known.id_ranges)).encode())
    if field.texts is None:
        checksum.update(field.values[:count].tobytes())
    else:
        texts = field.texts.take(slice(count)).compact()
        checksum.update(texts.lengths.tobytes())
        checksum.update(texts.data.tobytes())


# Values and counts by falling count, then by value, MISSING among them; and the strings of a text field.
OrderedValues = tuple[NDArray[np.int64], NDArray[np.int64], Strings | None]


def order_values(packed: NDArray[np.uint64], num_missing: int, max_size: int | None = None) -> OrderedValues:
    """Order packed (value, count) pairs by falling count, then by value. Keep the first `max_size`, and add MISSING."""
    check_count(num_missing)
    # Sorted as one number: the count's complement above, the value below.
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
    """Give ids to the ordered values of every field of `num_oov_ids`.

    Yields a field at a time, as all of them may be large.
    """
    first_oov_id, next_id = num_numeric, num_numeric + sum(num_oov_ids.values())
    for (name, num_oov), of_field in zip(num_oov_ids.items(), ordered, strict=True):
        end_oov_id, end_id = first_oov_id + num_oov, next_id + len(of_field[0])
        yield FieldVocabulary(name, (first_oov_id, end_oov_id), ((next_id, end_id),), *of_field)
        first_oov_id, next_id = end_oov_id, end_id


def ids_dtype(vocabulary_size: int) -> str:
    """Return the smallest of int32 and int64 that holds all ids."""
    return "int32" if vocabulary_size < 2**31 else "int64"


def write_lookup_tables(fields: Iterable[FieldVocabulary], path: Path) -> LookupTables:
    """Write the tables of all columns, in their order."""
    return write_tables(
        (make_lookup(field) if field.texts is None else _make_text_lookup(field) for field in fields), path
    )


def make_lookup(field: FieldVocabulary) -> FieldLookup:
    """Return the table of a field whose values are numbers."""
    base_id = field.id_ranges[0][0]
    words = field.values.astype(np.uint64) << ID_BITS | (field.value_ids - base_id).astype(np.uint64)
    missing_index = int(np.flatnonzero(field.values == MISSING)[0])  # every field has it
    missing_id = base_id + int(words[missing_index] & ID_MASK)
    words[missing_index] = words[-1]
    num_oov_ids = field.oov_ids[1] - field.oov_ids[0]
    return number_lookup(words[:-1], base_id, missing_id, field.oov_ids[0], num_oov_ids)


def _make_text_lookup(field: FieldVocabulary) -> StringLookup:
    assert field.texts is not None
    is_missing = field.values == MISSING
    known = np.flatnonzero(~is_missing)
    missing_id = int(field.value_ids[is_missing][0])  # every field has it
    num_oov_ids = field.oov_ids[1] - field.oov_ids[0]
    keys, ids, texts = field.texts.keys()[known], field.value_ids[known], field.texts.take(known)
    return text_lookup(keys, ids, texts, missing_id, field.oov_ids[0], num_oov_ids)
