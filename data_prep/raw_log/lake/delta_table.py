"""Find the data files of a Delta table with the library deltalake."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote

import numpy as np
import pyarrow as pa

from data_prep.raw_log.lake.lake_file import LakeFile
from data_prep.raw_log.storage import (
    file_name,
    file_state,
    files_in,
    inner,
    is_uri,
    local_path,
    read_range,
    split_query,
)

_LOG_FOLDER = "_delta_log"
# Features of tables that this module reads. All others are refused by name.
_READABLE = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}


def data_files(root: str, version: int | None) -> dict[str, LakeFile]:
    """Return the data files of a version of the Delta table at `root`, by their locations, in the order of commits.

    `version` None stands for the newest version. Files of one commit are ordered by path. Files whose commits are no
    longer in the table's log come first, by their time of modification. Raise ValueError if the table cannot be opened
    or has features that cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    address, query = split_query(root)
    try:
        table = DeltaTable(address, version, _storage_options(query) if is_uri(root) else None)
        features = set(table.protocol().reader_features or ())
        if unknown := sorted(features - _READABLE):
            raise ValueError(
                f"the Delta table {root} has features that are not read here: {', '.join(unknown)}; rewrite it without "
                "them, or write its rows to Parquet files with the program that made it"
            )
        schema = pa.schema(table.schema().to_arrow())
        added = pa.table(table.get_add_actions())
        has_vectors = "deletionVectors" in features
        vectors = pa.table(table.deletion_vectors()).to_pydict() if has_vectors else {"filepath": []}
    except (DeltaError, TableNotFoundError, OSError) as error:
        which = "" if version is None else f"version {version} of "
        raise ValueError(
            f"{which}the Delta table {root} cannot be read: {str(error).splitlines()[0]}. If it names a feature, "
            "rewrite the table without it; a version whose log was cleaned up is gone"
        ) from error
    keys = _keys(schema, table.metadata().configuration.get("delta.columnMapping.mode", "none"))
    kept = {
        unquote(path).removeprefix("file://"): np.array(selection)
        for path, selection in zip(vectors["filepath"], vectors.get("selection_vector", ()), strict=True)
    }
    commits = _commit_of(set(added["path"].to_pylist()), root, table.version())
    rows = added.select([name for name in ("path", "modification_time", "partition") if name in added.column_names])

    def order(row: dict[str, Any]) -> tuple[int, int, str]:
        is_known = row["path"] in commits
        return commits.get(row["path"], -1), 0 if is_known else row["modification_time"], row["path"]

    files = {}
    for each in sorted(rows.to_pylist(), key=order):
        location = _location(root, each["path"])
        values = {
            name: pa.scalar(value, schema.field(name).type) for name, value in (each.get("partition") or {}).items()
        }
        selection = kept.get(unquote(split_query(location)[0]) if is_uri(location) else location)
        files[location] = LakeFile(root, table.version(), schema, keys, values, selection)
    return files


def files_added(root: str, version: int) -> dict[str, LakeFile]:
    """Return the data files that one commit added to the Delta table at `root`, by their locations, ordered by path.

    The result is empty if the commit did not change the table's rows, as after a compaction. Raise ValueError if the
    commit also removed rows, and FileNotFoundError if it is no longer in the table's log.
    """
    entry = _entries(root).get(version)
    if entry is None:
        raise FileNotFoundError(f"the log of the Delta table {root} has no version {version} any more")
    if any(action["dataChange"] for action in _actions(entry, "remove")):
        raise ValueError(f"version {version} of the Delta table {root} removes or replaces rows")
    added = {_location(root, action["path"]) for action in _actions(entry, "add") if action["dataChange"]}
    return {at: file for at, file in data_files(root, version).items() if at in added} if added else {}


def newest_version(root: str) -> int:
    """Return the number of the newest version of the Delta table at `root`. Raise ValueError without a log entry."""
    versions = _entries(root)
    if not versions:
        raise ValueError(f"the log of the Delta table {root} has no entry")
    return max(versions)


def _keys(schema: pa.Schema, mode: str) -> dict[str, str | int]:
    """Return what identifies each column of the table in a data file. `mode` is the table's mode of column mapping."""
    if mode == "id":
        return {each.name: int(each.metadata[b"delta.columnMapping.id"]) for each in schema}
    if mode == "name":
        return {each.name: each.metadata[b"delta.columnMapping.physicalName"].decode() for each in schema}
    return {each.name: each.name for each in schema}


def _storage_options(query: str) -> dict[str, str]:
    """Return the options of deltalake for the options of pyarrow in the query of a URI, and for the environment."""
    named = dict(parse_qsl(query.removeprefix("?")))
    endpoint = named.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL", "")
    options = {"aws_endpoint_url": endpoint, "aws_region": named.get("region", "")}
    return {name: value for name, value in options.items() if value} | {
        "allow_http": str(endpoint.startswith("http:")).lower()
    }


def _location(root: str, path: str) -> str:
    """Return the location of a data file. `path` is its path in the table's log: a relative or absolute URI."""
    address, query = split_query(root)
    if is_uri(path):
        return local_path(path) + (query if is_uri(local_path(path)) else "")
    return f"{address.rstrip('/')}/{path}{query}" if is_uri(root) else f"{root.rstrip('/')}/{unquote(path)}"


def _entries(root: str) -> dict[int, str]:
    """Return the locations of the entries in the log of a Delta table, by version."""
    files = files_in(inner(root, _LOG_FOLDER)) or []
    stems = {file_name(file).removesuffix(".json"): file for file in files if file_name(file).endswith(".json")}
    return {int(stem): file for stem, file in stems.items() if stem.isdecimal()}


def _actions(entry: str, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the actions of one kind, such as "add", in an entry of the log of a Delta table."""
    state = file_state(entry)
    for line in read_range(entry, 0, state.size).splitlines() if state else ():
        action = json.loads(line) if line.strip() else {}
        if kind in action:
            yield action[kind]


def _commit_of(paths: Collection[str], root: str, version: int) -> dict[str, int]:
    """Return the version of the newest commit up to `version` that added each of the files with the paths `paths`.

    Files whose commit is no longer in the table's log are left out.
    """
    commits: dict[str, int] = {}
    entries = _entries(root)
    for number in sorted((each for each in entries if each <= version), reverse=True):
        if len(commits) == len(paths):
            break
        for action in _actions(entries[number], "add"):
            if action["path"] in paths:
                commits.setdefault(action["path"], number)
    return commits
