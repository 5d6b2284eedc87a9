"""All rows of a split of a prepared folder, in memory."""

from __future__ import annotations

from pathlib import Path

from app.batches import read_batches, written_order
from data_prep.prepared.rows import Rows, concatenate
from data_prep.prepared.schema import Schema

READ_ROWS = 100_000


def read_rows(folder: Path, schema: Schema, split: str) -> Rows:
    """All rows of a split, in the order of the folder."""
    return concatenate(list(read_batches(folder, schema, split, written_order(schema, split), READ_ROWS)))
