"""Add new values to a vocabulary during online training, which trains on one part of a log after another.

A part is, for example, one hour of the log. Values get ids by the rules of `prepare --extend`. Files of values and of
expired ids are never rewritten. The new values of each part are written to a new file, and so are the ids that expire.
schema.json lists all these files. An earlier state of schema.json lists fewer files, and therefore describes the
vocabulary of its time (see `schema_at`). Expired ids are used again only after `GrowingVocabulary.renumbered`, which
writes the values that have not expired into another folder with new ids.
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

from common.files import make_folder, new_file, sync_folder
from data_prep.encoding import vocabulary
from data_prep.encoding.encoder import BOOLEAN_TEXTS, LOOKUP_FILE, LookupTables, RowEncoder
from data_prep.encoding.fit import new_values
from data_prep.encoding.prepared_vocabulary import open_encoder, open_vocabulary
from data_prep.encoding.vocabulary import FieldVocabulary, VocabularyWriter
from data_prep.kernels.parsed import ParsedRows, presence
from data_prep.kernels.strings import Strings
from data_prep.options.columns import CategoricalColumn
from data_prep.prepared import data_files
from data_prep.prepared.examples import Examples
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
from data_prep.statistics.statistics import LogStatistics
from data_prep.statistics.value_counts import ValueSketch, count_numbers, count_texts

SMALL_FIELD = 256  # If a field has at most this many values, none of them expires, that is, loses its id.
MOST_COUNT = 2**32 - 1  # `counts_of_ids` returns this number for values with larger counts.
# Limit for the memory of the counts of values. It is so large that all counts of one part of the log stay in memory and
# none are written to disk.
_ANY_BYTES = 1 << 62


def added_file_name(first_id: int) -> str:
    """Return the name of a file of values that were added to a vocabulary.

    `first_id` is the smallest id of these values.
    """
    return f"{ADDED_PREFIX}{first_id:012d}{PARQUET}"


def open_to_grow(prepared: Path, folder: Path, moment: Mapping[str, Any] | None) -> Schema:
    """Turn `folder` into a copy of the folder `prepared` whose vocabulary can grow. Return the schema of `folder`.

    All files except schema.json are links to the files of `prepared`. If `moment` is None, the vocabulary becomes that
    of `prepared`. Otherwise `moment` is what a checkpoint records about the vocabulary of its time (see `schema_at`),
    and the vocabulary of `folder`, which may have grown since, is reset to it: values that were added later lose their
    ids, and values that expired later get their ids back.
    """
    schema = read_schema(prepared)
    if folder.resolve() != prepared.resolve():
        make_folder(folder)
        for file in data_files.all_files(schema):
            # If `folder` has a file (and no link) with the name of a file of `prepared`, the ids of `folder` were
            # renumbered, and the file belongs to the renumbered vocabulary. So it is kept.
            if (link := folder / file.name).is_symlink() or not link.exists():
                _link(prepared / file.name, link)
        if moment is None or not (folder / SCHEMA_FILE).exists():
            data_files.write_schema(schema, folder)
    schema = read_schema(folder)
    whole = schema if moment is None else data_files.schema_at(schema, moment)
    if whole != schema:
        # Write the schema before anything else, because new values may later be written to files that the old schema
        # lists.
        data_files.write_schema(whole, folder)
    return whole


class GrowingVocabulary:
    """The vocabulary in a folder that `open_to_grow` made. Values can be added to it, and its values can expire.

    `schema` is always the newest schema of the folder. `encoder` always encodes rows with labels by the newest
    vocabulary.
    """

    def __init__(self, folder: Path, count_bytes: int = 0) -> None:
        """Open the vocabulary in `folder`.

        If `count_bytes` is above 0, a sketch (an approximate counter) of that many bytes counts how often values
        without ids occur in all parts of the log. If it is 0, a value must be frequent enough within a single part to
        get an id.
        """
        self.folder = folder
        self.schema, self._options, _ = open_vocabulary(folder)
        self._earlier = ValueSketch(count_bytes, self._options.kernels) if count_bytes else None
        # Number of values in the last part of the log that did not get an id yet. The number stays 0 if values are not
        # counted across parts by a sketch.
        self.num_pending = 0
        self.encoder: RowEncoder = open_encoder(folder, with_labels=True)
        self.expired = data_files.read_expired(folder, self.schema)  # Expired ids in ascending order.
        # Result of the method `counts_of_ids`, or None before its first call.
        self._counts: NDArray[np.uint32] | None = None

    @property
    def num_in_use(self) -> int:
        """Number of ids that are in use, because their values have not expired."""
        of_owners = {self.schema.vocabulary_of(field.name): field.num_values for field in self.schema.categorical}
        return sum(of_owners.values()) - self.schema.num_expired

    def counts(self) -> dict[str, Any]:
        """Return the counts in the sketch as arrays by name, from which `load_counts` restores the sketch.

        The sketch counts, approximately, how often values without ids have occurred. Return {} if the values of each
        part are counted alone.
        """
        return self._earlier.state() if self._earlier is not None else {}

    def added_counts(self) -> dict[str, Any]:
        """Return the counts that the log's last part has added to the sketch, as arrays by name, for `load_counts`.

        These arrays are smaller than those of `counts`. Return {} if the values of each part are counted alone.
        """
        return self._earlier.added() if self._earlier is not None else {}

    def load_counts(self, counts: Sequence[dict[str, Any]]) -> None:
        """Restore the sketch, the approximate counter of values without ids, from stored counts.

        `counts` has a result of `counts`, followed by later results of `added_counts` in order. If it is empty, the
        sketch stays unchanged. Raise ValueError if the stored sketch has another size.
        """
        if counts and self._earlier is not None:
            self._earlier.load_state(**counts[0])
            for added in counts[1:]:
                self._earlier.add_again(**added)

    @property
    def columns(self) -> list[str]:
        """Names of the columns whose fractions of missing cells `shares` returns: categorical, then numeric columns."""
        return [*(column.name for column in self._options.categorical_columns), *self._options.data.numeric_fields]

    def shares(self, parts: Sequence[ParsedRows], ids: np.ndarray) -> tuple[list[float], list[float]]:
        """Return the fractions of missing cells and of out-of-vocabulary values in the rows of `parts`.

        `ids` [n, P] are the ids of all rows of `parts`. If a column is a list, only the first value of each list
        counts. The first result has an element for each of `columns`, the second one for each categorical column.
        Fractions are rounded to four digits.
        """
        categorical, numeric = self._options.categorical_columns, self._options.data.numeric_fields
        num_rows, missing = max(len(ids), 1), np.zeros(len(self.columns))
        for rows in parts:
            present = [*presence(rows, categorical), *(rows.columns[name].present for name in numeric)]
            missing += [np.count_nonzero(~each) for each in present]
        unknown, _ = self.encoder.count_unknown(ids)
        return (missing / num_rows).round(4).tolist(), (unknown / num_rows).round(4).tolist()

    def add_values_of(self, parts: Sequence[ParsedRows], rows: Examples) -> tuple[int, Examples]:
        """Give ids to those values without ids that are frequent enough in the rows of `parts`.

        `rows` are the same rows, already encoded. Return the number of values that got an id, and a copy of `rows` with
        the new ids. The values are on disk when the method returns. Raise ValueError if a cross has too many values, or
        if the new ids do not fit in the dtype of the existing ids.
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
        """Write new values with their ids to a file, and add them to the schema and to the encoder.

        `fields` has the new values of each vocabulary, and `num_new` is their number in all. Return search tables that
        contain only the new values.
        """
        schema = self.schema
        if vocabulary.ids_dtype(schema.vocabulary_size + num_new) != schema.ids_dtype:
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
            other_files=(*schema.other_files, data_files.data_file(self.folder, name)),
        )
        data_files.write_schema(self.schema, self.folder)
        if self._counts is not None:
            self._counts = np.append(self._counts, np.zeros(num_new, np.uint32))
            for _, field in fields:
                self._counts[field.value_ids] = np.minimum(field.counts, MOST_COUNT)
        with tempfile.TemporaryDirectory(prefix="vocabulary-") as folder:
            missing = (self.encoder.missing_id(column.is_text, column.place) for column, _ in fields)
            whole = (vocabulary.with_missing(field, each) for (_, field), each in zip(fields, missing, strict=True))
            tables = vocabulary.write_lookup_tables(whole, Path(folder) / LOOKUP_FILE)
            # `opened` maps the temporary file into memory, so the tables can be used after the file is deleted.
            _ = tables.opened
            all_tables = [*self.encoder.additions, tables]
            if len(all_tables) > 1:
                merged = Path(folder) / f"merged-{LOOKUP_FILE}"
                all_tables = [vocabulary.merge_lookup_tables(all_tables, merged, self.encoder.expired)]
                _ = all_tables[0].opened
            self.encoder = replace(self.encoder, additions=all_tables)
        return tables

    def _new_fields(
        self, parts: Sequence[ParsedRows], ids: Sequence[NDArray[np.signedinteger]]
    ) -> list[tuple[CategoricalColumn, FieldVocabulary]]:
        """For each vocabulary, return its column and the values that get an id now, with their new ids.

        The values come from the rows of `parts`. `ids` are, for each part, the ids that its rows have had so far.
        """
        options, next_id = self._options, self.schema.vocabulary_size
        counted = LogStatistics(options, Path(), _ANY_BYTES)
        for rows, of_rows in zip(parts, ids, strict=True):
            unknown = self.encoder.are_unknown(of_rows) & rows.counting[:, None]
            counted.values.add(count_numbers(rows, options, unknown))
            counted.texts.add(count_texts(rows, options, unknown))
        by_name = {field.name: field for field in self.schema.categorical}
        if self._earlier is not None:
            # The sketch may still hold counts that its method `note` recorded for an earlier part of the log that was
            # then skipped. These counts are dropped.
            self._earlier.forget()
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
        """Return a mask of all V ids of the vocabulary that is True for the ids that may expire.

        The ids of missing cells and of the texts for true and false never expire. If at most `SMALL_FIELD` of the other
        values of a field are left, none of them expires: a weekday, for example, is absent for six days, and keeping
        its id costs nothing.
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

    def counts_of_ids(self) -> NDArray[np.uint32]:
        """Return, for each id [V], how often its value had occurred in the log when the value got the id.

        The count of an id without a value is 0. Counts above MOST_COUNT are returned as MOST_COUNT.
        """
        if self._counts is None:
            self._counts = np.zeros(self.schema.vocabulary_size, np.uint32)
            for name in self.schema.vocabulary_files:
                # The file is read without pyarrow's threads, which would keep memory, and not with `read_table`, which
                # would load the module pyarrow.dataset and keep its memory.
                with pq.ParquetFile(self.folder / name) as file:
                    for group in range(file.num_row_groups):
                        rows = file.read_row_group(group, ["id", "count"], use_threads=False)
                        self._counts[rows["id"].to_numpy()] = np.minimum(rows["count"].to_numpy(), MOST_COUNT)
        return self._counts

    def expire(self, ids: NDArray[np.int64]) -> None:
        """Mark `ids` [n], which must be in ascending order, as expired, in memory and on disk.

        If the value of an expired id occurs again later, it is treated as a new value and gets another id.
        """
        self.schema = data_files.with_expired(self.folder, self.schema, ids)
        data_files.write_schema(self.schema, self.folder)
        self.encoder, self.expired = self.encoder.without(ids), data_files.union(self.expired, ids)

    def renumbered(self, folder: Path) -> NDArray[np.int64]:
        """Write the values that have not expired into the new folder `folder`, with new, consecutive ids.

        The new ids begin after the out-of-vocabulary ids and run field by field. Within a field, the order of the
        values stays the same. The new folder has all files that `open_to_grow` makes. Return an array [V] with the new
        id of each old id, or NO_ID for an expired one.
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
        of_rows = data_files.numbering_of_rows(self.folder, schema)
        of_rows = np.arange(schema.vocabulary_size + 1) if of_rows is None else of_rows
        data_files.write_array(folder / data_files.NUMBERING_FILE, new_ids[of_rows[:-1]])
        own_files = {*schema.vocabulary_files, data_files.NUMBERING_FILE, *(file.name for file in schema.expired_files)}
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
            other_files=(
                *others,
                *(data_files.data_file(folder, name) for name in (VOCABULARY_FILE, data_files.NUMBERING_FILE)),
            ),
            source={FIRST_VOCABULARY: first_file.checksum, **schema.source},
        )
        data_files.write_schema(renumbered, folder)
        return new_ids

    def _num_expired_of(self, field: CategoricalField) -> int:
        ends = np.searchsorted(self.expired, np.array(field.id_ranges).reshape(-1, 2))
        return int((ends[:, 1] - ends[:, 0]).sum())

    def _write(self, name: str, fields: Sequence[FieldVocabulary]) -> None:
        with new_file(self.folder / name, lone_writer=True) as partial_path:
            writer = VocabularyWriter(partial_path, self._options.categorical_columns)
            for field in fields:
                if len(field.values):
                    writer.add(field)
            writer.finish()


def _link(target: Path, link: Path) -> None:
    """Create the symbolic link `link` to `target` atomically. If `link` exists already, it is replaced."""
    target = target.resolve()
    if not link.is_symlink() or link.readlink() != target:
        make_folder(link.parent)
        beside = link.with_name(f".{link.name}.partial")
        beside.unlink(missing_ok=True)
        beside.symlink_to(target)
        beside.replace(link)
