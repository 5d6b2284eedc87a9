"""What the ids of one categorical field stand for, as people read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from data_prep.prepared.schema import VOCABULARY_FILE, CategoricalField, Schema

MISSING = "(missing)"
OUT_OF_VOCABULARY = "(out of vocabulary)"
UNKNOWN = "(id {})"  # where the vocabulary file is not there any more


def find_field(schema: Schema, name: str) -> int:
    """The place of a categorical field among the columns of a batch's ids."""
    return [field.name for field in schema.categorical].index(name)


def names_of_ids(dataset: Path, field: CategoricalField, ids: np.ndarray) -> list[str]:
    """The values behind some ids of a field, in their order; the vocabulary is read only where it has them."""
    path = dataset / VOCABULARY_FILE
    wanted = [int(i) for i in ids if not field.oov_ids[0] <= i < field.oov_ids[1]]
    values: dict[int, str] = {}
    if wanted and path.is_file():
        found = pq.read_table(path, columns=["id", "value"], filters=[("id", "in", wanted)])
        values = dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))
    return [_name(field, int(i), values) for i in ids]


def _name(field: CategoricalField, number: int, values: dict[int, str]) -> str:
    first, end = field.oov_ids
    if first <= number < end:
        return OUT_OF_VOCABULARY if end - first == 1 else f"{OUT_OF_VOCABULARY} {number - first}"
    return values.get(number, UNKNOWN.format(number)) or MISSING
