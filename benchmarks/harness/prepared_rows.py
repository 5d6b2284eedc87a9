"""Read all rows of a prepared folder's split into memory, in the order written."""

from __future__ import annotations

from pathlib import Path

from app.batches import read_batches, written_order
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.schema import Schema

READ_ROWS = 100_000


def read_rows(folder: Path, schema: Schema, split: str) -> Examples:
    return concatenate(list(read_batches(folder, schema, split, written_order(schema, split), READ_ROWS)))
