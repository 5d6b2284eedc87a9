"""Encode raw lines: ids and numbers from a chunk of the log, with a vocabulary that is fitted already.

Without MindSpore. Workers import this module, so it does not import pyarrow, which would cost each of them memory and
start-up time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.lookup_file import LOOKUP_FILE, NO_IDS, LookupTables, TableLayout, without_values
from data_prep.kernels import numpy_kernels
from data_prep.kernels.crosses import text_columns
from data_prep.kernels.lists import Lists
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.native import load as load_kernels
from data_prep.kernels.numpy_kernels import FieldLookup, StringLookup
from data_prep.kernels.parsed import Chunk, ParsedChunk, ParsedRows
from data_prep.kernels.strings import Strings, are_whole, end_in_point_zero
from data_prep.options.columns import EncodingOptions, number_groups
from data_prep.options.log_format import BOOLEANS, FormatToScore, LogFormat
from data_prep.options.plain_values import from_dict
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import INDICATOR, NO_ID, NumericField, Schema, transform_numbers

MOST_UNKNOWN = 0.9  # of a column's cells: above it they are probably written in another form than in the vocabulary
EXPIRED_FILE, NUM_EXPIRED = "expired.npy", "num_expired"  # of a delta: file of ids, and how many they are

__all__ = ["Chunk", "Examples", "ParsedChunk", "ParsedRows", "RowEncoder"]


class RowEncoder:
    """Encodes the good lines of chunks."""

    def __init__(
        self,
        numeric: Sequence[NumericField],
        lookup: LookupTables,
        dtype: str,
        options: EncodingOptions,
        additions: Sequence[LookupTables] = (),
        expired: NDArray[np.int64] = NO_IDS,
    ) -> None:
        """Take the tables of the vocabulary, those of values that were added to it, and ids that lost their values.

        `expired` [g] ascend. Such a value may be in the tables, and may have been added again.
        """
        self.expired = expired
        self._numeric = numeric
        self._lookup = lookup
        self.additions = additions
        self._dtype = dtype
        self._options = options
        columns = options.categorical_columns
        self.lengths = np.array([column.max_length for column in columns])  # [C] each column's positions
        firsts = dict(zip((column.name for column in columns), np.cumsum(self.lengths) - self.lengths, strict=True))
        self._first_positions = firsts
        self._number_groups = number_groups(columns)
        self._number_positions = [firsts[column.name] for column in columns if not column.is_text]
        names = [column.name for column in options.vocabularies]
        of_columns = [names.index(column.shares or column.name) for column in columns]
        self._vocabularies = np.repeat(of_columns, self.lengths)  # the vocabulary of each position
        # Smaller ids of a prepared row are out of vocabulary, or those of numeric columns, which no row has.
        self.first_own_id = len(numeric) + sum(layout.num_oov_ids for layout in lookup.layouts)

    @functools.cached_property
    def log_format(self) -> LogFormat:
        """The format of rows to encode, with the texts for true and false that the vocabulary has, if it has two."""
        log_format, columns = self._options.data, self._options.categorical_columns
        of_texts = {column.name: column.place for column in columns if column.is_text and not column.cross}
        texts = {name: self._texts_of_booleans(place) for name, place in of_texts.items()}
        return dataclasses.replace(log_format, booleans={**texts, **log_format.booleans})

    @functools.cached_property
    def _whole_numbers(self) -> dict[str, bool]:
        """How the columns' vocabularies write whole numbers, see `whole_numbers`. Others are left out."""
        columns = (column for column in self._options.categorical_columns if column.is_text and not column.cross)
        forms = {column.name: whole_numbers(self._texts_of(column.place)) for column in columns}
        known = {name: form for name, form in forms.items() if form is not None}
        return known | dict.fromkeys(self._options.data.point_zero, True)

    def _texts_of(self, place: int) -> list[Strings]:
        return [lookup.opened[1][place].texts for lookup in (self._lookup, *self.additions)]

    def _texts_of_booleans(self, place: int) -> tuple[str, ...]:
        is_known = self.knows(Strings.of([text.encode() for text in BOOLEAN_TEXTS]), place)
        texts = {text for text, is_there in zip(BOOLEAN_TEXTS, is_known, strict=True) if is_there}
        return texts_among(texts, sum(map(len, self._texts_of(place))))

    def knows(self, values: NDArray[np.integer] | Strings, place: int) -> NDArray[np.bool_]:
        """Return which values [n] have ids of their own, of the vocabulary `place` of those of numbers, or of text."""
        return self.own_ids(values, place) != NO_ID

    def own_ids(self, values: NDArray[np.integer] | Strings, place: int) -> NDArray[np.int64]:
        """Return the id of each value [n] of the vocabulary `place`, as in `knows`, NO_ID for those that have none."""
        own_ids = np.full(len(values), NO_ID, np.int64)
        for lookup in (self._lookup, *self.additions):
            if isinstance(values, Strings):
                table: FieldLookup | StringLookup = lookup.opened[1][place]
                ids = numpy_kernels.find_strings(lookup.opened[1][place], values, np.ones(len(values), np.bool_))
            else:
                table = lookup.opened[0][place]
                ids = numpy_kernels.find_values(lookup.opened[0][place], values.astype(np.uint32))
            is_own = (ids < table.first_oov_id) | (ids >= table.first_oov_id + table.num_oov_ids)
            own_ids = np.where(is_own & ~np.isin(ids, self.expired), ids, own_ids)
        return own_ids

    def missing_id(self, is_text: bool, place: int) -> int:
        """Return the id of a missing cell, of the vocabulary `place` of those of numbers, or of text."""
        return self._lookup.opened[is_text][place].missing_id

    def with_additions(self, additions: Sequence[LookupTables]) -> RowEncoder:
        """Return an encoder with other tables of values that were added to the vocabulary."""
        return RowEncoder(self._numeric, self._lookup, self._dtype, self._options, additions, self.expired)

    def without(self, expired: NDArray[np.int64]) -> RowEncoder:
        """Return an encoder for which the values of these ids [n], too, are out of vocabulary."""
        expired = np.unique(np.concatenate([self.expired, expired]), return_counts=True)[0]  # sorts, which is fast
        return RowEncoder(self._numeric, self._lookup, self._dtype, self._options, self.additions, expired)

    def without_label(self) -> RowEncoder:
        """Return the encoder of rows that are to be scored, which need no label."""
        options = self._options.without_label()
        return RowEncoder(self._numeric, self._lookup, self._dtype, options, self.additions, self.expired)

    def encode(self, chunk: Chunk) -> tuple[ParsedChunk, Examples]:
        """Return the parsed chunk, bad lines included, and its good lines encoded.

        A file whose header names its columns may lack those that change no score.
        """
        log_format = self._options.data
        if chunk.file.columns:
            log_format = _format_of(log_format, chunk.file.columns)
        kernels = choose_kernels(self._options.kernels)
        parsed: ParsedChunk = kernels.parse_chunk(chunk, log_format)
        rows = parsed.rows.with_lists(log_format, kernels)
        if isinstance(log_format, FormatToScore):
            are_bad = rows.have_inexact_ids(log_format.text_fields)
            if are_bad.any():
                parsed = parsed.without_inexact_ids(chunk, are_bad)
                rows = parsed.rows.with_lists(log_format, kernels)
        if forms := self._whole_numbers:
            rows = rows.with_whole_numbers(forms)
        if rows is not parsed.rows:
            parsed = dataclasses.replace(parsed, rows=rows)
        return parsed, self.encode_rows(rows)

    def encode_rows(self, rows: ParsedRows) -> Examples:
        """Return parsed rows encoded."""
        kernels, labels = choose_kernels(self._options.kernels), rows.labels.astype(np.float32)
        return Examples(self._ids(rows, kernels), self._numbers(rows), labels, rows.weights, rows.keys)

    def are_unknown(self, ids: NDArray[np.signedinteger]) -> NDArray[np.bool_]:
        """Return which of the ids [n, P] of encoded rows are out of vocabulary."""
        of_vocabularies = np.array([layout.numbers[-2:] for layout in self._lookup.layouts], ids.dtype)
        first, count = of_vocabularies[self._vocabularies].T
        return (ids >= first) & (ids < first + count)

    def count_unknown(self, ids: NDArray[np.signedinteger]) -> NDArray[np.int64]:
        """Return how many encoded rows have a value out of vocabulary, and how many a missing cell, by field [2, C].

        Of a list its first value counts.
        """
        columns, firsts = self._options.categorical_columns, list(self._first_positions.values())
        missing = [self.missing_id(column.is_text, column.place) for column in columns]
        return np.stack([self.are_unknown(ids)[:, firsts].sum(axis=0), (ids[:, firsts] == missing).sum(axis=0)])

    def ids_with(
        self, added: LookupTables, rows: ParsedRows, ids: NDArray[np.signedinteger]
    ) -> NDArray[np.signedinteger]:
        """Return the ids [n, P] of parsed rows with those of the values that `added` has."""
        added_ids = self._ids_by(added.opened, rows, choose_kernels(self._options.kernels))
        return np.where(self.are_unknown(added_ids), ids, added_ids)

    def _ids(self, rows: ParsedRows, kernels: ModuleType) -> NDArray[np.signedinteger]:
        ids = self._ids_by(self._lookup.opened, rows, kernels)
        for added in self.additions:
            ids = self.ids_with(added, rows, ids)
        if len(self.expired) and (is_expired := self._is_expired[np.minimum(ids, len(self._is_expired) - 1)]).any():
            ids = np.where(is_expired, self._ids_by(without_values(self._lookup.opened), rows, kernels), ids)
        return ids

    @functools.cached_property
    def _is_expired(self) -> NDArray[np.bool_]:
        """By id. The last one is False, for larger ids and for NO_ID."""
        is_expired = np.zeros(self.expired[-1] + 2, np.bool_)
        is_expired[self.expired] = True
        return is_expired

    def _ids_by(
        self, tables: tuple[list[FieldLookup], list[StringLookup]], rows: ParsedRows, kernels: ModuleType
    ) -> NDArray[np.signedinteger]:
        of_numbers, of_texts = tables
        number_columns = rows.number_columns(self._number_groups)
        number_ids: NDArray[np.signedinteger] = kernels.encode_values(of_numbers, *number_columns, self._dtype)
        if not of_texts:
            return number_ids
        columns = self._options.categorical_columns
        ids = np.full((len(rows.labels), len(self._vocabularies)), NO_ID, self._dtype)
        for column, texts, present in text_columns(rows, columns, kernels):
            table, first = of_texts[column.place], self._first_positions[column.name]
            if isinstance(texts, Lists):
                ids[~present, first] = table.missing_id
                ids_of_texts = kernels.find_strings(table, texts.values, np.ones(len(texts.values), np.bool_))
                ids[texts.rows, first + texts.places] = ids_of_texts
            else:
                ids[:, first] = kernels.find_strings(table, texts, present)
        ids[:, self._number_positions] = number_ids
        return ids

    def _numbers(self, rows: ParsedRows) -> NDArray[np.float32]:
        numbers = np.empty((len(rows.labels), len(self._numeric)), np.float32)
        for field, columns, sources in self._numeric_groups:
            values, present = rows.block(sources)
            is_indicator = field.transform == INDICATOR
            cells = ~present if is_indicator else np.where(present, transform_numbers(field, values), 0)
            numbers[:, columns] = cells.T
        return numbers

    @functools.cached_property
    def _numeric_groups(self) -> list[tuple[NumericField, slice, tuple[str, ...]]]:
        """Numeric columns side by side that have the same transform: a field of it, and their places and sources."""
        groups: list[tuple[NumericField, slice, tuple[str, ...]]] = []
        for _, alike in groupby(self._numeric, lambda field: dataclasses.replace(field, name="", source="")):
            first, fields = groups[-1][1].stop if groups else 0, list(alike)
            sources = tuple(field.source for field in fields)
            groups.append((fields[0], slice(first, first + len(fields)), sources))
        return groups


