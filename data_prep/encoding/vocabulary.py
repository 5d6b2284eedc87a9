"""Give an id to each value of each field, and build search tables from values to ids.

The first ids belong to the numeric columns, and the next ones are the out-of-vocabulary ids of each categorical field.
Then follow, field by field, the values that occur at least `min_count` times in the training rows, by falling count
and then by value. The missing value (written "") always has an id of its own, so it is never out of vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep.encoding.lookup_file import ALIGNMENT, NO_IDS, LookupTables, TableLayout
from data_prep.kernels.counting import COUNT_BITS, COUNT_MASK, concatenate_strings, group_equal
from data_prep.kernels.numpy_kernels import ID_BITS, ID_MASK, FieldLookup, StringLookup
from data_prep.kernels.parsed import MISSING
from data_prep.kernels.strings import Strings
from data_prep.prepared.schema import CategoricalField
from data_prep.statistics.value_counts import check_count


@dataclass(frozen=True)
class FieldVocabulary:
    """The values of a categorical field in the order of their ids."""

    name: str
    oov_ids: tuple[int, int]  # Half-open range of the out-of-vocabulary ids.
    # Half-open ranges of ids in ascending order. There are several if values were added later.
    id_ranges: tuple[tuple[int, int], ...]
    # The values [K]: integers as in ParsedRows.number_columns, or in a text field indices into `texts`. The missing
    # value is MISSING.
    values: NDArray[np.int64]
    counts: NDArray[np.int64]  # Count of each value [K].
    texts: Strings | None = None  # Texts [K] of a text field.
    own_ids: NDArray[np.int64] | None = None  # Id of each value [K], if some ids of `id_ranges` have expired.

    @property
    def value_ids(self) -> NDArray[np.int64]:
        if self.own_ids is not None:
            return self.own_ids
        return np.concatenate([np.zeros(0, np.int64), *(np.arange(first, end) for first, end in self.id_ranges)])

    @property
    def ids(self) -> CategoricalField:
        return CategoricalField(self.name, self.oov_ids, self.id_ranges)


def without(field: FieldVocabulary, expired: NDArray[np.int64]) -> FieldVocabulary:
    """Return a field without the values whose ids are in `expired`."""
    rest = np.flatnonzero(~np.isin(field.value_ids, expired))
    if len(rest) == len(field.values):
        return field
    values, texts = field.values[rest], field.texts
    if texts is not None:
        values, texts = np.where(values == MISSING, MISSING, np.arange(len(rest))), texts.take(rest).compact()
    return replace(field, values=values, counts=field.counts[rest], texts=texts, own_ids=field.value_ids[rest])


def added_values(field: FieldVocabulary, old: CategoricalField) -> FieldVocabulary:
    """Return the values that were added to a field after the state `old`, with MISSING as the first value."""
    (missing,) = np.flatnonzero(field.values == MISSING)
    added = slice(old.num_values, len(field.values))
    values, texts = field.values[added], None
    if field.texts is not None:
        values, texts = np.arange(len(values)), field.texts.take(added)
    ranges = field.id_ranges[len(old.id_ranges) :]
    later = FieldVocabulary(field.name, field.oov_ids, ranges, values, field.counts[added], texts)
    return with_missing(later, int(field.value_ids[missing]))


def with_missing(field: FieldVocabulary, missing_id: int) -> FieldVocabulary:
    """Insert the value MISSING, with id `missing_id`, before the values of a field.

    The table in which cells are looked up must have an id for missing cells."""
    values, texts = np.concatenate([[MISSING], field.values]), field.texts
    if texts is not None:
        texts = concatenate_strings([Strings.of([b""]), texts])
        values = np.concatenate([[MISSING], 1 + field.values])
    ranges, counts = ((missing_id, missing_id + 1), *field.id_ranges), np.concatenate([[0], field.counts])
    own_ids = None if field.own_ids is None else np.concatenate([[missing_id], field.own_ids])
    return FieldVocabulary(field.name, field.oov_ids, ranges, values, counts, texts, own_ids)


def checksum_of_values(field: FieldVocabulary, num_ranges: int | None = None) -> int:
    """Return a checksum of the ids and values of a field, or of its first `num_ranges` ranges of ids only.

    The checksum is the sum of a hash of each range, modulo 2⁶⁴. So the checksum of a vocabulary is the sum over its
    fields, and values that are added later only add their own hashes.
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


# Values and counts, ordered by falling count and then by value, and the strings of a text field. MISSING is included.
OrderedValues = tuple[NDArray[np.int64], NDArray[np.int64], Strings | None]


