"""The vocabulary that the rows get: fitted to the counts or taken from another folder, and written down."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep import memory
from data_prep.buckets import categorical_fields
from data_prep.given_vocabulary import GivenVocabulary
from data_prep.lookup import LookupFile, LookupWriter
from data_prep.options import PrepareOptions
from data_prep.output_folder import WORK_FOLDER
from data_prep.schema import VOCABULARY_FILE, CategoricalField
from data_prep.statistics import LogStatistics
from data_prep.vocabulary import ids_dtype, make_vocabulary, order_values
from data_prep.vocabulary_file import VocabularyWriter


@dataclass(frozen=True)
class UsedVocabulary:
    """What the second reading and schema.json need of the vocabulary."""

    lookup: LookupFile
    categorical: tuple[CategoricalField, ...]
    size: int

    @property
    def ids_dtype(self) -> str:
        """Of all ids."""
        return ids_dtype(self.size)


def lookup_path(folder: Path) -> Path:
    """The vocabulary as it is searched, in a folder while it is made."""
    return folder / WORK_FOLDER / "lookup.bin"


def fit_vocabulary(
    statistics: LogStatistics, options: PrepareOptions, num_numeric: int, folder: Path
) -> UsedVocabulary:
    """Give ids to the frequent values, and write them down for readers and for the second reading."""
    names = categorical_fields(options.integer_buckets)
    ordered = (_ordered_values(statistics, options, place, name) for place, name in enumerate(names))
    listed = VocabularyWriter(folder / VOCABULARY_FILE, names)
    searched = LookupWriter(lookup_path(folder))
    categorical = []
    for field in make_vocabulary(names, ordered, num_numeric, options.oov_buckets):
        listed.add(field)
        searched.add(field)
        categorical.append(field.ids)
        end_id = field.end_id
    listed.finish()
    statistics.values.close()
    memory.give_back_freed_memory()
    return UsedVocabulary(searched.finish(), tuple(categorical), end_id)


def _ordered_values(
    statistics: LogStatistics, options: PrepareOptions, place: int, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values of a field that get an id of their own, and their counts."""
    if options.vocabulary == "hash":
        return order_values(np.empty(0, np.uint64), statistics.missing[place])
    min_count = options.field_min_count.get(name, options.min_count)
    words = statistics.values.frequent(place, min_count)
    return order_values(words, statistics.missing[place], options.field_max_size.get(name))


def take_vocabulary(given: GivenVocabulary, folder: Path) -> UsedVocabulary:
    """The vocabulary of another folder: the same file, and its tables for the reading."""
    shutil.copyfile(given.path, folder / VOCABULARY_FILE)
    searched = LookupWriter(lookup_path(folder))
    for field in given.fields():
        searched.add(field)
    return UsedVocabulary(searched.finish(), given.schema.categorical, given.schema.vocabulary_size)