@functools.lru_cache(maxsize=4)
def _format_of(log_format: LogFormat, names: tuple[str, ...]) -> LogFormat:
    """Return the format of a file with these columns, which may lack weights and ids."""
    lacking = [name for name in log_format.columns_of_kind("weight", "id") if name not in names]
    return dataclasses.replace(log_format, columns=log_format.columns | dict.fromkeys(lacking, "ignored"))


def expired_of(chain: Sequence[tuple[Path, dict[str, Any]]]) -> NDArray[np.int64]:
    """Return the ids that lost their values in a chain of folders and descriptions, ascending."""
    files = [np.load(folder / EXPIRED_FILE) for folder, description in chain if description.get(NUM_EXPIRED)]
    return np.unique(np.concatenate([NO_IDS, *files]), return_counts=True)[0]


def open_lookup(chain: Sequence[tuple[Path, dict[str, Any]]], schema: Schema) -> RowEncoder:
    """Return an encoder that maps the files of `write_lookup`: a vocabulary, and additions, oldest first."""
    lookup, *additions = tables = [tables_of(*link) for link in chain]
    for each in tables:
        each.check(schema.vocabulary_size)
    recorded = _fields_of(EncodingOptions, schema.options)
    recorded["data"] = _fields_of(LogFormat, recorded["data"])
    options = from_dict(recorded, EncodingOptions)
    return RowEncoder(schema.numeric, lookup, schema.ids_dtype, options.without_label(), additions, expired_of(chain))


