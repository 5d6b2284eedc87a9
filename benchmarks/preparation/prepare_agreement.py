"""Compare a peer's ids and numbers with those of `data_prep prepare`, as times mean nothing if they differ.

Letters: n rows, N numeric columns, C categorical fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_prep.prepared.examples import Examples
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import SPLITS, read_schema

# Both round the same float64 to float32, but the logarithm's last bit is the library's own.
RELATIVE_TOLERANCE = 2e-7


def check_agreement(ours: Path, parquet_folder: Path) -> int:
    """Compare labels, ids and numbers of each split, training rows in any order. Return the number of rows.

    Raises ValueError naming the split if they differ.
    """
    schema = read_schema(ours)
    num_rows = 0
    for split in SPLITS:
        blocks = list(read_blocks(ours, schema, split))
        mine = [np.concatenate([np.column_stack([b.labels, b.ids]) for b in blocks]), *_numbers(blocks)]
        table = pq.read_table(parquet_folder / f"{split}.parquet")
        names = table.column_names
        first_number = next(i for i, name in enumerate(names) if name in {field.name for field in schema.numeric})
        theirs = [_columns(table, names[:first_number]), _columns(table, names[first_number:])]
        if len(mine[0]) != len(theirs[0]):
            raise ValueError(f"split {split} has {len(mine[0]):,} rows here and {len(theirs[0]):,} there")
        if split == "train":
            mine, theirs = _in_one_order(mine), _in_one_order(theirs)
        if not np.array_equal(mine[0], theirs[0]):
            raise ValueError(f"labels or ids of split {split} are not the same")
        if not np.allclose(mine[1], theirs[1], rtol=RELATIVE_TOLERANCE, atol=0):
            raise ValueError(f"numbers of split {split} are not the same")
        num_rows += len(mine[0])
    return num_rows


def _numbers(blocks: Sequence[Examples]) -> list[NDArray[np.float64]]:
    return [np.concatenate([block.numeric for block in blocks]).astype(np.float64)]


def _columns(table: pa.Table, names: list[str]) -> NDArray[np.float64]:
    """Return columns [n] as an array [n, columns]. Ids are whole numbers below 2**53."""
    return np.column_stack([table[name].to_numpy().astype(np.float64) for name in names])


def _in_one_order(arrays: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Sort rows by all columns. Numbers are rounded, so that the last bit does not decide."""
    keys = np.column_stack([arrays[0], np.round(arrays[1], 5)])
    order = np.lexsort(keys.T)
    return [array[order] for array in arrays]
