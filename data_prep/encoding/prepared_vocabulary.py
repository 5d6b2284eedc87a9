"""The vocabulary of a prepared folder: as an encoder, and as search tables for a bundle."""

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

    Its rows are to be scored, and need no label, or `with_labels` they are read as the folder's were. `schema` is one
    that the folder had (`Schema.at`), by default the newest.
    Raises FileNotFoundError if the folder is not a prepared one, ValueError if its schema.json is not readable.
    """
    schema, _, base = open_vocabulary(prepared, schema)
    encoding = base.encoding if with_labels else base.encoding.without_label()
    with tempfile.TemporaryDirectory(prefix="vocabulary-") as folder:
        lookup = write_lookup_tables(base.live_fields(), Path(folder) / LOOKUP_FILE)
        _ = lookup.opened  # before the file is deleted
    return RowEncoder(schema.numeric, lookup, schema.ids_dtype, encoding)


def open_vocabulary(prepared: Path, schema: Schema | None = None) -> tuple[Schema, PrepareOptions, BaseVocabulary]:
    """Return the schema, the options and the vocabulary of a prepared folder. See `open_encoder`."""
    schema = schema or read_schema(prepared)
    options = read_recorded(schema.options, str(prepared / SCHEMA_FILE))
    return schema, options, read_base_vocabulary(prepared, options, schema=schema)


def write_lookup(
    base: BaseVocabulary, folder: Path, known: Sequence[CategoricalField] = (), values: str = ""
) -> dict[str, Any]:
    """Write a vocabulary's search tables into `folder`, and return what `open_lookup` needs, as plain values.

    If the `known` fields and the checksum of their `values` are passed, the tables hold only the values added to
    them. Raises ValueError if the vocabulary is not those values and additions.
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
    """Do what `write_lookup` does with what was added in place to the first `num_ids` ids, and read nothing else.

    They are those of `known`, and `values` is their checksum, which is not compared. Raises ValueError if these ids
    are not what the vocabulary's first files have.
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
    """Write the tables of a vocabulary and its additions as one. `chain` has folders and descriptions, oldest first."""
    merged = merge_lookup_tables([tables_of(*link) for link in chain], folder / LOOKUP_FILE, expired_of(chain))
    header = {key: value for key, value in chain[-1][1].items() if key != NUM_EXPIRED}
    return {**header, **_description_of(merged)}


def write_lookup_expired(folder: Path, expired: NDArray[np.int64]) -> dict[str, Any]:
    """Write the ids of a vocabulary that lost their values, if any, and return what `open_lookup` needs to know."""
    if not len(expired):
        return {}
    np.save(folder / EXPIRED_FILE, expired)
    return {NUM_EXPIRED: len(expired)}


def _digits(checksum: int) -> str:
    return f"{checksum % 2**64:016x}"


def _description_of(lookup: LookupTables) -> dict[str, Any]:
    """Return what `open_lookup` needs to know of search tables, as plain values."""
    return {"tables": [dataclasses.asdict(layout) for layout in lookup.layouts]}
