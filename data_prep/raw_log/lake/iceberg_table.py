"""Find the data files of an Iceberg table with the library pyiceberg, without a catalog."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import _read_deletes, schema_to_pyarrow
from pyiceberg.table import StaticTable

from common.text import shortened
from data_prep.raw_log.lake.lake_file import LakeFile, clear_errors, location_of
from data_prep.raw_log.storage import file_name, files_in, inner, is_uri, split_query

_ADVICE = (
    "If it names deletes or a format, rewrite the data files with the program that made the table. If it names a file, "
    "the table was probably copied or moved, and its log names the files where they were"
)


def data_files(root: str, version: int | None) -> dict[str, LakeFile]:
    """Return the data files of a snapshot of the Iceberg table at `root`, by their locations, in the order of commits.

    The order is that of data sequence numbers, and of paths within a commit. `root` is the table's folder, or one of
    its metadata files. `version` is the id of the snapshot, or None for the current one. The result is empty for a
    table without a snapshot. Raise ValueError if the table cannot be read or has no snapshot of that id.
    """
    metadata, query = split_query(_newest_metadata(root))
    with clear_errors(f"the Iceberg table {root}", _ADVICE):
        table = StaticTable.from_metadata(unquote(metadata) if is_uri(metadata) else metadata, _properties(query))
        snapshot = table.current_snapshot() if version is None else table.snapshot_by_id(version)
        if snapshot is None and version is not None:
            found = shortened([str(each.snapshot_id) for each in table.snapshots()], 5) or "none"
            raise ValueError(f"it has no snapshot {version}, which may have expired; found {found}")
        if snapshot is None:
            return {}
        # The columns of the current snapshot are those of the current schema, which may be newer than the snapshot.
        scan = table.scan(snapshot_id=None if snapshot == table.current_snapshot() else version)
        commits = {
            entry.data_file.file_path: entry.sequence_number or 0
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        }
        tasks = sorted(scan.plan_files(), key=lambda task: (commits[task.file.file_path], task.file.file_path))
        if other := next((task.file.file_path for task in tasks if task.file.file_format != "PARQUET"), None):
            raise ValueError(f"its data file {other} is not in the format Parquet")
        kept = kept_rows(tasks, table.io)
    fields, schema = scan.projection().fields, schema_to_pyarrow(scan.projection(), include_field_ids=False)
    keys = {each.name: each.field_id for each in fields}
    ids = {name: each.field_id for each in table.name_mapping() or () for name in each.names}
    defaults = {each.field_id: each.initial_default for each in fields if each.initial_default is not None}
    files = {}
    for file in (task.file for task in tasks):
        # By the specification, a column that a data file lacks has the file's partition value if the table is
        # partitioned by the column itself (transform identity), or else the column's default.
        partition = {
            each.source_id: file.partition[place]
            for place, each in enumerate(table.specs()[file.spec_id].fields)
            if str(each.transform) == "identity"
        }
        constants = defaults | partition
        values = {
            name: pa.scalar(constants[number], schema.field(name).type)
            for name, number in keys.items()
            if number in constants
        }
        # pyiceberg 0.12.0 rounds partition values of type double to float32, see findings/iceberg_double_partition.sh.
        doubles = (name for name, value in values.items() if value.is_valid and value.type == pa.float64())
        inexact = frozenset(name for name in doubles if keys[name] in partition)
        location, rows = location_of(file.file_path, query), kept.get(file.file_path)
        files[location] = LakeFile(root, snapshot.snapshot_id, schema, keys, values, rows, ids, inexact)
    return files


def _newest_metadata(root: str) -> str:
    """Return the location of the newest metadata file of a table, which is the one with the highest number.

    If `root` is such a file itself, return it. Raise ValueError if two files have the highest number.
    """
    files = [root, *(files_in(inner(root, "metadata")) or ())]
    matches = {file: re.fullmatch(r"v?(\d*).*\.metadata\.json(\.gz)?", file_name(file)) for file in files}
    numbers = {file: int(match[1] or 0) for file, match in matches.items() if match}
    newest = [file for file, number in numbers.items() if number == max(numbers.values())]
    if len(newest) > 1:
        names = ", ".join(sorted(map(file_name, newest)))
        raise ValueError(
            f"the Iceberg table {root} has several newest metadata files: {names}. Give as the input the one that the "
            "table's catalog names"
        )
    return newest[0]


def _properties(query: str) -> dict[str, str]:
    """Return the properties with which pyiceberg opens a table whose URI has the query `query`, a text of options of
    pyarrow's file system, such as ?region=….

    What the query leaves out comes from environment variables such as AWS_REGION.
    """
    named = dict(parse_qsl(query.removeprefix("?")))
    region = named.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    properties = {"s3.endpoint": named.get("endpoint_override", ""), "s3.region": region}
    reader = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    return reader | {name: value for name, value in properties.items() if value}


def kept_rows(tasks: Sequence[Any], io: Any) -> dict[str, NDArray[np.bool_]]:
    """Return for each data file with deleted rows, by its path, which of its rows are not deleted, bool [rows].

    `tasks` has the data files, each with its files of position deletes or its deletion vectors.
    """
    deletes = {task.file.file_path: task.delete_files for task in tasks if task.delete_files}
    kept = {task.file.file_path: np.ones(task.file.record_count, bool) for task in tasks if task.delete_files}
    for file in set().union(*deletes.values()):
        # `_read_deletes` is a private function of pyiceberg, whose version is pinned. The public readers return rows,
        # and not which rows are deleted.
        for path, rows in _read_deletes(io, file).items():
            if file in deletes.get(path, ()):
                kept[path][rows.to_numpy()] = False
    return kept
