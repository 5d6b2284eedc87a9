"""Make the vocabulary of a preparation: fit it to counts of values, copy a base vocabulary, or extend one.

A base vocabulary is that of another prepared folder. A field of an extended vocabulary has several ranges of ids: the
unchanged ranges of the base vocabulary, and one range for the values that are added.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.arrays.pages import give_back_freed_memory
from common.signals import check_stop
from data_prep.encoding.encoder import LOOKUP_FILE, LookupTables
from data_prep.encoding.prepared_vocabulary import BaseVocabulary
from data_prep.encoding.vocabulary import (
    FieldVocabulary,
    OrderedValues,
    VocabularyWriter,
    ids_dtype,
    make_vocabulary,
    order_strings,
    order_values,
    write_lookup_tables,
)
from data_prep.execution.prepared_folder import WORK_FOLDER
from data_prep.kernels.numpy_kernels import COUNT_BITS, COUNT_MASK, NOTHING, concatenate_strings, group_equal
from data_prep.kernels.parsed import MISSING
from data_prep.kernels.strings import Strings, are_inexact_texts, are_whole, with_whole_numbers
from data_prep.options.columns import CategoricalColumn
from data_prep.options.log_format import INEXACT
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import VOCABULARY_FILE, CategoricalField
from data_prep.statistics.statistics import LogStatistics
from data_prep.statistics.value_counts import ValueSketch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FittedVocabulary:
    """The vocabulary of a preparation: search tables from values to ids, and the fields' entries in schema.json."""

    lookup: LookupTables
    categorical: tuple[CategoricalField, ...]
    size: int

    @property
    def ids_dtype(self) -> str:
        return ids_dtype(self.size)


def fit_vocabulary(
    statistics: LogStatistics, options: PrepareOptions, num_numeric: int, folder: Path
) -> FittedVocabulary:
    """Give ids to the values that are frequent enough in the training rows. Return the vocabulary.

    Write vocabulary.parquet and the search tables into `folder`. Ids below `num_numeric`, the number of numeric
    columns, belong to these columns. The memory of the counts in `statistics` is released.
    """
    columns = options.categorical_columns
    ordered = (
        _fitted_values(statistics, options, column, _num_missing(statistics, columns, column.name))
        for column in options.vocabularies
    )
    num_oov_ids = {column.name: options.num_oov_ids(column.name) for column in options.vocabularies}
    writer = VocabularyWriter(folder / VOCABULARY_FILE, columns)

    def listed() -> Iterator[FieldVocabulary]:
        for field in make_vocabulary(num_oov_ids, ordered, num_numeric):
            _warn_of_floats(field)
            writer.add(field)
            yield field
        writer.finish()

    return _write_tables(listed(), columns, folder, statistics)


def copy_base_vocabulary(base: BaseVocabulary, folder: Path) -> FittedVocabulary:
    """Write the values of `base`, the vocabulary of another prepared folder, with their ids unchanged, and their search
    tables into `folder`.

    Return the vocabulary, whose values and ids are those of `base`.
    """
    if len(base.paths()) == 1:
        shutil.copyfile(base.paths()[0], folder / VOCABULARY_FILE)
    else:
        writer = VocabularyWriter(folder / VOCABULARY_FILE, base.columns)
        writer.copy(base.paths())
        writer.finish()
    return _write_tables(base.fields(), base.columns, folder, size=base.schema.vocabulary_size)


def extend_base_vocabulary(
    base: BaseVocabulary, statistics: LogStatistics, options: PrepareOptions, folder: Path
) -> FittedVocabulary:
    """Give ids, after all existing ones, to the frequent values of a log that `base`, the vocabulary of another
    prepared folder, lacks.

    Return the extended vocabulary. Write its vocabulary.parquet and search tables into `folder`, and release the memory
    of the counts in `statistics`. A new value is written with its count in the training rows of this log. A value of
    the base vocabulary keeps the count that is recorded there.
    """
    columns = options.categorical_columns
    writer = VocabularyWriter(folder / VOCABULARY_FILE, columns)
    writer.copy(base.paths())

    def listed() -> Iterator[FieldVocabulary]:
        next_id = base.schema.vocabulary_size
        for old, column in zip(base.fields(), options.vocabularies, strict=True):
            # `old.values` has an entry for missing cells, which does not count toward the limit `max_size` of a field's
            # values.
            num_known, is_known = len(old.values) - 1, partial(_are_in, old)
            values, counts, texts = new_values(statistics, options, column, num_known, is_known)
            new = FieldVocabulary(old.name, old.oov_ids, ((next_id, next_id + len(values)),), values, counts, texts)
            writer.add(new)
            next_id += len(values)
            yield _join(old, new)
        writer.finish()

    return _write_tables(listed(), columns, folder, statistics, base.schema.vocabulary_size)


