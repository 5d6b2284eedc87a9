"""Open the vocabulary of a prepared folder as an encoder, and write it as search tables for a bundle."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.base import BaseVocabulary, read_base_vocabulary
from data_prep.encoding.encoder import EXPIRED_FILE, NUM_EXPIRED, RowEncoder, expired_of, tables_of
from data_prep.encoding.lookup_file import LOOKUP_FILE, LookupTables
from data_prep.encoding.vocabulary import (
    FieldVocabulary,
    added_values,
    checksum_of_values,
    merge_lookup_tables,
    with_missing,
    without,
    write_lookup_tables,
)
from data_prep.options.options_file import read_recorded
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import SCHEMA_FILE, CategoricalField, Schema, read_schema


def open_encoder(prepared: Path, with_labels: bool = False, schema: Schema | None = None) -> RowEncoder:
    """Return an encoder with the vocabulary and the numeric transforms of a prepared folder, for use in this process.

    By default rows are read for scoring and need no label. With `with_labels` they are read as in the preparation of
    the folder. `schema` is an earlier schema of the folder (see `schema_at`); by default the newest one is used. Raise
    FileNotFoundError if the folder is not a prepared folder, and ValueError if its schema.json is not readable.
    """
    schema, _, base = open_vocabulary(prepared, schema)
    encoding = base.encoding if with_labels else base.encoding.without_label()
    with tempfile.TemporaryDirectory(prefix="vocabulary-") as folder:
        lookup = write_lookup_tables(base.live_fields(), Path(folder) / LOOKUP_FILE)
        _ = lookup.opened  # Map the file before it is deleted. The mapping stays valid.
    return RowEncoder(schema.numeric, lookup, schema.ids_dtype, encoding)


def open_vocabulary(prepared: Path, schema: Schema | None = None) -> tuple[Schema, PrepareOptions, BaseVocabulary]:
    """Return the schema, the options and the vocabulary of a prepared folder.

    `schema` and errors are as in `open_encoder`.
    """
    schema = schema or read_schema(prepared)
    options = read_recorded(schema.options, str(prepared / SCHEMA_FILE))
    return schema, options, read_base_vocabulary(prepared, options, schema=schema)


def write_lookup(
    base: BaseVocabulary, folder: Path, known: Sequence[CategoricalField] = (), values: str = ""
) -> dict[str, Any]:
    """Write the search tables of a vocabulary into `folder`. Return a description for `open_lookup` as plain values.

    `known` are the fields of an earlier vocabulary, and `values` is the checksum of its values. If they are given, the
    tables contain only the values that were added since. Raise ValueError if the vocabulary does not begin with those
    values.
    """
    columns = zip(known, base.columns, strict=True) if known else ()
    known = [field for field, column in columns if not column.shares]
    another = f"the vocabulary of {base.folder} is another one than the parent's with additions; export a whole bundle"
    of_known = of_all = 0

    def fields() -> Iterator[FieldVocabulary]:
        nonlocal of_known, of_all
        for i, field in enumerate(base.fields()):
            of_all += checksum_of_values(field)
            if known:
                of_known += checksum_of_values(field, num_ranges := len(known[i].id_ranges))
                if field.id_ranges[:num_ranges] != known[i].id_ranges:
                    raise ValueError(another)
            yield without(added_values(field, known[i]) if known else field, base.expired)

    lookup = write_lookup_tables(fields(), folder / LOOKUP_FILE)
    if known and _digits(of_known) != values:
        raise ValueError(another)
    return _description_of(lookup) | {"values": _digits(of_all)}


def write_additions(base: BaseVocabulary, folder: Path, known: RowEncoder, num_ids: int, values: str) -> dict[str, Any]:
    """Write the search tables of the values with ids from `num_ids` on, and return a description as `write_lookup`.

    Only the files with these values are read, so this takes less time than `write_lookup`. `known` is an encoder with
    the first `num_ids` ids, and `values` is the checksum of their values, which is not compared with the files. Raise
    ValueError if the files from `num_ids` on do not contain exactly the remaining ids.
    """
    of_all, num_added = int(values, 16), 0

    def fields() -> Iterator[FieldVocabulary]:
        nonlocal of_all, num_added
        columns = [column for column in base.columns if not column.shares]
        for field, column in zip(base.fields(num_ids), columns, strict=True):
            of_all += checksum_of_values(field)
            num_added += len(field.values)
            yield without(with_missing(field, known.missing_id(column.is_text, column.place)), base.expired)

    lookup = write_lookup_tables(fields(), folder / LOOKUP_FILE)
    if num_ids + num_added != base.schema.vocabulary_size:
        raise ValueError(
            f"{num_added:,} values were added to the vocabulary of {base.folder} after {num_ids:,} ids, expected "
            f"{base.schema.vocabulary_size - num_ids:,}; export a whole bundle"
        )
    return _description_of(lookup) | {"values": _digits(of_all)}


def merge_lookups(chain: Sequence[tuple[Path, dict[str, Any]]], folder: Path) -> dict[str, Any]:
    """Merge the search tables of a vocabulary and its additions into one set of tables in `folder`.

    `chain` holds folders and descriptions, oldest first. Return the description of the merged tables.
    """
    merged = merge_lookup_tables([tables_of(*link) for link in chain], folder / LOOKUP_FILE, expired_of(chain))
    header = {key: value for key, value in chain[-1][1].items() if key != NUM_EXPIRED}
    return {**header, **_description_of(merged)}


def write_lookup_expired(folder: Path, expired: NDArray[np.int64]) -> dict[str, Any]:
    """Write the expired ids of a vocabulary into `folder`, if there are any.

    Return the entry for the description that `open_lookup` reads.
    """
    if not len(expired):
        return {}
    np.save(folder / EXPIRED_FILE, expired)
    return {NUM_EXPIRED: len(expired)}


def _digits(checksum: int) -> str:
    return f"{checksum % 2**64:016x}"


def _description_of(lookup: LookupTables) -> dict[str, Any]:
    """Return the layouts of search tables as plain values, for the description that `open_lookup` reads."""
    return {"tables": [dataclasses.asdict(layout) for layout in lookup.layouts]}
