"""Find the data files of an Iceberg table with the library pyiceberg, without a catalog."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.text import shortened
from data_prep.raw_log.lake.lake_file import LakeFile
from data_prep.raw_log.storage import file_name, files_in, inner, is_uri, split_query

_MOVED = "Its files are known by absolute paths, so a table that was copied or moved cannot be read"
_REWRITE = "Rewrite its data files with the program that made it"


def data_files(root: str, version: int | None) -> dict[str, LakeFile]:
    """Return the data files of a snapshot of the Iceberg table at `root`, by their locations, in the order of commits.

    The order is that of data sequence numbers, and of paths within a commit. `root` is the table's folder, or one of
    its metadata files. `version` is the id of the snapshot, or None for the current one. The result is empty for a
    table without a snapshot. Raise ValueError if the table cannot be read or has no snapshot of that id.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.table import StaticTable

    metadata, query = split_query(_newest_metadata(root))
    with _clear_errors(root):
        table = StaticTable.from_metadata(unquote(metadata) if is_uri(metadata) else metadata, _properties(query))
    snapshot = table.current_snapshot() if version is None else table.snapshot_by_id(version)
    if snapshot is None and version is None:
        return {}
    if snapshot is None:
        found = shortened([str(each.snapshot_id) for each in table.snapshots()], 5) or "none"
        raise ValueError(f"the Iceberg table {root} has no snapshot {version}, which may have expired; found {found}")
    with _clear_errors(root):
        # The columns of the current snapshot are those of the current schema, which may be newer than the snapshot.
        scan = table.scan(snapshot_id=None if snapshot == table.current_snapshot() else version)
        fields, schema = scan.projection().fields, schema_to_pyarrow(scan.projection(), include_field_ids=False)
        commits = {
            entry.data_file.file_path: entry.sequence_number or 0
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        }
        tasks = sorted(scan.plan_files(), key=lambda task: (commits[task.file.file_path], task.file.file_path))
        kept = _kept_rows(tasks, table.io)
    keys = {each.name: each.field_id for each in fields}
    ids = {name: each.field_id for each in table.name_mapping() or () for name in each.names}
    defaults = {each.field_id: each.initial_default for each in fields if each.initial_default is not None}
    files = {}
    for file in (task.file for task in tasks):
        if file.file_format != "PARQUET":
            raise ValueError(f"{file.file_path}, a file of the Iceberg table {root}, is not Parquet. {_REWRITE}")
        # By the specification, a column that a file lacks has the value of its identity partition or its default.
        identity = {
            each.source_id: file.partition[place]
            for place, each in enumerate(table.specs()[file.spec_id].fields)
            if str(each.transform) == "identity"
        }
        values = {
            name: pa.scalar((defaults | identity)[number], schema.field(name).type)
            for name, number in keys.items()
            if number in defaults or number in identity
        }
        location = _location(file.file_path, query)
        files[location] = LakeFile(root, snapshot.snapshot_id, schema, keys, values, kept.get(file.file_path), ids)
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


@contextmanager
def _clear_errors(root: str) -> Iterator[None]:
    """Replace errors inside the `with` block by a ValueError of one line, which names the table and a remedy."""
    try:
        yield
    except (OSError, ValueError, NotImplementedError) as error:
        advice = _MOVED if isinstance(error, OSError) else _REWRITE
        what = str(error).splitlines()[0].removesuffix(".")
        raise ValueError(f"the Iceberg table {root} cannot be read: {what}. {advice}") from error


def _properties(query: str) -> dict[str, str]:
    """Return the properties of pyiceberg for the options of pyarrow in the query of a URI, and for the environment."""
    named = dict(parse_qsl(query.removeprefix("?")))
    region = named.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    properties = {"s3.endpoint": named.get("endpoint_override", ""), "s3.region": region}
    reader = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    return reader | {name: value for name, value in properties.items() if value}


def _location(path: str, query: str) -> str:
    """Return the location of a data file with the path `path`, which is a local path or a URI without escapes."""
    scheme, _, rest = path.partition(":") if re.match(r"\w+:/", path) else ("", "", path)
    if scheme in ("", "file"):
        return str(Path(re.sub("^/+", "/", rest)).absolute())
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{quote(rest.lstrip('/'))}{query}"


def _kept_rows(tasks: Sequence[Any], io: Any) -> dict[str, NDArray[np.bool_]]:
    """Return for each data file with deleted rows, by its path, which of its rows are not deleted, bool [rows]."""
    deletes = {task.file.file_path: task.delete_files for task in tasks if task.delete_files}
    kept = {task.file.file_path: np.ones(task.file.record_count, bool) for task in tasks if task.delete_files}
    for file in set().union(*deletes.values()):
        for path, rows in deleted_rows(file, io):
            if file in deletes.get(path, ()):
                kept[path][rows] = False
    return kept


def deleted_rows(file: Any, io: Any) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the path of each data file of which a file of position deletes deletes rows, and the rows' indices."""
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    with io.new_input(file.file_path).open() as stored:
        if file.file_format == "PUFFIN":
            for vector in deletion_vectors_from_puffin_file(PuffinFile(stored.read())):
                yield vector.referenced_data_file, vector.to_vector().to_numpy()
            return
        if file.file_format != "PARQUET":
            raise ValueError(f"{file.file_path} has deletes in the format {file.file_format}")
        table = pq.read_table(stored, columns=["file_path", "pos"], read_dictionary=["file_path"])
    paths, rows = table["file_path"].unify_dictionaries().combine_chunks(), table["pos"].to_numpy()
    for place, path in enumerate(paths.dictionary.to_pylist()):
        yield path, rows[paths.indices.to_numpy() == place]
