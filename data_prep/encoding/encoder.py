"""Encode raw lines: turn a chunk of the log into ids and numbers, with a vocabulary that is already fitted.

This module does not need MindSpore. Worker processes import it, so it does not import pyarrow either, which would cost
each of them memory and start-up time.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.from_values import cells_to_chunk
from data_prep.execution.pieces import storable
from data_prep.kernels import numpy_kernels
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.native import load as load_kernels
from data_prep.kernels.numpy_kernels import ID_BITS, ID_MASK, FieldLookup, StringLookup
from data_prep.kernels.parsed import Cells, Chunk, ParsedChunk, ParsedRows, text_columns
from data_prep.kernels.strings import PADDING_BYTES, Lists, Strings, are_whole, end_in_point_zero
from data_prep.options.columns import CategoricalColumn, EncodingOptions, number_groups
from data_prep.options.kinds import KINDS
from data_prep.options.log_format import BOOLEANS, FormatToScore, LogFormat
from data_prep.prepared.examples import NO_VECTORS, Examples
from data_prep.prepared.schema import (
    INDICATOR,
    NO_ID,
    NumericField,
    Schema,
    VectorField,
    scale_vectors,
    transform_numbers,
)

# If more than this fraction of a column's cells has values without an id, the log probably writes the values in another
# form than the vocabulary, such as 7.0 instead of 7.
MOST_UNKNOWN = 0.9
_SHOWN_VALUES = 10  # Error messages name at most so many values of a part of a vocabulary.
# Files of a delta bundle, which is an exported model that holds only changes. `EXPIRED_FILE` is its file with the ids
# that have expired, and `NUM_EXPIRED` is the key, in the bundle's description, of the number of these ids.
EXPIRED_FILE, NUM_EXPIRED = "expired.npy", "num_expired"

__all__ = ["Chunk", "Examples", "ParsedChunk", "ParsedRows", "RowEncoder"]


BOOLEAN_TEXTS = tuple(text for pair in BOOLEANS for text in pair)
LOOKUP_FILE = "lookup.bin"
NO_IDS = np.zeros(0, np.int64)
ALIGNMENT = 8  # Each array in `LOOKUP_FILE` begins at a multiple of this many bytes.


@dataclass(eq=False)
class RowEncoder:
    """Parses chunks (blocks of lines) of a log, and turns lines that are not rejected into rows of ids and numbers.

    An encoder has the search tables of a vocabulary, further tables of the values that were added to the vocabulary
    later, the ids that have expired, and the transforms of the numeric columns.
    """

    numeric: Sequence[NumericField]
    lookup: LookupTables  # The search tables of the vocabulary. They may still contain the values of expired ids.
    dtype: str  # Dtype of the arrays in which the encoder returns ids.
    options: EncodingOptions
    # The search tables of values that were added to the vocabulary later, the oldest table first. A value whose id has
    # expired may be in a later table again, with a new id.
    additions: Sequence[LookupTables] = ()
    expired: NDArray[np.int64] = field(default_factory=lambda: NO_IDS)  # The expired ids in ascending order.
    vectors: Sequence[VectorField] = ()

    def __post_init__(self) -> None:
        columns = self.options.categorical_columns
        # Number of ids that a row has for each categorical column [C].
        self.lengths = np.array([column.max_length for column in columns])
        firsts = dict(zip((column.name for column in columns), np.cumsum(self.lengths) - self.lengths, strict=True))
        self._first_positions = firsts
        self._number_groups = number_groups(columns)
        self._number_positions = [firsts[column.name] for column in columns if not column.is_text]
        names = [column.name for column in self.options.vocabularies]
        of_columns = [names.index(column.shares or column.name) for column in columns]
        # Index of the vocabulary of each of the P ids of a row, [P].
        self._vocabularies = np.repeat(of_columns, self.lengths)
        # The smallest id that stands for one value. Smaller ids either belong to numeric columns, and never occur among
        # the ids of rows, or mean "out of vocabulary".
        self.first_own_id = len(self.numeric) + sum(layout.num_oov_ids for layout in self.lookup.layouts)

    @functools.cached_property
    def log_format(self) -> LogFormat:
        """Format of the log to encode, completed by the texts that stand for true and false in each text column.

        These are the two texts, such as 1 and 0, that the vocabulary of the column contains. If the values of a
        vocabulary do not show which texts it uses, the format has no texts for that column. If rows to score have the
        same value in some columns (`serve_as`), these columns have the kind ignored.
        """
        log_format, columns = self._log_format, self.options.categorical_columns
        of_texts = {column.name: column.place for column in columns if column.is_text and not column.cross}
        texts = {name: self._texts_of_booleans(place) for name, place in of_texts.items()}
        return replace(log_format, booleans={**texts, **log_format.booleans})

    @functools.cached_property
    def _log_format(self) -> LogFormat:
        """Format of the log to encode. Columns of rows to score whose cells are not used have the kind ignored."""
        log_format = self.options.data
        if not isinstance(log_format, FormatToScore) or not log_format.serve_as:
            return log_format
        return replace(log_format, columns=log_format.columns | dict.fromkeys(log_format.serve_as, "ignored"))

    @functools.cached_property
    def constants(self) -> dict[str, Cells]:
        """The cell [1] of each column, by name, that has the same value in all rows to score (`serve_as`).

        Raise ValueError if such a value is missing or wrong for the kind of its column, or if it has no id, although
        other values of its column have ids of their own.
        """
        log_format, kernels = self.options.data, choose_kernels(self.options.kernels)
        columns = {column.name: column for column in self.options.categorical_columns}
        constants: dict[str, Cells] = {}
        for name, value in () if self._log_format is log_format else log_format.serve_as.items():
            what = f"prepare.data.serve_as: {name}: {value!r}"
            parsed = kernels.parse_chunk(cells_to_chunk({name: value}, log_format), log_format)
            if parsed.rejects_tsv or not parsed.rows.columns[name].present.all():
                raise ValueError(f"{what} is no value of a column of kind {log_format.columns[name]}")
            constants[name] = parsed.rows.with_whole_numbers(self._whole_numbers).columns[name]
            known = self._some_values(columns[name]) if name in columns else []
            if known and not self.knows(constants[name].values, columns[name].place)[0]:
                raise ValueError(
                    f"{what} has no id in the vocabulary; give a value that is frequent enough in the training rows, "
                    f"such as {', '.join(known)}"
                )
        return constants

    def _some_values(self, column: CategoricalColumn) -> list[str]:
        """Return some values of a column that have ids, as texts.

        The missing value is left out. The result is [] if the ids of the column's values are hashes.
        """
        if column.is_text:
            parts = (part.take(slice(0, _SHOWN_VALUES)).tolist() for part in self._texts_of(column.place))
            return sorted(text.decode() for part in parts for text in part if text)
        words = self.lookup.opened[0][column.place].words[:_SHOWN_VALUES]
        return sorted(map(KINDS[self.options.data.columns[column.name]].made_up, (words >> ID_BITS).tolist()))

    @functools.cached_property
    def _whole_numbers(self) -> dict[str, bool]:
        """For each text column, by name, the form of those values of its vocabulary that are whole numbers: True if
        they are written as 7.0, and False if they are written as 7.

        Columns for which the function `whole_numbers` returns None are left out. Columns that the setting point_zero of
        the log's description names are always True.
        """
        columns = (column for column in self.options.categorical_columns if column.is_text and not column.cross)
        forms = {column.name: whole_numbers(self._texts_of(column.place)) for column in columns}
        known = {name: form for name, form in forms.items() if form is not None}
        return known | dict.fromkeys(self.options.data.point_zero, True)

    def _texts_of(self, place: int) -> list[Strings]:
        return [lookup.opened[1][place].texts for lookup in (self.lookup, *self.additions)]

    def _texts_of_booleans(self, place: int) -> tuple[str, ...]:
        is_known = self.knows(Strings.of([text.encode() for text in BOOLEAN_TEXTS]), place)
        texts = {text for text, is_there in zip(BOOLEAN_TEXTS, is_known, strict=True) if is_there}
        return texts_among(texts, sum(map(len, self._texts_of(place))))

    def knows(self, values: NDArray[np.integer] | Strings, place: int) -> NDArray[np.bool_]:
        """Return a mask [n] of the values that have an id of their own, that is, are not out of vocabulary.

        `place` selects the vocabulary. If `values` are integers, it is an index among the vocabularies of integer
        columns. If they are `Strings`, it is an index among the vocabularies of text columns.
        """
        return self.own_ids(values, place) != NO_ID

    def own_ids(self, values: NDArray[np.integer] | Strings, place: int) -> NDArray[np.int64]:
        """Return the id of each value [n], or NO_ID if the value is out of vocabulary, also because its id has expired.

        `place` selects the vocabulary: it is an index among the vocabularies of integer columns if `values` are
        integers, and among those of text columns if they are `Strings`.
        """
        own_ids = np.full(len(values), NO_ID, np.int64)
        for lookup in (self.lookup, *self.additions):
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
        """Return the id that a missing cell gets from one vocabulary.

        `place` is the index of the vocabulary among the vocabularies of text columns if `is_text` is True, and
        otherwise among the vocabularies of integer columns.
        """
        return self.lookup.opened[is_text][place].missing_id

    def without(self, expired: NDArray[np.int64]) -> RowEncoder:
        """Return a copy of the encoder in which the values of the ids `expired` [n] count as out of vocabulary.

        Values of ids that had expired in this encoder already count as out of vocabulary too.
        """
        # np.unique with `return_counts` sorts the ids and does not hash them, which is faster here.
        expired = np.unique(np.concatenate([self.expired, expired]), return_counts=True)[0]
        return replace(self, expired=expired)

    def encode(self, chunk: Chunk) -> tuple[ParsedChunk, Examples]:
        """Parse a chunk of lines and encode its good lines. Return the parsed chunk and the encoded rows.

        The parsed chunk also records the rejected lines. If the chunk's file has a header with the names of its
        columns, columns that do not affect scores may be missing.
        """
        log_format = self._log_format
        if chunk.file.columns:
            log_format = _format_of(log_format, chunk.file.columns)
        kernels = choose_kernels(self.options.kernels)
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
            parsed = replace(parsed, rows=rows)
        return parsed, self.encode_rows(rows)

    def encode_rows(self, rows: ParsedRows) -> Examples:
        """Return parsed rows as encoded rows: their ids, numbers, labels, weights, keys and vectors.

        The keys are hashes of the cells of columns of kind id, which identify rows. Columns with the same value in all
        rows to score get this value, unless the rows have been parsed with their own values.
        """
        if self.constants and (lacking := self.constants.keys() - rows.columns.keys()):
            places = np.zeros(len(rows.labels), np.int64)
            rows = replace(rows, separate=rows.separate | {name: self.constants[name].take(places) for name in lacking})
        kernels, labels = choose_kernels(self.options.kernels), rows.labels.astype(np.float32)
        scaled = [scale_vectors(field, *rows.columns[field.name]) for field in self.vectors]
        vectors = np.concatenate(scaled, axis=1) if len(scaled) > 1 else scaled[0] if scaled else NO_VECTORS
        return Examples(self._ids(rows, kernels), self._numbers(rows), labels, rows.weights, rows.keys, vectors)

    def are_unknown(self, ids: NDArray[np.signedinteger]) -> NDArray[np.bool_]:
        """Return a mask [n, P] of `ids`, the ids of encoded rows. It is True where an id means "out of vocabulary"."""
        of_vocabularies = np.array([layout.numbers[-2:] for layout in self.lookup.layouts], ids.dtype)
        first, count = of_vocabularies[self._vocabularies].T
        return (ids >= first) & (ids < first + count)

    def count_unknown(self, ids: NDArray[np.signedinteger]) -> NDArray[np.int64]:
        """For each categorical column, count the rows with an out-of-vocabulary value and those with a missing cell.

        `ids` [n, P] are the ids of encoded rows. The result [2, C] has the two counts of each column. If a column is a
        list, only the first value of each list counts.
        """
        columns, firsts = self.options.categorical_columns, list(self._first_positions.values())
        missing = [self.missing_id(column.is_text, column.place) for column in columns]
        return np.stack([self.are_unknown(ids)[:, firsts].sum(axis=0), (ids[:, firsts] == missing).sum(axis=0)])

    def ids_with(
        self, added: LookupTables, rows: ParsedRows, ids: NDArray[np.signedinteger]
    ) -> NDArray[np.signedinteger]:
        """Return a copy of `ids` [n, P], in which values in the search tables `added` have the ids of these tables.

        `rows` are the parsed rows that have been encoded as `ids`. The ids of all other values stay the same.
        """
        added_ids = self._ids_by(added.opened, rows, choose_kernels(self.options.kernels))
        return np.where(self.are_unknown(added_ids), ids, added_ids)

    def _ids(self, rows: ParsedRows, kernels: ModuleType) -> NDArray[np.signedinteger]:
        ids = self._ids_by(self.lookup.opened, rows, kernels)
        for added in self.additions:
            ids = self.ids_with(added, rows, ids)
        if len(self.expired) and (is_expired := self._is_expired[np.minimum(ids, len(self._is_expired) - 1)]).any():
            ids = np.where(is_expired, self._ids_by(without_values(self.lookup.opened), rows, kernels), ids)
        return ids

    @functools.cached_property
    def _is_expired(self) -> NDArray[np.bool_]:
        """Mask, indexed by id, that is True for expired ids, whose values have lost them.

        The mask ends one element after the largest expired id. This last element is False, and stands for all larger
        ids and for NO_ID.
        """
        is_expired = np.zeros(self.expired[-1] + 2, np.bool_)
        is_expired[self.expired] = True
        return is_expired

    def _ids_by(
        self, tables: tuple[list[FieldLookup], list[StringLookup]], rows: ParsedRows, kernels: ModuleType
    ) -> NDArray[np.signedinteger]:
        of_numbers, of_texts = tables
        number_columns = rows.number_columns(self._number_groups)
        number_ids: NDArray[np.signedinteger] = kernels.encode_values(of_numbers, *number_columns, self.dtype)
        if not of_texts:
            return number_ids
        columns = self.options.categorical_columns
        ids = np.full((len(rows.labels), len(self._vocabularies)), NO_ID, self.dtype)
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
        numbers = np.empty((len(rows.labels), len(self.numeric)), np.float32)
        for transformed, columns, sources in self._numeric_groups:
            values, present = rows.block(sources)
            is_indicator = transformed.transform == INDICATOR
            cells = ~present if is_indicator else np.where(present, transform_numbers(transformed, values), 0)
            numbers[:, columns] = cells.T
        return numbers

    @functools.cached_property
    def _numeric_groups(self) -> list[tuple[NumericField, slice, tuple[str, ...]]]:
        """Groups of adjacent numeric columns with the same kind of transform, which can be computed together.

        A group is given by one of its columns, with arrays [columns, 1] of all their parameters, by the slice of its
        columns among all numeric columns, and by the names of the log's columns from which they are computed.
        """
        groups: list[tuple[NumericField, slice, tuple[str, ...]]] = []
        for _, alike in groupby(self.numeric, lambda field: (field.transform, field.quantiles, *field.parameters)):
            first, fields = groups[-1][1].stop if groups else 0, list(alike)
            parameters = {name: np.array([[each.parameters[name]] for each in fields]) for name in fields[0].parameters}
            sources = tuple(field.source for field in fields)
            group = replace(fields[0], parameters=parameters)
            groups.append((group, slice(first, first + len(fields)), sources))
        return groups


@functools.lru_cache(maxsize=4)
def _format_of(log_format: LogFormat, names: tuple[str, ...]) -> LogFormat:
    """Return the format `log_format`, adapted to a file whose header names the columns `names`.

    Columns of kind weight or id that the file lacks get the kind ignored.
    """
    lacking = [name for name in log_format.columns_of_kind("weight", "id") if name not in names]
    return replace(log_format, columns=log_format.columns | dict.fromkeys(lacking, "ignored"))


def expired_of(chain: Sequence[tuple[Path, dict[str, Any]]]) -> NDArray[np.int64]:
    """Return the expired ids, in ascending order, that a bundle (exported model) and its deltas record.

    A delta is a bundle that holds only the changes since an earlier bundle. `chain` gives the folder and the
    description of each bundle, the oldest first.
    """
    files = [np.load(folder / EXPIRED_FILE) for folder, description in chain if description.get(NUM_EXPIRED)]
    return np.unique(np.concatenate([NO_IDS, *files]), return_counts=True)[0]


def open_lookup(chain: Sequence[tuple[Path, dict[str, Any]]], schema: Schema) -> RowEncoder:
    """Return an encoder for rows to score, whose search tables (from values to ids) are read from files.

    The functions `write_lookup` and `write_additions` have written these files. `chain` has pairs of a folder and the
    description that the function returned: first of the vocabulary's search tables, then of each addition to them, the
    oldest first. The files are mapped into memory. Raise ValueError if a file is damaged.
    """
    lookup, *additions = tables = [tables_of(*link) for link in chain]
    for each in tables:
        each.check(schema.vocabulary_size)
    options = schema.encoding.without_label()
    return RowEncoder(schema.numeric, lookup, schema.ids_dtype, options, additions, expired_of(chain), schema.vectors)


def tables_of(folder: Path, description: dict[str, Any]) -> LookupTables:
    """Map the file of search tables in a folder into memory, and return the tables.

    `description` is what `write_lookup` returned when it wrote the file.
    """
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
    """Return why the native kernels cannot be loaded, or "" if they can be loaded.

    Without them, the slower NumPy kernels parse rows.
    """
    try:
        load_kernels()
    except OSError as error:
        return str(error)
    return ""


def texts_among(texts: Collection[str], num_values: int) -> tuple[str, ...]:
    """Return the two texts that a vocabulary uses for true and false, or () if it does not show which.

    `texts` are those of BOOLEAN_TEXTS that are among the `num_values` values of the vocabulary. One of the words true
    and false is enough, whatever the other values are. The words yes and no, or on and off, must both occur. Any other
    pair only counts if the vocabulary has no further value: 1 and 0 may be numbers, t and f may be letters.
    """
    pairs = [pair for pair in BOOLEANS if set(pair) & set(texts)]
    if len(pairs) != 1:
        return ()
    (pair,) = pairs
    word = pair[0].lower()
    is_clear = word == "true" or (word in ("yes", "on") and len(texts) == 2) or len(texts) == num_values
    return pair if is_clear else ()


def whole_numbers(texts: Sequence[Strings]) -> bool | None:
    """Return True if those values of a vocabulary that are whole numbers are written as 7.0, as pandas writes floats.

    Return False if they are written as 7, or if no value is a whole number. Return None if the vocabulary contains both
    forms, or no values. `texts` are the values of the vocabulary, divided among several arrays.
    """

    def has(has_point: bool) -> bool:
        among = (each.take(end_in_point_zero(each) == has_point) for each in texts)
        parts = (each.take(slice(first, first + 1_000)) for each in among for first in range(0, len(each), 1_000))
        return any(are_whole(part, has_point).any() for part in parts)

    if not any(each.lengths.any() for each in texts):
        return None
    return False if not has(has_point=True) else None if has(has_point=False) else True


@dataclass(frozen=True)
class TableLayout:
    """The dtypes and lengths of the arrays of one search table, from the values of a column to their ids, in a file.

    The tables of a file follow each other in the order of the columns, so the dtypes and lengths determine where each
    array begins.
    """

    is_text: bool
    # dtype and number of elements of each array of the table, in the order in which the file has them.
    arrays: tuple[tuple[str, int], ...]
    # Values of those attributes of the table (a FieldLookup or StringLookup) that are not arrays, in the order in which
    # the class defines them.
    numbers: tuple[int, ...]

    @property
    def num_oov_ids(self) -> int:
        return self.numbers[-1]


@dataclass(frozen=True)
class LookupTables:
    """The search tables of all vocabularies of a prepared folder, in one file.

    A process maps the file into memory when it first uses the tables.
    """

    path: Path
    layouts: tuple[TableLayout, ...]

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @functools.cached_property
    def opened(self) -> tuple[list[FieldLookup], list[StringLookup]]:
        """The search tables of the integer columns, and those of the text columns, as two lists.

        The first use maps the file into memory. After that the file may be deleted.
        """
        file = np.memmap(self.path, np.uint8, "r")
        of_numbers, of_texts, start = [], [], 0
        for layout in self.layouts:
            arrays: list[Any] = []
            for dtype, length in layout.arrays:
                end = start + length * np.dtype(dtype).itemsize
                if not start <= end <= len(file):
                    raise ValueError(f"{self.path} is damaged: it has {len(file):,} bytes, and a table ends at {end:,}")
                arrays.append(file[start:end].view(dtype))
                start = end + -end % ALIGNMENT
            if layout.is_text:
                keys, ids, starts, lengths, data = arrays
                of_texts.append(StringLookup(keys, ids, Strings(data, starts, lengths), *layout.numbers))
            else:
                words, starts = arrays
                of_numbers.append(FieldLookup(words, starts, *layout.numbers))
        return of_numbers, of_texts

    def check(self, num_ids: int) -> None:
        """Raise ValueError if a search in the tables could read outside the file or find an id not below `num_ids`.

        Negative ids are refused too. The native kernels rely on this check and make none of their own. The check reads
        the whole file.
        """
        of_numbers, of_texts = self.opened
        is_within, ids = True, []
        for table in of_numbers:
            ends = np.append(table.starts, np.uint32(len(table.words)))
            is_within &= len(ends) == (1 << (32 - table.shift)) + 2 and bool(np.all(ends[1:] >= ends[:-1]))
            ids.append(table.base_id + np.append(0, (table.words & ID_MASK).max(initial=0).astype(np.int64)))
        for each in of_texts:
            starts, lengths, size = each.texts.starts, each.texts.lengths, len(each.texts.data) - PADDING_BYTES
            is_within &= len(each.keys) == len(each.ids) == len(starts) == len(lengths)
            is_within &= bool(np.all((starts >= 0) & (lengths >= 0) & (lengths <= size) & (starts <= size - lengths)))
            ids.append(each.ids)
        all_tables: list[FieldLookup | StringLookup] = [*of_numbers, *of_texts]
        ids += [
            np.array([each.missing_id, each.first_oov_id, each.first_oov_id + each.num_oov_ids - 1])
            for each in all_tables
        ]
        if not is_within or any(each.min(initial=0) < 0 or each.max(initial=0) >= num_ids for each in ids):
            raise ValueError(f"{self.path} is damaged: its search tables lead beyond the file or the {num_ids:,} ids")

    def __getstate__(self) -> dict[str, object]:
        # A worker that gets a pickled copy maps the file itself, so the pickle leaves out the mapped arrays.
        return {"path": self.path, "layouts": self.layouts}


storable(LookupTables, TableLayout)


def without_values(
    tables: tuple[list[FieldLookup], list[StringLookup]],
) -> tuple[list[FieldLookup], list[StringLookup]]:
    """Return copies of search tables with no values in them, so that each value gets an out-of-vocabulary id."""
    of_numbers, of_texts = tables
    keys, starts = np.zeros(0, np.uint64), np.zeros(3, np.uint32)
    numbers = [replace(table, words=keys, starts=starts, shift=31) for table in of_numbers]
    return numbers, [replace(table, keys=keys, ids=NO_IDS, texts=Strings.of([])) for table in of_texts]
