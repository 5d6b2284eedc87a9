"""Statistics of the tables' rows, which a run logs at each save: their norms, and how many were touched.

Letters: T touched rows, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from app.tables.interface import TableSnapshot

SAMPLED_ROWS = 2**16


def table_statistics(tables: Mapping[str, TableSnapshot], vocabulary_size: int) -> dict[str, float]:
    """Return `touched_rows` T, `touched_share` T / V and for each table the root mean square norm of its touched rows.

    Of more than `SAMPLED_ROWS` rows it reads that many at equal steps, so that a save takes no longer.
    """
    touched = max((len(table.row_ids) for table in tables.values()), default=0)
    values: dict[str, float] = {"touched_rows": touched, "touched_share": touched / vocabulary_size}
    for name, table in tables.items():
        every = -(-len(table.row_ids) // SAMPLED_ROWS) or 1
        rows = table.read("rows", slice(None, None, every)).astype(np.float64)
        values[f"{name}_row_norm"] = float(np.sqrt(np.square(rows).sum() / max(len(rows), 1)))
    return values


def merged(parts: list[dict[str, float]]) -> dict[str, float]:
    """Return the statistics of all rows from those of several parts."""
    if len(parts) == 1:
        return parts[0]
    total = sum(part["touched_rows"] for part in parts)
    values = {"touched_rows": total, "touched_share": sum(part["touched_share"] for part in parts)}
    for name in sorted({name for part in parts for name in part} - values.keys()):
        squares = sum(part["touched_rows"] * part.get(name, 0.0) ** 2 for part in parts)
        values[name] = float(np.sqrt(squares / max(total, 1)))
    return values
