"""--extend: the vocabulary of another folder, then the values that are new in this log, with ids after all old ones.

A field's ids are then ranges: those of the folder, and one of the values added here. Old ids stay what they were.

Letters: K values of a field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.file import VocabularyWriter, order_texts
from data_prep.encoding.given import GivenVocabulary
from data_prep.encoding.vocabulary import FieldVocabulary, OrderedValues, order_values
from data_prep.kernels.rows import MISSING
from data_prep.kernels.texts import Texts, concatenate_texts, group_equal
from data_prep.options.columns import CategoricalColumn
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import VOCABULARY_FILE
from data_prep.statistics.statistics import LogStatistics


def extended_fields(
    given: GivenVocabulary, statistics: LogStatistics, options: PrepareOptions, folder: Path
) -> Iterator[FieldVocabulary]:
    """The vocabulary of each field, old values and new ones; writes vocabulary.parquet on the way.

    A new value has the count of this log's training rows, an old one the count it was written with.
    """
    columns = options.categorical_columns
    listed = VocabularyWriter(folder / VOCABULARY_FILE, columns)
    listed.copy(given.path)
    next_id = given.schema.vocabulary_size
    for old, column in zip(given.fields(), columns, strict=True):
        values, counts, texts = _new_values(old, statistics, options, column)
        new = FieldVocabulary(old.name, old.oov_ids, ((next_id, next_id + len(values)),), values, counts, texts)
        listed.add(new)
        next_id += len(values)
        yield _together(old, new)
    listed.finish()


def _together(old: FieldVocabulary, new: FieldVocabulary) -> FieldVocabulary:
    if not len(new.values):
        return old
    values = np.concatenate([old.values, new.values if new.texts is None else len(old.values) + new.values])
    return dataclasses.replace(
        old,
        id_ranges=(*old.id_ranges, *new.id_ranges),
        values=values,
        counts=np.concatenate([old.counts, new.counts]),
        texts=None if old.texts is None or new.texts is None else concatenate_texts([old.texts, new.texts]),
    )


def _new_values(
    old: FieldVocabulary, statistics: LogStatistics, options: PrepareOptions, column: CategoricalColumn
) -> OrderedValues:
    """Values seen often enough here that the old vocabulary has not; `field_max_size` holds for both together."""
    min_count = options.field_min_count.get(column.name, options.min_count)
    max_size = options.field_max_size.get(column.name)
    room = None if max_size is None else max(max_size - (len(old.values) - 1), 0)  # a missing value does not count
    if not column.is_text:
        words = statistics.values.frequent(column.place, min_count)
        known = np.isin((words >> np.uint64(32)).astype(np.int64), old.values)
        return _without_missing(order_values(words[~known], 0, room))
    counted = statistics.texts.frequent(column.place, min_count)
    assert old.texts is not None
    is_new = _not_among(old.texts, counted.texts)
    return _without_missing(order_texts(counted.take(is_new), 0, room))


def _not_among(old: Texts, texts: Texts) -> NDArray[np.int64]:
    """The places of those strings, all different, that are no old ones."""
    both = concatenate_texts([old, texts])
    order, firsts = group_equal(both.keys(), both)
    if not len(firsts):
        return firsts
    first_of_group = np.minimum.reduceat(order, firsts)
    return np.sort(first_of_group[first_of_group >= len(old)]) - len(old)


def _without_missing(ordered: OrderedValues) -> OrderedValues:
    """The missing value has its id already."""
    values, counts, texts = ordered
    kept = np.flatnonzero(values != MISSING)
    if texts is None:
        return values[kept], counts[kept], None
    return np.arange(len(kept)), counts[kept], texts.take(kept).compact()
