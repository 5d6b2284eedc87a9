"""The rows of a split whose values were all seen often in training: what a model could know of them, it could learn.

On rows with rare values even the best model of the training rows stays below the log's truth; on these it need not.

Letters: n rows of the split, C categorical fields, V ids.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from data_prep.prepared.schema import VOCABULARY_FILE, Schema

OFTEN = 20


def training_counts(folder: Path, schema: Schema) -> np.ndarray:
    """[V] int64: in how many training rows each id occurs; 0 for numeric fields and values out of vocabulary."""
    counts = np.zeros(schema.vocabulary_size, np.int64)
    table = pq.read_table(folder / VOCABULARY_FILE, columns=["id", "count"])
    counts[table["id"].to_numpy()] = table["count"].to_numpy()
    return counts


def seen_often(ids: np.ndarray, counts: np.ndarray, least: int = OFTEN) -> np.ndarray:
    """[n] bool for ids [n, C]: every value of the row occurs in `least` training rows or more."""
    often: np.ndarray = (counts[ids] >= least).all(axis=1)
    return often
