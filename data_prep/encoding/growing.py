"""A vocabulary in use that takes the new values of a log's parts. They get ids as `prepare --extend` gives them.

What is there is not written again: each part's values are a file beside those before, as are the ids of values that
expire, and schema.json names them all. So the schema of any earlier moment is the same one with fewer of both
(`schema_at`). Only `GrowingVocabulary.renumbered` gives ids again: it writes all that is left into another folder.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.files import make_folder, sync_folder
from data_prep.encoding.encoder import BOOLEAN_TEXTS, RowEncoder
from data_prep.encoding.fit import new_values
from data_prep.encoding.lookup_file import LOOKUP_FILE, LookupTables
from data_prep.encoding.prepared_vocabulary import open_encoder, open_vocabulary
from data_prep.encoding.vocabulary import (
    FieldVocabulary,
    ids_dtype,
    merge_lookup_tables,
    with_missing,
    write_lookup_tables,
)
from data_prep.encoding.vocabulary_file import VocabularyWriter
from data_prep.kernels.crosses import presence
from data_prep.kernels.parsed import ParsedRows
from data_prep.kernels.strings import Strings
from data_prep.options.columns import CategoricalColumn
from data_prep.prepared.data_files import all_files, data_file, write_schema
from data_prep.prepared.examples import Examples
from data_prep.prepared.expired import (
    NUMBERING_FILE,
    numbering_of_rows,
    read_expired,
    schema_at,
    union,
    with_expired,
    write_array,
)
from data_prep.prepared.schema import (
    ADDED_PREFIX,
    FIRST_VOCABULARY,
    NO_ID,
    PARQUET,
    SCHEMA_FILE,
    VOCABULARY_FILE,
    CategoricalField,
    Schema,
    read_schema,
)
from data_prep.statistics.sketch import ValueSketch
from data_prep.statistics.statistics import LogStatistics
from data_prep.statistics.value_counts import count_numbers, count_texts

SMALL_FIELD = 256  # values of a field that keep their ids however old they are
_ANY_BYTES = 1 << 62  # the counts of a part stay in memory


def added_file_name(first_id: int) -> str:
    """Return the name of the file with values that were added in place, whose ids begin with `first_id`."""
    return f"{ADDED_PREFIX}{first_id:012d}{PARQUET}"


def open_to_grow(prepared: Path, folder: Path, moment: Mapping[str, Any] | None) -> Schema:
    """Make `folder` a prepared folder whose vocabulary can grow, and return its schema.

    Its other files are links to those of `prepared`. At a `moment` (see `schema_at`) it may have grown before: what was
    added or expired after it is forgotten. None begins with the vocabulary of `prepared`.
    """
    schema = read_schema(prepared)
    if folder.resolve() != prepared.resolve():
        make_folder(folder)
        for file in all_files(schema):
            if (link := folder / file.name).is_symlink() or not link.exists():  # else it is of a vocabulary of its own
                _link(prepared / file.name, link)
        if moment is None or not (folder / SCHEMA_FILE).exists():
            write_schema(schema, folder)
    schema = read_schema(folder)
    whole = schema if moment is None else schema_at(schema, moment)
    if whole != schema:
        write_schema(whole, folder)  # before a file that it named is written again
    return whole


class GrowingVocabulary:
    """The vocabulary of a folder of `open_to_grow`: its newest `schema`, and the `encoder` of rows with labels."""

    def __init__(self, folder: Path, count_bytes: int = 0) -> None:
        """Count the occurrences of values without ids over all parts in so many bytes. 0 counts in each part alone."""
        self.folder = folder
        self.schema, self._options, _ = open_vocabulary(folder)
        self._earlier = ValueSketch(count_bytes, self._options.kernels) if count_bytes else None
        self.num_pending = 0  # values of the last part that have no id yet, if they are counted over all parts
        self.encoder: RowEncoder = open_encoder(folder, with_labels=True)
        self.expired = read_expired(folder, self.schema)  # ids without a value
        self._counts, self._num_counted_files = np.zeros(0, np.int64), 0  # see `counts_of_ids`

    @property
    def num_in_use(self) -> int:
        """Number of ids that stand for a value."""
        of_owners = {self.schema.vocabulary_of(field.name): field.num_values for field in self.schema.categorical}
        return sum(of_owners.values()) - self.schema.num_expired

    def counts(self) -> dict[str, Any]:
        """Return the arrays of the counts of values without ids, {} if each part counts alone."""
        return self._earlier.state() if self._earlier is not None else {}

    def added_counts(self) -> dict[str, Any]:
        """Return the arrays of what the last part added to the counts, which are few."""
        return self._earlier.added() if self._earlier is not None else {}

    def load_counts(self, counts: Sequence[dict[str, Any]]) -> None:
        """Load the arrays of `counts`, then those of `added_counts` part after part, or none if there are none.

        Raises ValueError for those of another size.
        """
        if counts and self._earlier is not None:
            self._earlier.load_state(**counts[0])
            for added in counts[1:]:
                self._earlier.add_again(**added)

    @property
    def columns(self) -> list[str]:
        """The names of the columns that `shares` are of: the categorical ones, then the numeric ones."""
        return [*(column.name for column in self._options.categorical_columns), *self._options.data.numeric_fields]

    def shares(self, parts: Sequence[ParsedRows], ids: np.ndarray) -> tuple[list[float], list[float]]:
        """Return the share of missing cells of each column, and that of rows whose value has no id of its own.

        `ids` [n, P] are those of all rows of `parts`, of whose positions the first of a list counts. A numeric column
        has no ids.
        """
        categorical, numeric = self._options.categorical_columns, self._options.data.numeric_fields
        num_rows, missing = max(len(ids), 1), np.zeros(len(self.columns))
        for rows in parts:
            present = [*presence(rows, categorical), *(rows.columns[name].present for name in numeric)]
            missing += [np.count_nonzero(~each) for each in present]
        unknown, _ = self.encoder.count_unknown(ids)
        return (missing / num_rows).round(4).tolist(), (unknown / num_rows).round(4).tolist()

    def add_values_of(self, parts: Sequence[ParsedRows], rows: Examples) -> tuple[int, Examples]:
        """Give ids to the values that are new and frequent enough in all rows of `parts`, which are encoded in `rows`.

        Return how many those are, and the rows with their ids. They are on disk then. Raises ValueError if a cross has
        too many values, or ids would need another dtype.
        """
        ends = np.cumsum([len(piece.labels) for piece in parts])
        ids = np.split(rows.ids, ends[:-1])
        fields = self._new_fields(parts, ids)
        num_new = sum(len(field.values) for _, field in fields)
        if num_new:
            added = self._add(fields, num_new)
            with_new = [self.encoder.ids_with(added, *piece) for piece in zip(parts, ids, strict=True)]
            rows = replace(rows, ids=np.concatenate(with_new))
        if self._earlier is not None:
            self.num_pending = self._earlier.num_noted - num_new
            self._earlier.add()
        return num_new, rows

    def _add(self, fields: Sequence[tuple[CategoricalColumn, FieldVocabulary]], num_new: int) -> LookupTables:
        """Write new values of each vocabulary, let the encoder know them, and return their search tables."""
        schema = self.schema
        if ids_dtype(schema.vocabulary_size + num_new) != schema.ids_dtype:
            raise ValueError(
                f"{schema.vocabulary_size + num_new:,} ids do not fit in {schema.ids_dtype}, which the run began with; "
                "prepare the newer log anew, and train from it"
            )
        name = added_file_name(schema.vocabulary_size)
        self._write(name, [field for _, field in fields])
        added = {field.name: field.id_ranges for _, field in fields}
        owners = [column.shares or column.name for column in self._options.categorical_columns]
        self.schema = replace(
            schema,
            categorical=tuple(
                replace(field, id_ranges=(*field.id_ranges, *added.get(owner, ())))
                for field, owner in zip(schema.categorical, owners, strict=True)
            ),
            vocabulary_size=schema.vocabulary_size + num_new,
            other_files=(*schema.other_files, data_file(self.folder, name)),
        )
        write_schema(self.schema, self.folder)
        with tempfile.TemporaryDirectory(prefix="vocabulary-") as folder:
            missing = (self.encoder.missing_id(column.is_text, column.place) for column, _ in fields)
            whole = (with_missing(field, each) for (_, field), each in zip(fields, missing, strict=True))
            tables = write_lookup_tables(whole, Path(folder) / LOOKUP_FILE)
            _ = tables.opened  # before the file is deleted
            all_tables = [*self.encoder.additions, tables]
            if len(all_tables) > 1:
                merged = Path(folder) / f"merged-{LOOKUP_FILE}"
                all_tables = [merge_lookup_tables(all_tables, merged, self.encoder.expired)]
                _ = all_tables[0].opened
            self.encoder = self.encoder.with_additions(all_tables)
        return tables

    def _new_fields(
        self, parts: Sequence[ParsedRows], ids: Sequence[NDArray[np.signedinteger]]
    ) -> list[tuple[CategoricalColumn, FieldVocabulary]]:
        """Return the new values of each vocabulary with their ids. `ids` are those of the rows of each part."""
        options, next_id = self._options, self.schema.vocabulary_size
        counted = LogStatistics(options, Path(), _ANY_BYTES)
        for rows, of_rows in zip(parts, ids, strict=True):
            unknown = self.encoder.are_unknown(of_rows)
            counted.values.add(count_numbers(rows, options, unknown))
            counted.texts.add(count_texts(rows, options, unknown))
        by_name = {field.name: field for field in self.schema.categorical}
        if self._earlier is not None:
            self._earlier.forget()  # of a part that was held aside
        fields = []
        for column in options.vocabularies:
            of_field = by_name[column.name]
            num_known = of_field.num_values - 1 - self._num_expired_of(of_field)
            new = new_values(counted, options, column, num_known, None, self._earlier)
            id_ranges = ((next_id, next_id + len(new[0])),) if len(new[0]) else ()
            fields.append((column, FieldVocabulary(column.name, of_field.oov_ids, id_ranges, *new)))
            next_id += len(new[0])
        return fields

    def can_expire(self) -> NDArray[np.bool_]:
        """Return which ids [V] have a value that may lose its id: no missing cell, no text for true or false, and none
        of a field with at most `SMALL_FIELD` values, such as a weekday, which is away for a week and costs nothing.
        """
        can = np.arange(self.schema.vocabulary_size) >= self.encoder.first_own_id
        texts = Strings.of([text.encode() for text in BOOLEAN_TEXTS])
        for column in self._options.vocabularies:
            can[self.encoder.missing_id(column.is_text, column.place)] = False
            if column.is_text:
                of_texts = self.encoder.own_ids(texts, column.place)
                can[of_texts[of_texts != NO_ID]] = False
        can[self.expired] = False
        for field in self.schema.categorical:
            of_field = [can[first:end] for first, end in field.id_ranges]
            if sum(map(np.count_nonzero, of_field)) <= SMALL_FIELD:
                for values in of_field:
                    values[:] = False
        return can

    def counts_of_ids(self) -> NDArray[np.int64]:
        """Return how often the value of each id [V] had come when it got its id, 0 for an id without a value."""
        files = self.schema.vocabulary_files
        self._counts = np.append(self._counts, np.zeros(self.schema.vocabulary_size - len(self._counts), np.int64))
        for name in files[self._num_counted_files :]:
            table = pq.read_table(self.folder / name, columns=["id", "count"])
            self._counts[table["id"].to_numpy()] = table["count"].to_numpy()
        self._num_counted_files = len(files)
        return self._counts

    def expire(self, ids: NDArray[np.int64]) -> None:
        """Let these ids [n], ascending, lose their values, which are new ones when they come again. It is on disk."""
        self.schema = with_expired(self.folder, self.schema, ids)
        write_schema(self.schema, self.folder)
        self.encoder, self.expired = self.encoder.without(ids), union(self.expired, ids)

    def renumbered(self, folder: Path) -> NDArray[np.int64]:
        """Write what is left of the vocabulary into a new `folder`, with the ids that a preparation would give it.

        They begin anew after those out of vocabulary: by field, each in its order here. The folder is as one of
        `open_to_grow`. Return the new id of each id [V], NO_ID for those without a value.
        """
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        schema, (_, _, base) = self.schema, open_vocabulary(self.folder, self.schema)
        first = min(start for field in schema.categorical for start, _ in field.id_ranges)
        new_ids, next_id = np.full(schema.vocabulary_size, NO_ID, np.int64), first
        new_ids[:first] = np.arange(first)
        writer, ranges = VocabularyWriter(folder / VOCABULARY_FILE, self._options.categorical_columns), {}
        for field in base.live_fields():
            ranges[field.name] = ((next_id, next_id + len(field.values)),)
            new_ids[field.value_ids] = np.arange(*ranges[field.name][0])
            next_id += len(field.values)
            writer.add(replace(field, id_ranges=ranges[field.name], own_ids=None))
        writer.finish()
        sync_folder(folder / VOCABULARY_FILE)
        of_rows = numbering_of_rows(self.folder, schema)
        of_rows = np.arange(schema.vocabulary_size + 1) if of_rows is None else of_rows
        write_array(folder / NUMBERING_FILE, new_ids[of_rows[:-1]])
        own_files = {*schema.vocabulary_files, NUMBERING_FILE, *(file.name for file in schema.expired_files)}
        others = tuple(file for file in schema.other_files if file.name not in own_files)
        for file in (*others, *(file for split in schema.splits.values() for file in split.files)):
            _link(self.folder / file.name, folder / file.name)
        first_file = next(file for file in schema.other_files if file.name == VOCABULARY_FILE)
        renumbered = replace(
            schema,
            categorical=tuple(
                replace(field, id_ranges=ranges[schema.vocabulary_of(field.name)]) for field in schema.categorical
            ),
            vocabulary_size=next_id,
            other_files=(*others, *(data_file(folder, name) for name in (VOCABULARY_FILE, NUMBERING_FILE))),
            source={FIRST_VOCABULARY: first_file.checksum, **schema.source},
        )
        write_schema(renumbered, folder)
        return new_ids

    def _num_expired_of(self, field: CategoricalField) -> int:
        ends = np.searchsorted(self.expired, np.array(field.id_ranges).reshape(-1, 2))
        return int((ends[:, 1] - ends[:, 0]).sum())

    def _write(self, name: str, fields: Sequence[FieldVocabulary]) -> None:
        partial_path = self.folder / f".{name}.partial"
        writer = VocabularyWriter(partial_path, self._options.categorical_columns)
        for field in fields:
            if len(field.values):
                writer.add(field)
        writer.finish()
        sync_folder(partial_path)
        partial_path.replace(self.folder / name)
        sync_folder(self.folder)


def _link(target: Path, link: Path) -> None:
    """Make a symbolic link, which appears whole or not at all."""
    target = target.resolve()
    if not link.is_symlink() or link.readlink() != target:
        make_folder(link.parent)
        beside = link.with_name(f".{link.name}.partial")
        beside.unlink(missing_ok=True)
        beside.symlink_to(target)
        beside.replace(link)