def order_values(packed: NDArray[np.uint64], num_missing: int, max_size: int | None = None) -> OrderedValues:
    """Order packed pairs (value, count) by falling count and then by value, and keep the first `max_size` of them.

    MISSING is added with the count `num_missing`. It comes before values of the same count.
    """
    check_count(num_missing)
    # Count and value are sorted as one number, which has the complement of the count in its upper bits.
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
    """Give ids to the ordered values of every field, and yield one field at a time, since all together may be large.

    `num_oov_ids` holds the number of out-of-vocabulary ids of each field, in the order of `ordered`.
    """
    first_oov_id, next_id = num_numeric, num_numeric + sum(num_oov_ids.values())
    for (name, num_oov), of_field in zip(num_oov_ids.items(), ordered, strict=True):
        end_oov_id, end_id = first_oov_id + num_oov, next_id + len(of_field[0])
        yield FieldVocabulary(name, (first_oov_id, end_oov_id), ((next_id, end_id),), *of_field)
        first_oov_id, next_id = end_oov_id, end_id


def ids_dtype(vocabulary_size: int) -> str:
    """Return "int32" if all ids of a vocabulary of this size fit in it, otherwise "int64"."""
    return "int32" if vocabulary_size < 2**31 else "int64"


def write_lookup_tables(fields: Iterable[FieldVocabulary], path: Path) -> LookupTables:
    """Make the search table of each field, and write all tables to the file `path` in order."""
    return write_tables(
        (make_lookup(field) if field.texts is None else _make_text_lookup(field) for field in fields), path
    )


def make_lookup(field: FieldVocabulary) -> FieldLookup:
    """Return the search table of a field whose values are numbers."""
    base_id = field.id_ranges[0][0]
    words = field.values.astype(np.uint64) << ID_BITS | (field.value_ids - base_id).astype(np.uint64)
    missing_index = int(np.flatnonzero(field.values == MISSING)[0])  # Every field has the value MISSING.
    missing_id = base_id + int(words[missing_index] & ID_MASK)
    words[missing_index] = words[-1]
    num_oov_ids = field.oov_ids[1] - field.oov_ids[0]
    return number_lookup(words[:-1], base_id, missing_id, field.oov_ids[0], num_oov_ids)


def _make_text_lookup(field: FieldVocabulary) -> StringLookup:
    assert field.texts is not None
    is_missing = field.values == MISSING
    places = np.flatnonzero(~is_missing)
    missing_id = int(field.value_ids[is_missing][0])  # Every field has the value MISSING.
    num_oov_ids = field.oov_ids[1] - field.oov_ids[0]
    keys, ids, texts = field.texts.keys()[places], field.value_ids[places], field.texts.take(places)
    return text_lookup(keys, ids, texts, missing_id, field.oov_ids[0], num_oov_ids)


def merge_lookup_tables(chain: Sequence[LookupTables], path: Path, expired: NDArray[np.int64] = NO_IDS) -> LookupTables:
    """Merge several sets of search tables into one set, and write it to the file `path`.

    `chain` holds the sets, the oldest first. Values whose ids are in `expired` are left out. Each remaining value must
    have only one id.
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
    """Write search tables to the file `path` in order, and return their layouts."""
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
                # ndarray.tofile is not used, because its errors have no errno.
                file.write(np.ascontiguousarray(array).data)
                file.write(bytes(-array.nbytes % ALIGNMENT))
            numbers = (*numbers, table.first_oov_id, table.num_oov_ids)
            is_text = isinstance(table, StringLookup)
            layouts.append(TableLayout(is_text, tuple((a.dtype.str, len(a)) for a in arrays), numbers))
    return LookupTables(path, tuple(layouts))


def number_lookup(words: NDArray[np.uint64], *numbers: int) -> FieldLookup:
    """Sort `words` in place and return their search table.

    `numbers` are the fields of FieldLookup from `base_id` on.
    """
    words.sort()
    # A bucket has one to four words if values are distributed evenly.
    directory_bits = max(1, len(words).bit_length() - 1)
    buckets = (words >> np.uint64(64 - directory_bits)).astype(np.int64)
    starts = np.zeros((1 << directory_bits) + 1, np.uint32)
    np.cumsum(np.bincount(buckets, minlength=1 << directory_bits), out=starts[1:])
    return FieldLookup(words, starts, 32 - directory_bits, *numbers)


def text_lookup(keys: NDArray[np.uint64], ids: NDArray[np.int64], texts: Strings, *numbers: int) -> StringLookup:
    """Return the search table of strings, sorted by key. `numbers` are the number fields of StringLookup."""
    order, _ = group_equal(keys, texts)
    return StringLookup(keys[order], ids[order], texts.take(order).compact(), *numbers)
