"""A vocabulary in use that takes the new values of a log's parts, which get ids as `prepare --extend` gives them.

What is there is not written again: each part's values are a file beside those before, and schema.json names them all.
So the schema of any earlier moment is the same one with fewer ids (`Schema.with_ids`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.files import make_folder, sync_folder
from data_prep.encoding.encoder import RowEncoder
from data_prep.encoding.fit import new_values
from data_prep.encoding.lookup_file import LOOKUP_FILE
from data_prep.encoding.prepared_vocabulary import open_encoder, open_vocabulary
from data_prep.encoding.vocabulary import FieldVocabulary, ids_dtype, with_missing, write_lookup_tables
from data_prep.encoding.vocabulary_file import VocabularyWriter
from data_prep.kernels.crosses import presence
from data_prep.kernels.parsed import ParsedRows
from data_prep.kernels.strings import Strings
from data_prep.options.columns import CategoricalColumn
from data_prep.prepared.data_files import data_file, write_schema
from data_prep.prepared.schema import SCHEMA_FILE, Schema, added_file_name, read_schema
from data_prep.statistics.sketch import ValueSketch
from data_prep.statistics.statistics import LogStatistics
from data_prep.statistics.value_counts import count_numbers, count_texts

_ANY_BYTES = 1 << 62  # the counts of a part stay in memory


def open_to_grow(prepared: Path, folder: Path, vocabulary_size: int | None) -> Schema:
    """Make `folder` a prepared folder whose vocabulary can grow, and return its schema.

    Its other files are links to those of `prepared`. With a `vocabulary_size` it may have grown before: what was added
    after so many ids is forgotten. None begins with the vocabulary of `prepared`.
    """
    schema = read_schema(prepared)
    if folder.resolve() != prepared.resolve():
        make_folder(folder)
        for file in schema.all_files():
            _link(prepared / file.name, folder / file.name)
        if vocabulary_size is None or not (folder / SCHEMA_FILE).exists():
            write_schema(schema, folder)
    schema = read_schema(folder)
    kept = schema if vocabulary_size is None else schema.with_ids(vocabulary_size)
    if kept != schema:
        write_schema(kept, folder)  # before a file that it named is written again
    return kept


class GrowingVocabulary:
    """The vocabulary of a folder of `open_to_grow`: its newest `schema`, and the `encoder` of rows with labels."""

    def __init__(self, folder: Path, count_bytes: int = 0) -> None:
        """Count the occurrences of values without ids over all parts in so many bytes. 0 counts in each part alone."""
        self.folder, self._earlier = folder, ValueSketch(count_bytes) if count_bytes else None
        self.num_pending = 0  # values of the last part that have no id yet, if they are counted over all parts
        self.schema, self._options, _ = open_vocabulary(folder)
        self.encoder: RowEncoder = open_encoder(folder, with_labels=True)

    @property
    def num_in_use(self) -> int:
        """Number of ids that stand for a value."""
        of_owners = {self.schema.vocabulary_of(field.name): field.num_values for field in self.schema.categorical}
        return sum(of_owners.values())

    def counts(self) -> dict[str, Any]:
        """Return the arrays of the counts of values without ids, {} if each part counts alone."""
        return self._earlier.state() if self._earlier is not None else {}

    def load_counts(self, counts: dict[str, Any]) -> None:
        """Go on with the arrays of `counts`, {} for none. Raises ValueError for those of another size."""
        if counts and self._earlier is not None:
            self._earlier.load_state(**counts)

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
        ends = np.cumsum([field.max_length for field in self.schema.categorical])
        firsts = ids[:, ends - [field.max_length for field in self.schema.categorical]]
        low, high = np.array([field.oov_ids for field in self.schema.categorical]).reshape(-1, 2).T
        unknown = ((firsts >= low) & (firsts < high)).sum(axis=0)
        return (missing / num_rows).round(4).tolist(), (unknown / num_rows).round(4).tolist()

    def add_values_of(self, parts: Sequence[ParsedRows]) -> int:
        """Give ids to the values that are new and frequent enough in all rows of `parts`. Return how many those are.

        They are on disk then. Raises ValueError if a cross has too many values, or ids would need another dtype.
        """
        fields = self._new_fields(parts)
        num_new = sum(len(field.values) for _, field in fields)
        if num_new:
            self._add(fields, num_new)
        if self._earlier is not None:
            self.num_pending = self._earlier.num_noted - num_new
            self._earlier.add()
        return num_new

    def _add(self, fields: Sequence[tuple[CategoricalColumn, FieldVocabulary]], num_new: int) -> None:
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
            self.encoder = self.encoder.with_added(tables, Path(folder))

    def _new_fields(self, parts: Sequence[ParsedRows]) -> list[tuple[CategoricalColumn, FieldVocabulary]]:
        """Return the new values of each vocabulary with their ids."""
        options, next_id = self._options, self.schema.vocabulary_size
        counted = LogStatistics(options, Path(), _ANY_BYTES)
        for rows in parts:
            all_rows = np.ones(len(rows.labels), np.bool_)
            counted.values.add(count_numbers(rows, options, all_rows))
            counted.texts.add(count_texts(rows, options, all_rows))
        known = {field.name: field for field in self.schema.categorical}
        if self._earlier is not None:
            self._earlier.forget()  # of a part that was held aside
        fields = []
        for column in options.vocabularies:
            of_field, is_known = known[column.name], partial(self._is_known, column.place)
            new = new_values(counted, options, column, of_field.num_values - 1, is_known, self._earlier)
            id_ranges = ((next_id, next_id + len(new[0])),) if len(new[0]) else ()
            fields.append((column, FieldVocabulary(column.name, of_field.oov_ids, id_ranges, *new)))
            next_id += len(new[0])
        return fields

    def _is_known(self, place: int, values: np.ndarray | Strings) -> np.ndarray:
        return self.encoder.knows(values, place)

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
