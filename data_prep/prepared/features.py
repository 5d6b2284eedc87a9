"""Turn rows of a prepared folder into features of a logistic regression: numeric columns and one-hot ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.prepared.data_files import block_sizes
from data_prep.prepared.examples import Examples, position_weights
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Schema

# Factor of numeric columns. Logarithms of counts reach 16, and without it the solver takes ten times as long.
NUMERIC_SCALE = 0.2


def read_spread(folder: Path, schema: Schema, split: str, max_rows: int | None = None) -> Iterator[Examples]:
    """Yield the blocks of a split. With `max_rows`, yield blocks that are spread evenly and have about so many rows.

    Rows of weight 0 are left out.
    """
    sizes = np.array(block_sizes(schema, split))
    num_blocks = len(sizes)
    if max_rows is not None and sizes.sum() > max_rows:
        num_blocks = max(1, int(max_rows / sizes.mean()))
    numbers = np.unique(np.linspace(0, len(sizes) - 1, num_blocks).astype(int))
    for rows in read_blocks(folder, schema, split, numbers.tolist()):
        yield rows if rows.weights is None else rows.take(rows.weights > 0)


def one_hot(rows: Examples, schema: Schema) -> Any:
    """Return sparse features [rows, N + V]: the scaled numeric columns, and the one-hot ids.

    In a list that is summed, each value counts 1. In a list that is averaged, it counts 1 / (number of values).
    """
    from scipy import sparse

    (num_rows, num_numeric), num_positions = rows.numeric.shape, rows.ids.shape[1]
    width, num_columns = num_numeric + num_positions, num_numeric + schema.vocabulary_size
    columns = np.empty((num_rows, width), np.int32 if num_columns < 2**31 else np.int64)
    columns[:, :num_numeric] = np.arange(num_numeric)
    columns[:, num_numeric:] = np.maximum(rows.ids, 0) + num_numeric
    values = np.ones((num_rows, width), np.float32)
    values[:, :num_numeric] = rows.numeric * np.float32(NUMERIC_SCALE)
    lists = ((field.max_length, field.pool == "mean") for field in schema.categorical)
    values[:, num_numeric:] = position_weights(rows.ids, lists)
    starts = np.arange(0, num_rows * width + 1, width)
    return sparse.csr_matrix((values.reshape(-1), columns.reshape(-1), starts), shape=(num_rows, num_columns))
