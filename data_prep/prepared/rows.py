"""Rows of a prepared folder as arrays, on their way into it and out of it.

Letters: n rows, N numeric columns, P positions of ids (as many as categorical fields where none is a list).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rows:
    """Ids, numbers and labels of n rows."""

    ids: NDArray[np.signedinteger]  # [n, P] int32, or int64 where V >= 2**31; -1: a list has no more values
    numeric: NDArray[np.float32]  # [n, N]
    labels: NDArray[np.float32]  # [n]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: NDArray[np.generic] | slice) -> Rows:
        """Return the rows that a mask, an index or a slice chooses; views of these for a slice."""
        return Rows(*(_take(column, chosen) for column in (self.ids, self.numeric, self.labels)))


def _take(column: NDArray[Any], chosen: NDArray[Any] | slice) -> NDArray[Any]:
    if isinstance(chosen, slice):
        return column[chosen]
    indices = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    return np.take(column, indices, axis=0)  # column[indices] takes three times as long


def row_bytes(num_positions: int, num_numeric: int, ids_dtype: str) -> int:
    """Return the bytes of a row while a log is prepared: those of `Rows`, and the line's number beside them."""
    return num_positions * np.dtype(ids_dtype).itemsize + num_numeric * 4 + 4 + 8


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, in order; a single part as it is."""
    if len(parts) == 1:
        return parts[0]
    return Rows(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.numeric for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
