"""Encode raw lines exactly as a finished preparation did, with its vocabulary; without MindSpore."""

from __future__ import annotations

import tempfile
from pathlib import Path

from common import settings
from data_prep.encoding.given import read_given_vocabulary
from data_prep.encoding.lookup_file import LookupTablesWriter
from data_prep.encoding.row_encoder import RowEncoder
from data_prep.kernels.rows import Chunk, ParsedChunk
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.rows import Rows
from data_prep.prepared.schema import SCHEMA_FILE, read_schema

__all__ = ["Chunk", "ParsedChunk", "RowEncoder", "Rows", "open_encoder"]


def open_encoder(prepared: Path) -> RowEncoder:
    """Return an encoder with the vocabulary and the numeric transforms of a prepared folder, for use in this process.

    Raises FileNotFoundError where the folder is not a prepared one, ValueError where its schema.json is not readable.
    """
    schema = read_schema(prepared)
    options = settings.merge(PrepareOptions(), schema.options, where=str(prepared / SCHEMA_FILE))
    given = read_given_vocabulary(prepared, options)
    with tempfile.TemporaryDirectory(prefix="vocabulary-") as folder:
        tables = LookupTablesWriter(Path(folder))
        for field in given.fields():
            tables.add(field)
        lookup = tables.finish().mapped()
    return RowEncoder(schema.numeric, lookup, schema.ids_dtype, options)
