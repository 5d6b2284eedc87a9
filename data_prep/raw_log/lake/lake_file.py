"""Turn the rows of a data file of a Delta or Iceberg table into rows of the table.

A data file need not have the columns of its table: partition columns and columns that were added later are missing,
columns may have other names or narrower types, and rows may be marked as deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class LakeFile:
    """What is needed to read one data file of a Delta or Iceberg table: facts about the table and about the file."""

    table: str  # Absolute path or URI of the table.
    version: int  # Version of the Delta table, or id of the snapshot of the Iceberg table.
    schema: pa.Schema  # Names and types of the table's columns in this version.
    # For each column of the table: its name in the data file, or its Parquet field id.
    keys: Mapping[str, str | int]
    # Values of columns in all rows of the file, if the file lacks these columns. Other missing columns are null.
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)
    # True for each row of the file that is not deleted, bool [rows], or None if no row is deleted.
    kept: NDArray[np.bool_] | None = None
    # Field ids by the names of columns, for data files that were written without field ids.
    ids: Mapping[str, int] = field(default_factory=dict)
    inexact: frozenset[str] = frozenset()  # Columns whose value in `values` may be rounded.

    def stored_names(self, location: str, file_schema: pa.Schema) -> dict[str, str]:
        """Return the names in the data file of those columns of the table that the file has.

        `location` and `file_schema` are those of the file. Raise ValueError if columns are identified by field ids and
        the file has none, or if the file lacks a column whose exact value is unknown.
        """
        names: dict[str | int, str] = {each.name: each.name for each in file_schema}
        ids: dict[str | int, str] = {
            int(each.metadata[_FIELD_ID]): each.name for each in file_schema if _FIELD_ID in (each.metadata or {})
        }
        ids = ids or {self.ids[each.name]: each.name for each in file_schema if each.name in self.ids}
        if not ids and all(isinstance(key, int) for key in self.keys.values()):
            raise ValueError(
                f"{location}: its columns have no field ids, by which the table identifies columns, and the table has "
                "no name mapping; rewrite the file, or set the table's property schema.name-mapping.default"
            )
        places = names | ids
        stored = {name: places[key] for name, key in self.keys.items() if key in places}
        if unknown := sorted(self.inexact - stored.keys()):
            raise ValueError(
                f"{location}: it lacks the partition columns {', '.join(unknown)} of type double, whose values the "
                "installed pyiceberg rounds to the precision of a float; rewrite the data files with these columns"
            )
        return stored

    def rows(
        self, batch: pa.RecordBatch, names: Sequence[str], stored: Mapping[str, str], first_row: int
    ) -> pa.RecordBatch:
        """Return the columns `names` of the table for a batch of rows of the data file, without deleted rows.

        `stored` is the result of `stored_names`, and `first_row` the index of the batch's first row in the file.
        """
        columns = [
            _of_type(batch.column(stored[name]), self.schema.field(name).type)
            if name in stored
            else pa.repeat(self.values.get(name, pa.scalar(None, self.schema.field(name).type)), len(batch))
            for name in names
        ]
        rows = pa.RecordBatch.from_arrays(columns, list(names))
        return rows if self.kept is None else rows.filter(pa.array(self.kept[first_row : first_row + len(batch)]))


def _of_type(cells: pa.Array, of_type: pa.DataType) -> pa.Array:
    """Return a column with the type that it has in the table. Times are cut to the precision of that type."""
    return cells if cells.type == of_type else cells.cast(of_type, safe=not pa.types.is_timestamp(of_type))


def location_of(path: str, query: str, folder: str = "") -> str:
    """Return the location of a data file that a table's metadata name by a path or URI without escapes such as %20.

    A relative path is relative to `folder`, which is also without escapes. `query` is the query of the table's URI.
    """
    if folder and not re.match(r"(\w+:)?/", path):
        path = f"{folder.rstrip('/')}/{path}"
    scheme, _, rest = path.partition(":") if re.match(r"\w+:/", path) else ("", "", path)
    if scheme in ("", "file"):
        return str(Path(re.sub("^/+", "/", rest)).absolute())
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{quote(rest.lstrip('/'), safe='/:@')}{query}"


@contextmanager
def clear_errors(what: str, advice: str, other: type[Exception] = NotImplementedError) -> Iterator[None]:
    """Replace errors inside the `with` block by a ValueError of one line: `what` cannot be read, why, and `advice`.

    These errors are OSError, ValueError, and `other`, the error of the library that reads the table.
    """
    try:
        yield
    except (OSError, ValueError, other) as error:
        reason = str(error).partition("\n")[0].removesuffix(".")
        raise ValueError(f"{what} cannot be read: {reason}. {advice}") from error