def _fields_of(cls: type, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded options that are fields of `cls`. Earlier releases recorded options that were removed."""
    names = recorded.keys() & {field.name for field in dataclasses.fields(cls)}
    return {name: recorded[name] for name in names}


def tables_of(folder: Path, description: dict[str, Any]) -> LookupTables:
    """Return the search tables in a folder, mapped."""
    layouts = tuple(
        TableLayout(
            table["is_text"], tuple((dtype, length) for dtype, length in table["arrays"]), tuple(table["numbers"])
        )
        for table in description["tables"]
    )
    lookup = LookupTables(folder / LOOKUP_FILE, layouts)
    _ = lookup.opened
    return lookup


def why_slow() -> str:
    """Return why rows are parsed by NumPy and not by the native kernels, "" if they are not."""
    try:
        load_kernels()
    except OSError as error:
        return str(error)
    return ""


BOOLEAN_TEXTS = tuple(text for pair in BOOLEANS for text in pair)


def texts_among(texts: Collection[str], num_values: int) -> tuple[str, ...]:
    """Return the texts for true and false in a vocabulary of so many values, or () if they are not clear.

    `texts` are those of BOOLEAN_TEXTS that the vocabulary has. One of the words true and false is enough, whatever else
    it has. Of yes and no it takes both. Other texts must be all that it has, since 1 and 0 may be numbers among others,
    t and f letters, and no a country.
    """
    pairs = [pair for pair in BOOLEANS if set(pair) & set(texts)]
    if len(pairs) != 1:
        return ()
    (pair,) = pairs
    word = pair[0].lower()
    is_clear = word == "true" or (word in ("yes", "on") and len(texts) == 2) or len(texts) == num_values
    return pair if is_clear else ()


def whole_numbers(texts: Sequence[Strings]) -> bool | None:
    """Return how a vocabulary writes whole numbers: True for 7.0, as pandas does with floats, False for 7.

    None stands for both, and for an empty vocabulary. Without any whole number it is False: 7.0 is no value.
    """

    def has(has_point: bool) -> bool:
        among = (each.take(end_in_point_zero(each) == has_point) for each in texts)
        parts = (each.take(slice(first, first + 1_000)) for each in among for first in range(0, len(each), 1_000))
        return any(are_whole(part, has_point).any() for part in parts)

    if not any(each.lengths.any() for each in texts):
        return None
    return False if not has(has_point=True) else None if has(has_point=False) else True
