"""Recognize the folders of tables of Delta, Iceberg, Hudi and Paimon, and find the data files of a version of a table.

Such a table records in files of its own which of its data files hold live rows. Its folder also holds data files of
rows that were removed or rewritten, so whoever reads all files gets rows that no longer exist, and rows several times.
Therefore files in such a folder are refused as plain files.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.packages import explain_missing
from data_prep.raw_log.formats import format_of
from data_prep.raw_log.storage import LogFile, file_name, file_state, files_in, inner, is_uri, split_query

if TYPE_CHECKING:
    from data_prep.raw_log.lake.lake_file import LakeFile

DELTA_LOG = "_delta_log"  # The subfolder with the transaction log of a Delta table.
# For each kind of table: the subfolders that its folder has, each with a regular expression for the name of a file in
# it, or "" if the name of the subfolder is evidence enough.
_MARKS = {
    "Delta": {DELTA_LOG: ""},
    "Iceberg": {"metadata": r".*\.metadata\.json(\.gz)?"},
    "Hudi": {".hoodie": ""},
    "Paimon": {"snapshot": r"snapshot-\d+|LATEST", "schema": r"schema-\d+"},
}
_EXPORT = "spark.read.format({!r}).load({!r}).write.parquet(NEW)"
METADATA_ENDING = ".metadata.json"  # Ending of the names of the metadata files of an Iceberg table.
_TABLE, _VERSION = "table", "version"  # Keys of the result of `version_read`.

log = logging.getLogger(__name__)

# For each kind of table: the library that reads it, and the words of messages for a version of the table and for the
# numbers that order its data files.
_READERS = {"Delta": ("deltalake", "version", "versions"), "Iceberg": ("pyiceberg", "snapshot", "sequence numbers")}


@dataclass(frozen=True)
class LakeTable:
    """A table of Delta, Iceberg, Hudi or Paimon, whose folder `table_at` has recognized by its subfolders."""

    kind: str  # A key of `_MARKS`, such as "Delta".
    root: str  # Path or URI of the table's folder.

    def __str__(self) -> str:
        marks = " and ".join(f"{name}/" for name in _MARKS[self.kind])
        return f"{self.root} is a table of {self.kind} (it has {marks})"


def table_at(folder: str) -> LakeTable | None:
    """Return the table whose folder is `folder` itself, or None if it is not the folder of a table.

    A folder that cannot be listed does not count as a table, because access to folders above the log may be denied.
    """
    for kind, marks in _MARKS.items():
        if all(_has(inner(folder, name), pattern) for name, pattern in marks.items()):
            return LakeTable(kind, folder)
    return None


def find_table(location: str, look: Callable[[str], LakeTable | None] = table_at) -> LakeTable | None:
    """Return the table to which a file or folder belongs, or None if neither it nor a folder above it is a table's.

    `look` is the function that tells whether a folder is a table's: `table_at`, or a function that remembers the
    results of `table_at`, for callers that ask about many files.
    """
    return next(filter(None, map(look, _with_parents(location))), None)


def refuse(table: LakeTable | None) -> None:
    """Raise ValueError if `table` is not None. The message says how to read the rows that the table has now."""
    if table is not None:
        advice = f"Give the table's folder as the only input: {table.root}"
        if table.kind not in _READERS:
            export = _EXPORT.format(table.kind.lower(), table.root)
            advice = f"Export the live rows and give the new folder, in Spark: {export}"
        raise ValueError(
            f"{table}: its folders also hold rows that were removed or replaced, so its files cannot be read as a log. "
            f"{advice}"
        )


def _with_parents(location: str) -> Iterator[str]:
    """Yield a path or a URI, and then all folders above it. For a path with links, the folders of its target follow."""
    if is_uri(location):
        address, query = split_query(location)
        scheme, between, path = address.partition("://")
        names = path.rstrip("/").split("/")
        for length in range(len(names), 0, -1):
            yield f"{scheme}{between}{'/'.join(names[:length])}{query}"
        return
    written = Path(os.path.normpath(Path(location).absolute()))
    # `realpath` also returns a path for links that lead in a circle, for which `Path.resolve` raises an error.
    for target in dict.fromkeys([written, Path(os.path.realpath(written))]):
        yield from map(str, [target, *target.parents])


def _has(folder: str, pattern: str) -> bool:
    """Return True if `folder` is a folder and, unless `pattern` is "", has a file whose name matches it."""
    try:
        files = files_in(folder)
    except OSError:
        return False
    return files is not None and (not pattern or any(re.fullmatch(pattern, file_name(file)) for file in files))


def table_files(
    location: str, look: Callable[[str], LakeTable | None], version: int | None, earlier: Mapping[str, Any]
) -> dict[str, LakeFile] | None:
    """Return the data files of the table at `location`, by their locations, in the order in which they are read.

    Return None if there is no Delta or Iceberg table. `look` is the function that tells whether a folder is the folder
    of a table, such as `table_at`. `version` is the version of a Delta table or the id of a snapshot of an Iceberg
    table. If it is None, the version is that in `earlier`, which `version_read` returned for an earlier command with
    the same log, or else the newest one.

    Raise ValueError if the table cannot be read, or if the library for it is missing.
    """
    is_file = file_state(location) is not None  # Raises an error if a server does not answer.
    table = None if is_file else look(location)
    kind = table.kind if table else "Iceberg" if is_file and location.endswith(METADATA_ENDING) else ""
    if kind not in _READERS:
        return None
    library, name, order = _READERS[kind]
    root = location.rstrip("/") if is_uri(location) else os.path.realpath(location)
    if importlib.util.find_spec(library) is None:
        raise ValueError(f"{location} is a table of {kind}, and {explain_missing(library)}")
    # The module is imported only for such a table, because its library may be missing otherwise.
    if kind == "Delta":
        from data_prep.raw_log.lake.delta_table import data_files
    else:
        from data_prep.raw_log.lake.iceberg_table import data_files
    if version is None and earlier.get(_TABLE) == root:
        version = earlier[_VERSION]
    files = data_files(root, version)
    if not files:
        raise ValueError(f"{location}: the table of {kind} has no rows; --version N reads another {name}")
    if other := [file for file in files if format_of(file).name != "Parquet"]:
        raise ValueError(f"{location}: the table of {kind} has files that do not end in .parquet, such as {other[0]}")
    number = next(iter(files.values())).version
    text = "%s: table of %s, %s %s; its %s data files are read in the order of their commits (%s), then of their paths"
    log.info(text, location, kind, name, number, f"{len(files):,}", order)
    return files


def version_read(files: Sequence[LogFile]) -> dict[str, Any]:
    """Return the location and the version of the Delta or Iceberg table that a log is, or {} if it is none."""
    lake = files[0].lake
    return {_TABLE: lake.table, _VERSION: lake.version} if lake else {}
