"""The vocabulary that the rows get: fitted to the counts or taken from another folder, and written down."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.encoding.extended import extended_fields
from data_prep.encoding.file import VocabularyWriter, order_texts
from data_prep.encoding.given import GivenVocabulary
from data_prep.encoding.lookup_file import LookupTables, LookupTablesWriter
from data_prep.encoding.vocabulary import OrderedValues, ids_dtype, make_vocabulary, order_values
from data_prep.execution import memory
from data_prep.execution.folder import WORK_FOLDER
from data_prep.execution.stopping import check_stop
from data_prep.kernels.reference import NOTHING
from data_prep.options.columns import CategoricalColumn
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import VOCABULARY_FILE, CategoricalField
from data_prep.statistics.statistics import LogStatistics


@dataclass(frozen=True)
class UsedVocabulary:
    """What the second reading and schema.json need of the vocabulary."""

    lookup: LookupTables
    categorical: tuple[CategoricalField, ...]
    size: int

    @property
    def ids_dtype(self) -> str:
        """Of all ids."""
        return ids_dtype(self.size)


def fit_vocabulary(
    statistics: LogStatistics, options: PrepareOptions, num_numeric: int, folder: Path
) -> UsedVocabulary:
    """Give ids to the frequent values, and write them down for readers and for the second reading."""
    columns = options.categorical_columns
    ordered = (
        _ordered_values(statistics, options, column, num_missing)
        for column, num_missing in zip(columns, statistics.missing, strict=True)
    )
    names = [column.name for column in columns]
    listed = VocabularyWriter(folder / VOCABULARY_FILE, columns)
    searched = LookupTablesWriter(folder / WORK_FOLDER)
    categorical = []
    for field in make_vocabulary(names, ordered, num_numeric, options.oov_buckets):
        check_stop()
        listed.add(field)
        searched.add(field)
        categorical.append(field.ids)
        end_id = field.id_ranges[-1][1]
    listed.finish()
    statistics.close()
    memory.give_back_freed_memory()
    return UsedVocabulary(searched.finish(), tuple(categorical), end_id)


def _ordered_values(
    statistics: LogStatistics, options: PrepareOptions, column: CategoricalColumn, num_missing: int
) -> OrderedValues:
    """The values of a column that get an id of their own, and their counts."""
    if options.vocabulary == "hash":
        nothing = np.empty(0, np.uint64)
        return order_texts(NOTHING, num_missing) if column.is_text else order_values(nothing, num_missing)
    min_count = options.field_min_count.get(column.name, options.min_count)
    max_size = options.field_max_size.get(column.name)
    if column.is_text:
        return order_texts(statistics.texts.frequent(column.place, min_count), num_missing, max_size)
    return order_values(statistics.values.frequent(column.place, min_count), num_missing, max_size)


def take_vocabulary(given: GivenVocabulary, folder: Path) -> UsedVocabulary:
    """The vocabulary of another folder: the same file, and its tables for the reading."""
    shutil.copyfile(given.path, folder / VOCABULARY_FILE)
    searched = LookupTablesWriter(folder / WORK_FOLDER)
    for field in given.fields():
        searched.add(field)
    return UsedVocabulary(searched.finish(), given.schema.categorical, given.schema.vocabulary_size)


def extend_vocabulary(
    given: GivenVocabulary, statistics: LogStatistics, options: PrepareOptions, folder: Path
) -> UsedVocabulary:
    """The vocabulary of another folder and after it the values that are new in this log."""
    searched = LookupTablesWriter(folder / WORK_FOLDER)
    categorical = []
    for field in extended_fields(given, statistics, options, folder):
        check_stop()
        searched.add(field)
        categorical.append(field.ids)
    size = max(given.schema.vocabulary_size, *(field.id_ranges[-1][1] for field in categorical))
    statistics.close()
    memory.give_back_freed_memory()
    return UsedVocabulary(searched.finish(), tuple(categorical), size)
