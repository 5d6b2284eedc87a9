"""Results as data frames: of the kind of the table that was given, or of pandas, which not every use needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from common.packages import load


def as_series(rows: Any, values: np.ndarray, name: str) -> Any:
    """Return values [n] of rows as a series of pandas (with the table's index) or polars, else as an array."""
    if hasattr(rows, "iloc"):
        return load("pandas").Series(values, index=rows.index, name=name)
    return load("polars").Series(name, values) if _is_of_polars(rows) else values


def as_frame(rows: Any, columns: Mapping[str, Any]) -> Any:
    """Return columns of rows as a table of the same kind, with the index of a pandas table. Lines get a table of
    pandas.

    Raises ModuleNotFoundError if pandas is not there.
    """
    if _is_of_polars(rows):
        return load("polars").DataFrame(dict(columns))
    if hasattr(rows, "schema"):
        import pyarrow as pa

        return pa.table(dict(columns))
    return load("pandas").DataFrame(dict(columns), index=rows.index if hasattr(rows, "iloc") else None)


def _is_of_polars(rows: Any) -> bool:
    return type(rows).__module__.partition(".")[0] == "polars"
