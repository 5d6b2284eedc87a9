"""Write a table's rows as Parquet (field, value, row, vector) for use outside this project.

Only touched rows are written: rows that a training step has updated, or that were taken over from another model. All
other rows still have their random start, from which nothing was learned. Rows that belong to no single value
(out-of-vocabulary rows, and rows of numeric fields that are looked up) have a null in the column `value`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from app.checkpoint.read import Checkpoint, FileTable
from app.scoring.bundle_tables import are_among
from app.tables.interface import DEEP, TableSnapshot, scored_table
from app.tables.optimizers import ROWS
from app.training.learning_rates import running_mean, step_history
from common.files import new_file
from data_prep.prepared.schema import Schema

# Number of vocabulary entries that are read at once. Their rows, if training has updated them, make up one row group of
# the output.
GROUP_ROWS = 1 << 16


def export_rows(checkpoint: Checkpoint, table: str, dataset: Path, schema: Schema, output: Path) -> int:
    """Write the touched rows of `table` ("deep" or "wide") to the Parquet file `output`, in the vocabulary's order.
    Return the number of rows written.

    `dataset` is the prepared folder with the vocabulary. The vectors are the values that the model scores with, so they
    are the rows' running averages if training kept such averages (train.ema_decay). Raise ValueError if the vocabulary
    does not name every touched row.
    """
    manifest = checkpoint.manifest
    # The optimizer `adam` moves all rows of the deep table in each training step, but postpones the steps of rows that
    # no batch had. `scored_table` adds the postponed steps of saved rows, which `history` records. The optimizers of
    # the wide table postpone nothing.
    history = step_history(manifest) if table == DEEP else None
    saved = scored_table(FileTable(checkpoint, table), manifest.step, history, running_mean(manifest))
    row_ids, width = saved.row_ids, saved.layout[ROWS].width
    num_rows = 0
    with new_file(output) as partial:
        with (
            tqdm(total=len(row_ids), desc="export", unit="row", unit_scale=True, mininterval=0.5) as bar,
            pq.ParquetWriter(partial, _parquet_schema(width)) as writer,
        ):
            for names in _names_of_rows(dataset, schema):
                touched_rows = _touched(names, saved)
                writer.write_table(touched_rows)
                num_rows += touched_rows.num_rows
                bar.update(touched_rows.num_rows)
        if num_rows != len(row_ids):
            raise ValueError(
                f"the vocabulary in {dataset} names {num_rows:,} of the {len(row_ids):,} touched rows of the {table} "
                "table; give the folder that the run was trained on (--dataset DIR)"
            )
    return num_rows


def _parquet_schema(width: int) -> pa.Schema:
    return pa.schema(
        [
            ("field", pa.dictionary(pa.int32(), pa.string())),
            ("value", pa.string()),
            ("row", pa.int64()),
            ("vector", pa.list_(pa.float32(), width)),
        ]
    )


def _names_of_rows(dataset: Path, schema: Schema) -> Iterator[pa.Table]:
    """Yield tables with the columns field, value and row (the id), which together name every row of the embedding
    table. Rows that belong to no single value come first, with a null as value.
    """
    valueless = [(field.name, place) for place, field in enumerate(schema.numeric)]
    # Fields that share a vocabulary share its out-of-vocabulary rows. Name each of these rows after the first of its
    # fields.
    out_of_vocabulary = {row: field.name for field in reversed(schema.categorical) for row in range(*field.oov_ids)}
    valueless += [(name, row) for row, name in sorted(out_of_vocabulary.items())]
    fields, rows = zip(*valueless, strict=True)
    yield pa.table(
        {
            "field": pa.array(fields).dictionary_encode(),
            "value": pa.nulls(len(rows), pa.string()),
            "row": pa.array(rows, pa.int64()),
        }
    )
    for name in schema.vocabulary_files:
        for batch in pq.ParquetFile(dataset / name).iter_batches(GROUP_ROWS, columns=["field", "value", "id"]):
            yield pa.Table.from_batches([batch]).rename_columns(["field", "value", "row"])


def _touched(names: pa.Table, saved: TableSnapshot) -> pa.Table:
    """Select the entries of `names` (field, value, row) whose rows training has updated. Return these entries with a
    further column `vector`, which holds the rows' values. `saved` contains all updated rows.
    """
    row_ids, width = saved.row_ids, saved.layout[ROWS].width
    named_rows = names["row"].to_numpy()
    is_touched = are_among(row_ids, named_rows)
    there = np.searchsorted(row_ids, named_rows[is_touched])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(saved.read(ROWS, there).reshape(-1)), width)
    columns = names.filter(pa.array(is_touched)).append_column("vector", vectors)
    return columns.cast(_parquet_schema(width))
