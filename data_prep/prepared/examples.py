"""Rows of a prepared folder as arrays, on their way into it and out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.prepared.schema import NO_ID

KEY_PREFIX = "key_"  # of the MindRecord column with the keys of a column of kind id


@dataclass(frozen=True)
class Examples:
    """Ids, numbers and labels of n rows, and the weights and keys that stand beside them."""

    ids: NDArray[np.signedinteger]  # [n, P] int32, or int64 if V >= 2**31; -1: a list has no more values
    numeric: NDArray[np.float32]  # [n, N]
    labels: NDArray[np.float32]  # [n]
    weights: NDArray[np.float32] | None = None  # [n] >= 0; None: all rows count alike
    keys: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # [n] each: the text's key, by column of kind id

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, selection: NDArray[np.generic] | slice) -> Examples:
        """Return the rows that a mask, an index or a slice chooses. A slice gives views."""
        return _of_each_column(lambda column: _take(column, selection), [self])

    def room(self, num_rows: int) -> Examples:
        """Return arrays for so many rows of the same form. They take memory as they are written to."""
        return _of_each_column(lambda column: np.empty((num_rows, *column.shape[1:]), column.dtype), [self])

    def overwrite(self, first: int, rows: Examples) -> None:
        """Overwrite the rows from number `first` on with others of the same form."""
        for column, new in zip(self.columns(), rows.columns(), strict=True):
            column[first : first + len(rows)] = new

    def columns(self) -> list[NDArray[Any]]:
        """Return all arrays, in a fixed order."""
        weights = [] if self.weights is None else [self.weights]
        return [self.ids, self.numeric, self.labels, *weights, *self.keys.values()]


def _of_each_column(function: Callable[..., NDArray[Any]], parts: Sequence[Examples]) -> Examples:
    """Return rows of which each column is `function` of that column in all parts."""
    first = parts[0]
    ids, numeric, labels, *others = map(function, *(part.columns() for part in parts))
    weights = None if first.weights is None else others.pop(0)
    return Examples(ids, numeric, labels, weights, dict(zip(first.keys, others, strict=True)))


def _take(column: NDArray[Any], selection: NDArray[Any] | slice) -> NDArray[Any]:
    if isinstance(selection, slice):
        return column[selection]
    indices = np.flatnonzero(selection) if selection.dtype == np.bool_ else selection
    return np.take(column, indices, axis=0)  # column[indices] takes three times as long


def concatenate(parts: Sequence[Examples]) -> Examples:
    """Return the rows of all parts, in order. A single part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    return _of_each_column(lambda *columns: np.concatenate(columns), parts)


def position_weights(ids: np.ndarray, fields: Iterable[tuple[int, bool]]) -> np.ndarray:
    """Return the weight [n, P] float32 of each position of ids [n, P] in its field: 0 if there is none, else 1.

    `fields` are the length of each and whether it is a mean. There it is 1 / present values.
    """
    weights: np.ndarray = (ids != NO_ID).astype(np.float32)
    start = 0
    for length, is_mean in fields:
        if is_mean and length > 1:
            of_field = weights[:, start : start + length]
            of_field /= np.maximum(of_field.sum(axis=1, keepdims=True), np.float32(1))
        start += length
    return weights
