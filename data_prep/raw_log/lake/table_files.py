"""Find a Delta or Iceberg table at a location, and the data files of one version of it."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common.packages import explain_missing
from data_prep.raw_log.formats import format_of
from data_prep.raw_log.lake.lake_guard import LakeTable
from data_prep.raw_log.storage import LogFile, file_state, is_uri

if TYPE_CHECKING:
    from data_prep.raw_log.lake.lake_file import LakeFile

METADATA_ENDING = ".metadata.json"  # Ending of the names of the metadata files of an Iceberg table.
_TABLE, _VERSION = "table", "version"  # Keys of the result of `version_read`.

log = logging.getLogger(__name__)

# For each kind of table: the library that reads it, and the words of messages for a version of the table and for the
# numbers that order its data files.
_READERS = {"Delta": ("deltalake", "version", "versions"), "Iceberg": ("pyiceberg", "snapshot", "sequence numbers")}


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
