"""Prepare a table that is in memory: write it to a temporary Parquet file and prepare that file."""

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
from data_prep.raw_log.arrow_to_text import check_columns

NAME = "table.parquet"


def prepare_table(table: pa.Table, output: Path, options: PrepareOptions, **how: Any) -> Schema:
    """Prepare the rows of a table into the new folder `output` and return the folder's schema.

    `how` are the keyword arguments of `prepare`, which also lists the errors. The table is written to a Parquet file
    beside `output`, which is removed afterwards. The folder of that file is named after the file's checksum, and the
    file's modification time is fixed. So the same call resumes an interrupted preparation of the same table.
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
    except FolderInUse:
        # Another process may be preparing the same table and still read the file, so do not remove it.
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # Remove the table's file and also the files of earlier runs that were killed.
    for path in output.parent.glob(f"{glob.escape(output.name)}.table-{'[0-9a-f]' * 16}"):
        shutil.rmtree(path, ignore_errors=True)
    return schema