def _write_tables(
    fields: Iterable[FieldVocabulary],
    columns: Sequence[CategoricalColumn],
    folder: Path,
    statistics: LogStatistics | None = None,
    size: int = 0,
) -> FittedVocabulary:
    """Write the search tables (from values to ids) of all fields into `folder`. Return the vocabulary.

    The vocabulary has at least `size` ids. `size` is the number of ids of the base vocabulary, or 0 without one. Close
    `statistics` after the last of `fields` is written, because `fields` may be a generator that reads `statistics`.
    """
    by_name: dict[str, CategoricalField] = {}

    def noted() -> Iterator[FieldVocabulary]:
        for field in fields:
            check_stop()
            by_name[field.name] = field.ids
            yield field

    lookup = write_lookup_tables(noted(), folder / WORK_FOLDER / LOOKUP_FILE)
    size = max(size, *(field.id_ranges[-1][1] for field in by_name.values()))
    if statistics is not None:
        statistics.close()
        give_back_freed_memory()
    return FittedVocabulary(
        lookup, tuple(_field(column, by_name[column.shares or column.name]) for column in columns), size
    )


def _field(column: CategoricalColumn, vocabulary: CategoricalField) -> CategoricalField:
    return replace(vocabulary, name=column.name, cross=column.cross, max_length=column.max_length, pool=column.pool)


def _num_missing(statistics: LogStatistics, columns: Sequence[CategoricalColumn], name: str) -> int:
    """Return the number of missing cells in the column `name` and in all columns that share its vocabulary."""
    of_columns = zip(columns, statistics.missing, strict=True)
    return sum(missing for column, missing in of_columns if name in (column.name, column.shares))


def _fitted_values(
    statistics: LogStatistics, options: PrepareOptions, column: CategoricalColumn, num_missing: int
) -> OrderedValues:
    """Return the values of a column that are frequent enough to get an id of their own, with their counts.

    The values are in the order of their ids. In a hashed column, values get their ids from a hash and not from a
    vocabulary, so the result contains only the missing value, whose count is `num_missing`.
    """
    least, max_size = options.least_count(column.name), options.of_fields("max_size").get(column.name)
    is_hashed = options.is_hashed(column.name)
    if not column.is_text:
        packed = np.empty(0, np.uint64) if is_hashed else statistics.values.frequent(column.place, least)
        return order_values(packed, num_missing, max_size)
    counted = NOTHING if is_hashed else statistics.texts.frequent(column.place, least)
    if column.cross:
        options.check_cross_size(column.name, len(counted))
    return order_strings(counted.texts, counted.counts, num_missing, max_size)


