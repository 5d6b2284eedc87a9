"""Encode raw lines exactly as a finished preparation did, with its vocabulary; without MindSpore."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from common import settings
from data_prep.encoding.given import GivenVocabulary, read_given_vocabulary
from data_prep.encoding.lookup_file import LookupFile, LookupTables, LookupTablesWriter, Place, TextLookupFile
from data_prep.encoding.row_encoder import RowEncoder
from data_prep.kernels.rows import Chunk, ParsedChunk
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.rows import Rows
from data_prep.prepared.schema import SCHEMA_FILE, Schema, read_schema

__all__ = ["Chunk", "GivenVocabulary", "ParsedChunk", "RowEncoder", "Rows", "open_encoder"]


def open_encoder(prepared: Path) -> RowEncoder:
    """Return an encoder with the vocabulary and the numeric transforms of a prepared folder, for use in this process.

    Raises FileNotFoundError where the folder is not a prepared one, ValueError where its schema.json is not readable.
    """
    schema, options, given = open_vocabulary(prepared)
    with tempfile.TemporaryDirectory(prefix="vocabulary-") as folder:
        lookup = _write_lookup(given, Path(folder)).mapped()
    return RowEncoder(schema.numeric, lookup, schema.ids_dtype, options)


def open_vocabulary(prepared: Path) -> tuple[Schema, PrepareOptions, GivenVocabulary]:
    """Return the schema, the options and the vocabulary of a prepared folder. Raises as `open_encoder`."""
    schema = read_schema(prepared)
    options = options_of(schema, prepared)
    return schema, options, read_given_vocabulary(prepared, options)


def options_of(schema: Schema, folder: Path) -> PrepareOptions:
    """Return the options that a folder with this schema was prepared with."""
    return settings.merge(PrepareOptions(), schema.options, where=str(folder / SCHEMA_FILE))


def write_lookup(given: GivenVocabulary, folder: Path) -> dict[str, Any]:
    """Write the vocabulary as it is searched into `folder`; return what `open_lookup` needs, as plain values."""
    lookup = _write_lookup(given, folder)
    description = dataclasses.asdict(lookup)
    for file in (description["numbers"], *description["texts"]):
        file["path"] = file["path"].name
    return description


def open_lookup(description: dict[str, Any], folder: Path, schema: Schema, options: PrepareOptions) -> RowEncoder:
    """Return an encoder over the files of `write_lookup`, mapped."""
    numbers = description["numbers"]
    places = tuple(Place(**{**place, "numbers": tuple(place["numbers"])}) for place in numbers["places"])
    texts = tuple(
        TextLookupFile(folder / file["path"], file["num_strings"], tuple(file["numbers"]))
        for file in description["texts"]
    )
    lookup = LookupTables(LookupFile(folder / numbers["path"], places), texts)
    return RowEncoder(schema.numeric, lookup.mapped(), schema.ids_dtype, options)


def _write_lookup(given: GivenVocabulary, folder: Path) -> LookupTables:
    tables = LookupTablesWriter(folder)
    for field in given.fields():
        tables.add(field)
    return tables.finish()
