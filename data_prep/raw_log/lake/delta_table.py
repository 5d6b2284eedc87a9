"""Find the data files of a Delta table with the library deltalake."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from data_prep.raw_log.lake.lake_file import LakeFile, clear_errors, location_of
from data_prep.raw_log.storage import file_name, file_state, files_in, inner, is_uri, read_range, split_query

# Names of the features of Delta tables that this module can read. A table with any other feature is refused.
_READABLE = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
_ADVICE = (
    "If it names a feature, rewrite the table without it. A version whose log was cleaned up is gone: read the newest "
    "one, and begin an unfinished command anew with --restart"
)


def data_files(root: str, version: int | None) -> dict[str, LakeFile]:
    """Return the data files of a version of the Delta table at `root`, by their locations, in the order of commits.

    `version` None stands for the newest version. Files of one commit are ordered by path. Files whose commits are no
    longer in the table's transaction log (_delta_log) come first, by their time of modification. Raise ValueError if
    the table cannot be opened or has features that cannot be read.
    """
    table, added = _open(root, version)
    commits = _commit_of({action["path"] for action in added}, root, table.version())

    def order(action: dict[str, Any]) -> tuple[int, int, str]:
        commit = commits.get(action["path"], -1)
        return commit, action["modification_time"] if commit < 0 else 0, action["path"]

    return _lake_files(root, table, sorted(added, key=order))


def files_added(root: str, version: int) -> dict[str, LakeFile]:
    """Return the data files that one commit added to the Delta table at `root`, by their locations, ordered by path.

    The result is empty if the commit did not change the table's rows, as after a compaction. Raise ValueError if the
    commit also removed rows or restored an earlier version, and FileNotFoundError if the commit is no longer in the
    table's transaction log (_delta_log).
    """
    actions = list(_actions(inner(inner(root, "_delta_log"), f"{version:020}.json")))
    changes = [(kind, action) for each in actions for kind, action in each.items() if action.get("dataChange")]
    is_restored = any(each.get("commitInfo", {}).get("operation") == "RESTORE" for each in actions)
    if is_restored or any(kind == "remove" for kind, _ in changes):
        raise ValueError(f"version {version} of the Delta table {root} removes or replaces rows")
    paths = {action["path"] for kind, action in changes if kind == "add"}
    if not paths:
        return {}
    table, added = _open(root, version)
    chosen = (action for action in added if action["path"] in paths)
    return _lake_files(root, table, sorted(chosen, key=lambda action: str(action["path"])))


def _open(root: str, version: int | None) -> tuple[DeltaTable, list[dict[str, Any]]]:
    """Open a version of a Delta table. Return it, and the path, modification time and partition of each data file."""
    address, query = split_query(root)
    which = "" if version is None else f"version {version} of "
    with clear_errors(f"{which}the Delta table {root}", _ADVICE, DeltaError):
        table = DeltaTable(address, version, _storage_options(query) if is_uri(root) else None)
        if unknown := sorted({*(table.protocol().reader_features or ())} - _READABLE):
            raise ValueError(f"it has features that are not read here: {', '.join(unknown)}")
        added = pa.table(table.get_add_actions())
        columns = [name for name in ("path", "modification_time", "partition") if name in added.column_names]
        return table, added.select(columns).to_pylist()


def _lake_files(root: str, table: DeltaTable, added: Iterable[dict[str, Any]]) -> dict[str, LakeFile]:
    """Return the data files `added`, a result of `_open`, as a mapping from location to `LakeFile`, in order."""
    address, query = split_query(root)
    folder = unquote(address) if is_uri(root) else address
    with clear_errors(f"the Delta table {root}", _ADVICE, DeltaError):
        schema = pa.schema(table.schema().to_arrow())
        if binary := [name for name in table.metadata().partition_columns if _is_binary(schema.field(name).type)]:
            raise ValueError(f"its partition columns {', '.join(binary)} are binary; make them text, or ids int64")
        has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
        vectors = pa.table(table.deletion_vectors()).to_pydict() if has_vectors else {"filepath": ()}
    keys = _keys(schema, table.metadata().configuration.get("delta.columnMapping.mode", "none"))
    kept = {
        location_of(unquote(path), query): np.array(selection)
        for path, selection in zip(vectors["filepath"], vectors.get("selection_vector", ()), strict=True)
    }
    files = {}
    for action in added:
        path, cells = unquote(action["path"]), (action.get("partition") or {}).items()
        location = location_of(path, query, folder)
        values = {name: pa.scalar(value, schema.field(name).type) for name, value in cells}
        files[location] = LakeFile(root, table.version(), schema, keys, values, kept.get(location))
    return files


def _is_binary(of_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(of_type) or pa.types.is_large_binary(of_type) or pa.types.is_binary_view(of_type))


def _keys(schema: pa.Schema, mode: str) -> dict[str, str | int]:
    """Return the name or the field id by which data files identify each column of the table, by the column's name.

    `mode` is the table's mode of column mapping: "id", "name" or "none".
    """
    if mode == "id":
        return {each.name: int(each.metadata[b"delta.columnMapping.id"]) for each in schema}
    if mode == "name":
        return {each.name: each.metadata[b"delta.columnMapping.physicalName"].decode() for each in schema}
    return {each.name: each.name for each in schema}


def _storage_options(query: str) -> dict[str, str]:
    """Return the options with which deltalake opens a table whose URI has the query `query`, a text of options of
    pyarrow's file system, such as ?region=….

    What the query leaves out comes from environment variables such as AWS_ENDPOINT_URL.
    """
    named = dict(parse_qsl(query.removeprefix("?")))
    endpoint = named.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL", "")
    options = {"aws_endpoint_url": endpoint, "aws_region": named.get("region", "")}
    return {name: value for name, value in options.items() if value} | {
        "allow_http": str(endpoint.startswith("http:")).lower()
    }


def _actions(entry: str) -> Iterator[dict[str, Any]]:
    """Yield the actions in an entry of a Delta table's transaction log, each as {kind: action}.

    A kind is, for example, "add" for a file that is added. Raise FileNotFoundError if the log lacks the entry.
    """
    state = file_state(entry)
    if state is None:
        raise FileNotFoundError(f"{entry} is no longer in the log of its Delta table")
    yield from map(json.loads, filter(bytes.strip, read_range(entry, 0, state.size).splitlines()))


def _commit_of(paths: Collection[str], root: str, version: int) -> dict[str, int]:
    """Return the version of the newest commit up to `version` that added each of the files with the paths `paths`.

    Files whose commit is no longer in the table's transaction log (_delta_log) are left out.
    """
    commits: dict[str, int] = {}
    names = {file_name(entry): entry for entry in files_in(inner(root, "_delta_log")) or ()}
    entries = {int(name[:-5]): entry for name, entry in names.items() if name[:-5].isdecimal() and name[-5:] == ".json"}
    for number in sorted((each for each in entries if each <= version), reverse=True):
        if len(commits) == len(paths):
            break
        for action in _actions(entries[number]):
            if "add" in action and action["add"]["path"] in paths:
                commits.setdefault(action["add"]["path"], number)
    return commits
