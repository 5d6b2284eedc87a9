"""All rows of a split of a prepared folder, in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.batches import Batch, read_batches, written_order
from data_prep.prepared.schema import Schema

READ_ROWS = 100_000


def read_rows(folder: Path, schema: Schema, split: str) -> Batch:
    """All rows of a split, in the order of the folder."""
    batches = list(read_batches(folder, schema, split, written_order(schema, split), READ_ROWS))
    return Batch(
        np.concatenate([batch.ids for batch in batches]),
        np.concatenate([batch.numeric for batch in batches]),
        np.concatenate([batch.labels for batch in batches]),
    )
