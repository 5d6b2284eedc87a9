"""Recognize folders that belong to a table of Delta, Iceberg, Hudi or Paimon, and refuse to read them as plain files.

Such a table records in files of its own which of its data files hold live rows. The folder also holds data files of
rows that were removed or rewritten, so whoever reads all files gets rows that no longer exist, and rows several times.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data_prep.raw_log.storage import file_name, files_in, inner, is_uri, split_query

DELTA_LOG = "_delta_log"  # The subfolder with the transaction log of a Delta table.
# For each kind of table: the subfolders that its folder has, each with a regular expression for the name of a file in
# it, or "" if the name of the subfolder is evidence enough.
_MARKS = {
    "Delta": {DELTA_LOG: ""},
    "Iceberg": {"metadata": r".*\.metadata\.json(\.gz)?"},
    "Hudi": {".hoodie": ""},
    "Paimon": {"snapshot": r"snapshot-\d+|LATEST", "schema": r"schema-\d+"},
}
READABLE = ("Delta", "Iceberg")  # Kinds of tables that the package `lake` reads.
_EXPORT = "spark.read.format({!r}).load({!r}).write.parquet(NEW)"


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
        if table.kind not in READABLE:
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
