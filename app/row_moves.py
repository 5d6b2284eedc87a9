"""Where the rows of one prepared folder's model are in another's: they follow their (field, value).

Letters: V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_prep.prepared.schema import VOCABULARY_FILE, Schema

GONE = -1


def row_moves(old_folder: Path, old: Schema, new_folder: Path, new: Schema) -> np.ndarray:
    """The new id of each old one, int64 [V of `old`]; GONE where `new` has no such field and value.

    A field's ids for values out of its vocabulary follow the field, in their order; a numeric field follows its name.
    """
    moves = np.full(old.vocabulary_size, GONE, np.int64)
    names = {field.name: place for place, field in enumerate(new.numeric)}
    for place, field in enumerate(old.numeric):
        moves[place] = names.get(field.name, GONE)
    spare = {field.name: range(*field.oov_ids) for field in new.categorical}
    for categorical in old.categorical:
        name = categorical.name
        for old_id, new_id in zip(range(*categorical.oov_ids), spare.get(name, ()), strict=False):
            moves[old_id] = new_id
        if name in spare:
            _follow_values(moves, _values(old_folder, name), _values(new_folder, name))
    return moves


def _follow_values(moves: np.ndarray, old: pa.Table, new: pa.Table) -> None:
    both = old.join(new, "value", join_type="inner", right_suffix="_new")
    moves[both["id"].to_numpy()] = both["id_new"].to_numpy()


def _values(folder: Path, field: str) -> pa.Table:
    """`value` and `id` of one field; a row group of the file has one field's values."""
    parts = list(_row_groups(folder / VOCABULARY_FILE, field))
    empty = pa.table({"value": pa.array([], pa.string()), "id": pa.array([], pa.int64())})
    return pa.concat_tables([empty, *parts])


def _row_groups(path: Path, field: str) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            statistics = file.metadata.row_group(number).column(0).statistics
            if statistics is not None and not statistics.min <= field <= statistics.max:
                continue
            group = file.read_row_group(number, columns=["field", "value", "id"])
            chosen = group.filter(pc.equal(group["field"].cast(pa.string()), field))
            yield chosen.select(["value", "id"]).cast(pa.schema([("value", pa.string()), ("id", pa.int64())]))
