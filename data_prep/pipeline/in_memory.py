"""A table in memory as a log: it is prepared as the Parquet file that it would be."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.files import FolderInUse, checksum, make_folder
from data_prep.execution.prepared_folder import real_output
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import Schema
from data_prep.raw_log.parquet import check_columns

NAME = "table.parquet"


def prepare_table(table: pa.Table, output: Path, options: PrepareOptions, **how: Any) -> Schema:
    """Prepare the rows of a table. `how` and the errors are those of `prepare`.

    Meanwhile the rows are in a file beside `output`. Its folder is named after its content and its time is always the
    same, so that the same call resumes an interrupted run.
    """
    check_columns("the table", table.schema, options.data)
    output = real_output(output)
    make_folder(output.parent)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f"{output.name}.table-") as temporary:
        file = Path(temporary) / NAME
        try:
            pq.write_table(table, file)
        except pa.ArrowException as error:
            raise ValueError(f"the table cannot be written as a Parquet file: {error}") from error
        os.utime(file, (0, 0))
        folder = output.with_name(f"{output.name}.table-{checksum(file).partition(':')[2]}")
        folder.mkdir(exist_ok=True)
        file.replace(folder / NAME)
    try:
        schema = prepare(folder / NAME, output, options, **how)
    except FolderInUse:  # by the same call in another process, perhaps, which reads the file
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for path in output.parent.glob(f"{glob.escape(output.name)}.table-{'[0-9a-f]' * 16}"):  # those of killed runs, too
        shutil.rmtree(path, ignore_errors=True)
    return schema
