"""Read a Feather file of the log. Feather is Arrow's own file format.

Rows are stored in batches, and a batch is read as a whole. So a file that was written as a single batch must fit in
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from data_prep.options.log_format import LogFormat
from data_prep.raw_log import arrow_to_text
from data_prep.raw_log.arrow_to_text import TableReader, is_list, plain_type
from data_prep.raw_log.formats import spread
from data_prep.raw_log.storage import LogFile


@contextmanager
def open_reader(file: LogFile, log_format: LogFormat) -> Iterator[TableReader]:
    """Open a Feather file of the log, and yield a reader that reads it once from start to end.

    Raise ValueError, also inside the `with` block, if the file is damaged or lacks columns of the format.
    """
    with arrow_to_text.opened_table(file.location) as stored:
        table = pa.ipc.open_file(stored)
        arrow_to_text.check_columns(file.location, arrow_to_text.schema_with_constants(table.schema, file), log_format)

        def batches(names: list[str], size: int) -> Iterator[pa.RecordBatch]:
            read = pa.ipc.IpcReadOptions(included_fields=[table.schema.get_field_index(name) for name in names])
            chosen = pa.ipc.open_file(stored, options=read)
            for index in range(chosen.num_record_batches):
                batch = chosen.get_batch(index)
                # The batch is validated, because Arrow does not check the offsets of texts when it reads them.
                batch.validate(full=True)
                batch = pa.RecordBatch.from_arrays([*map(_without_views, batch.columns)], batch.schema.names)
                for start in range(0, len(batch), size):
                    # `take` copies the rows. A slice of the batch would be sent to a worker together with all other
                    # rows of the batch.
                    yield batch.take(np.arange(start, min(start + size, len(batch))))

        yield TableReader(file, log_format, sum(_batch_rows(stored)), table.schema.names, batches)


def _without_views(cells: pa.Array) -> pa.Array:
    """Convert views of texts, as polars writes them, to plain texts, because Arrow cannot take rows of views."""
    of_type = cells.type.value_type if is_list(cells.type) else cells.type
    if not (pa.types.is_string_view(of_type) or pa.types.is_binary_view(of_type)):
        return cells
    return cells.cast(pa.large_list(plain_type(of_type)) if is_list(cells.type) else plain_type(of_type))


def read_schema(file: LogFile) -> pa.Schema:
    """Return the names and types of a Feather file's columns, and of those from names of folders (date=2026-11-01).

    Raise ValueError if the file is damaged.
    """
    with arrow_to_text.opened_table(file.location) as stored:
        return arrow_to_text.schema_with_constants(pa.ipc.open_file(stored).schema, file)


def first_rows(file: LogFile, num_rows: int, num_parts: int) -> pa.Table:
    """Return about `num_rows` rows of a Feather file: the first rows of several of its batches, from all over the file.

    At least `num_parts` batches are read, unless the file has fewer.
    """
    with arrow_to_text.opened_table(file.location) as stored:
        table = pa.ipc.open_file(stored)
        of_batch = max(sum(_batch_rows(stored)) // max(table.num_record_batches, 1), 1)
        indices = spread(range(table.num_record_batches), max(num_parts, -(-num_rows // of_batch)))
        size = -(-num_rows // max(len(indices), 1))
        rows = pa.Table.from_batches([table.get_batch(index).slice(0, size) for index in indices], table.schema)
        rows.validate(full=True)
        return arrow_to_text.with_constants(rows, file)


def _batch_rows(stored: pa.NativeFile) -> list[int]:
    """Return the number of rows of each batch of a Feather file. Only the first column is read."""
    table = pa.ipc.open_file(stored, options=pa.ipc.IpcReadOptions(included_fields=[0]))
    return [table.get_batch(index).num_rows for index in range(table.num_record_batches)]
