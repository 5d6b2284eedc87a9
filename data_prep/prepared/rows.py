"""Rows of a prepared folder as arrays: encoded ones on their way into it, blocks on their way out.

Letters: n rows, N numeric columns, C categorical fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Block:
    """Rows as `app` reads them."""

    ids: NDArray[np.signedinteger]  # [n, C]
    numeric: NDArray[np.float32]  # [n, N]
    labels: NDArray[np.float32]  # [n]


@dataclass(frozen=True)
class EncodedRows:
    """Rows as they are written."""

    ids: NDArray[np.signedinteger]  # [n, C] int32, or int64 where V >= 2**31
    numeric: NDArray[np.float32]  # [n, N]
    labels: NDArray[np.float32]  # [n]
    row_numbers: NDArray[np.int64]  # [n] lines of the log, from 0

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: NDArray[np.generic] | slice) -> EncodedRows:
        """The rows a mask, an index or a slice chooses."""
        columns = (self.ids, self.numeric, self.labels, self.row_numbers)
        return EncodedRows(*(_take(column, chosen) for column in columns))


def _take(column: NDArray[Any], chosen: NDArray[Any] | slice) -> NDArray[Any]:
    if isinstance(chosen, slice):
        return column[chosen]
    places = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    return np.take(column, places, axis=0)  # column[places] takes three times as long


def row_bytes(num_categorical: int, num_numeric: int, ids_dtype: str) -> int:
    """Bytes of one row of `EncodedRows`."""
    return num_categorical * np.dtype(ids_dtype).itemsize + num_numeric * 4 + 4 + 8


def concatenate(parts: Sequence[EncodedRows]) -> EncodedRows:
    """Rows of all parts, in order."""
    return EncodedRows(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.numeric for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.row_numbers for part in parts]),
    )