def new_values(
    statistics: LogStatistics,
    options: PrepareOptions,
    column: CategoricalColumn,
    num_known: int,
    is_known: Callable[[NDArray[np.int64] | Strings], NDArray[np.bool_]] | None,
    earlier: ValueSketch | None = None,
) -> OrderedValues:
    """Return the frequent values of a column that its vocabulary lacks, with their counts.

    The values are in the order of their new ids. The vocabulary has `num_known` values besides the missing one. The
    setting `max_size` limits the known and new values together. `is_known` is a function that returns a mask of the
    values that already have ids. If it is None, `statistics` contains no such value.

    If the sketch (approximate counter) `earlier` is given, a value's count includes its count in earlier logs. The
    sketch's method `note` records the counts of all unknown values, which the caller adds to the sketch later. The
    counts of values that get ids now are removed from this record, unless `max_size` excludes some frequent values.
    """
    if options.is_hashed(column.name):
        nothing = np.empty(0, np.int64)
        return nothing, nothing, NOTHING.texts if column.is_text else None
    min_count, max_size = options.least_count(column.name), options.of_fields("max_size").get(column.name)
    room = None if max_size is None else max(max_size - num_known, 0)
    values, counts = _frequent(statistics, column, min_count if earlier is None else 1)
    if is_known is not None:
        values, counts = _take(values, counts, ~is_known(values))
    if earlier is not None:
        counts = earlier.note(column.place, values, counts)
        is_frequent = counts >= min_count
        if room is None or np.count_nonzero(is_frequent) <= room:
            earlier.leave_out(is_frequent)
        values, counts = _take(values, counts, is_frequent)
    if isinstance(values, Strings):
        numbers, counts, texts = order_strings(values, counts, 0, room)
        assert texts is not None
        there = np.flatnonzero(numbers != MISSING)
        return np.arange(len(there)), counts[there], texts.take(there).compact()
    packed = values.astype(np.uint64) << COUNT_BITS | counts.astype(np.uint64)
    numbers, counts, _ = order_values(packed, 0, room)
    return numbers[numbers != MISSING], counts[numbers != MISSING], None


def _frequent(
    statistics: LogStatistics, column: CategoricalColumn, least: int
) -> tuple[NDArray[np.int64] | Strings, NDArray[np.int64]]:
    """Return the values of a column that occur at least `least` times in the training rows, and the count of each."""
    if column.is_text:
        counted = statistics.texts.frequent(column.place, least)
        return counted.texts, counted.counts
    packed = statistics.values.frequent(column.place, least)
    return (packed >> COUNT_BITS).astype(np.int64), (packed & COUNT_MASK).astype(np.int64)


def _take(
    values: NDArray[np.int64] | Strings, counts: NDArray[np.int64], mask: NDArray[np.bool_]
) -> tuple[NDArray[np.int64] | Strings, NDArray[np.int64]]:
    places = np.flatnonzero(mask)
    return values.take(places), counts[places]


def _warn_of_floats(field: FieldVocabulary) -> None:
    """Log a warning about values of a text field that were probably converted to floats before the log was written.

    Such values are numbers that got two ids, one for 7 and one for 7.0, and whole numbers that are too large to be
    exact as floats.
    """
    if field.texts is None:
        return
    large = field.texts.take(are_inexact_texts(field.texts))
    if len(large):
        example = large.take(slice(0, 1)).tolist()[0].decode()
        log.warning("column %s has %d values such as %s: %s", field.name, len(large), example, INEXACT)
    with_point = field.texts.take(are_whole(field.texts, has_point=True))
    both = with_point.take(_are_in(field, with_whole_numbers(with_point, has_point=False)))
    if len(both):
        number = both.take(slice(0, 1)).tolist()[0].decode()
        log.warning(
            "column %s has %d numbers in two forms, such as %s and %s, which get two ids: if they are the same value, "
            "write them alike in all parts of the log (pandas writes integers beside a missing cell as floats, unless "
            "their type is Int64)",
            *(field.name, len(both), number.removesuffix(".0"), number),
        )


def _are_in(old: FieldVocabulary, values: NDArray[np.int64] | Strings) -> NDArray[np.bool_]:
    """Return a mask of `values` [n] that is True for each value that the field `old` contains."""
    if not isinstance(values, Strings):
        return np.isin(values, old.values)
    assert old.texts is not None
    both = concatenate_strings([old.texts, values])
    order, firsts = group_equal(both.keys(), both)
    first_of_group = np.minimum.reduceat(order, firsts) if len(firsts) else firsts
    are_there = np.ones(len(values), np.bool_)
    are_there[first_of_group[first_of_group >= len(old.texts)] - len(old.texts)] = False
    return are_there


def _join(old: FieldVocabulary, new: FieldVocabulary) -> FieldVocabulary:
    if not len(new.values):
        return old
    values = np.concatenate([old.values, new.values if new.texts is None else len(old.values) + new.values])
    return replace(
        old,
        id_ranges=(*old.id_ranges, *new.id_ranges),
        values=values,
        counts=np.concatenate([old.counts, new.counts]),
        texts=None if old.texts is None or new.texts is None else concatenate_strings([old.texts, new.texts]),
    )
