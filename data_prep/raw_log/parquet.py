"""Read a Parquet file of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.options.log_format import LogFormat
from data_prep.raw_log import arrow_to_text
from data_prep.raw_log.arrow_to_text import TableReader
from data_prep.raw_log.formats import spread
from data_prep.raw_log.storage import LogFile


@contextmanager
def open_reader(file: LogFile, log_format: LogFormat) -> Iterator[TableReader]:
    """Open a Parquet file of the log, and yield a reader that reads it once from start to end.

    Raise ValueError, also inside the `with` block, if the file is damaged or lacks columns of the format.
    """
    with _opened(file) as table:
        own = _own_columns(file, table)
        arrow_to_text.check_columns(file.location, arrow_to_text.schema_with_constants(own, file), log_format)
        yield TableReader(file, log_format, table.metadata.num_rows, own.names, partial(_batches, file, table))


def read_schema(file: LogFile) -> pa.Schema:
    """Return the names and types of a Parquet file's columns, and of those from names of folders (date=2026-11-01).

    Raise ValueError if the file is damaged.
    """
    with _opened(file) as table:
        return arrow_to_text.schema_with_constants(_own_columns(file, table), file)


def first_rows(file: LogFile, num_rows: int, num_parts: int) -> pa.Table:
    """Return about `num_rows` rows of a Parquet file: the first rows of several row groups, from all over the file.

    At least `num_parts` row groups are read, unless the file has fewer.
    """
    with _opened(file) as table:
        in_all = table.metadata
        of_group = max(in_all.num_rows // max(in_all.num_row_groups, 1), 1)
        groups = spread(range(in_all.num_row_groups), max(num_parts, -(-num_rows // of_group)))
        size = -(-num_rows // max(len(groups), 1))
        own = _own_columns(file, table)
        batches = [next(_batches(file, table, own.names, size, group), None) for group in groups]
        return arrow_to_text.with_constants(
            pa.Table.from_batches([batch for batch in batches if batch is not None], own), file
        )


def _own_columns(file: LogFile, table: pq.ParquetFile) -> pa.Schema:
    """Return the names and types of a file's columns, without columns from names of folders (date=2026-11-01).

    In a data file of a Delta or Iceberg table, they are the columns of the table.
    """
    return file.lake.schema if file.lake else table.schema_arrow


def _batches(
    file: LogFile, table: pq.ParquetFile, names: Sequence[str], size: int, group: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of a file, or of one of its row groups, in batches of at most `size` rows."""
    groups = range(table.metadata.num_row_groups) if group is None else [group]
    if file.lake is None:
        yield from table.iter_batches(size, row_groups=groups, columns=names)
        return
    stored = file.lake.stored_names(file.location, table.schema_arrow)
    first_row = sum(table.metadata.row_group(each).num_rows for each in range(group or 0))
    columns = [stored[name] for name in names if name in stored]
    for batch in table.iter_batches(size, row_groups=groups, columns=columns):
        rows = file.lake.rows(batch, names, stored, first_row)
        first_row += len(batch)
        if len(rows):
            yield rows


@contextmanager
def _opened(file: LogFile) -> Iterator[pq.ParquetFile]:
    # Times of type INT96 are read as microseconds. By default pyarrow reads them as nanoseconds, which silently
    # overflow outside the years 1678 to 2262.
    with (
        arrow_to_text.opened_table(file.location) as stored,
        pq.ParquetFile(stored, coerce_int96_timestamp_unit="us") as table,
    ):
        yield table
