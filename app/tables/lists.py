"""Both tables where fields are lists: each present position is looked up as a batch row of one field, and the rows of a
field's positions are pooled into one (`pooling.py`).

Letters: B batch, P positions, C fields, D embedding width, n present positions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from app.tables.checks import check_gradients, check_gradients_shape, check_ids_shape
from app.tables.fields import TableField
from app.tables.interface import (
    HostTables,
    RowGradients,
    Rows,
    Snapshot,
    TablesSpec,
    TableState,
    UniqueIds,
    WriteRows,
)
from app.tables.pooling import NO_ROW, field_of_position, position_weights


@dataclass(frozen=True)
class PooledIds(UniqueIds):
    """The distinct ids of a batch; its own shape [B, C] and inverse are those of each field's first position.

    Of each present position, in their order: `place` [n] of its field's row among B * C, its `weight` [n] in that row.
    `first` [B * C] are the first ones of each field's row.
    """

    rows: UniqueIds
    place: np.ndarray
    weight: np.ndarray
    first: np.ndarray


class ListTables(HostTables):
    """`HostTables` whose fields may be lists, over tables of single rows."""

    def __init__(self, spec: TablesSpec, make: Callable[[TablesSpec], HostTables]) -> None:
        """`make` makes the tables of single rows."""
        self.spec = spec
        self._tables = make(replace(spec, fields=(TableField("row"),)))
        self._field_of = field_of_position(spec.fields)
        lengths = np.array([field.length for field in spec.fields], np.int64)
        self._first = np.cumsum(lengths) - lengths
        self._place_in_list = np.arange(self._field_of.size) - np.repeat(self._first, lengths)

    @property
    def step(self) -> int:  # type: ignore[override]
        return self._tables.step

    @property
    def update_seconds(self) -> dict[str, float]:  # type: ignore[override]
        return self._tables.update_seconds

    def unique(self, ids: np.ndarray) -> PooledIds:
        """See `Tables.unique`; a list has -1 in the positions after its values."""
        self._check(ids)
        (batch, _), num_fields = ids.shape, len(self.spec.fields)
        present = ids != NO_ROW
        of_row, position = np.nonzero(present)
        rows = self._tables.unique(ids[present][:, None])
        first = np.flatnonzero(self._place_in_list[position] == 0)
        weight = position_weights(ids, self.spec.fields)[present]
        place = of_row * num_fields + self._field_of[position]
        return PooledIds((batch, num_fields), rows.values, rows.inverse[first], rows, place, weight, first)

    def lookup(self, unique: UniqueIds) -> Rows:
        ids = _own(unique)
        (batch, num_fields), found = ids.shape, self._tables.lookup(ids.rows)
        weighted = found.deep * ids.weight[:, None]
        deep = (
            np.add.reduceat(weighted, ids.first, axis=0) if len(ids.first) else weighted
        )  # every field has a position
        wide = np.zeros(batch, np.float32)
        np.add.at(wide, ids.place // max(num_fields, 1), ids.weight * found.wide)
        return Rows(deep.reshape(batch, num_fields * self.spec.embedding_dim), wide, found.squared_norm)

    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        """Take a step: the gradient of a position is that of its field times its weight."""
        ids = _own(unique)
        batch, num_fields = ids.shape
        check = check_gradients_shape if checked else check_gradients
        check(gradients, batch, self.spec)
        by_field = gradients.deep.reshape(batch * num_fields, self.spec.embedding_dim)
        deep = by_field.take(ids.place, axis=0)
        deep *= ids.weight[:, None]
        wide = gradients.wide[ids.place // max(num_fields, 1)] * ids.weight
        self._tables.update(ids.rows, RowGradients(deep, wide, gradients.scale), checked=True)

    def state(self) -> dict[str, TableState]:
        return self._tables.state()

    def snapshot(self, changed_only: bool) -> Snapshot:
        return self._tables.snapshot(changed_only)

    def loading(self, step: int) -> AbstractContextManager[WriteRows]:
        return self._tables.loading(step)

    def _check(self, ids: np.ndarray) -> None:
        check_ids_shape(ids, self.spec)
        lowest = np.where(self._place_in_list == 0, 0, NO_ROW)
        bad = np.argwhere((ids < lowest) | (ids >= self.spec.vocabulary_size))
        if len(bad):
            row, position = bad[0]
            field = self.spec.field_names[self._field_of[position]]
            raise ValueError(
                f"batch row {row}, field {field}: id {ids[row, position]} is outside 0 … "
                f"{self.spec.vocabulary_size - 1} (a list may have {NO_ROW} after its first value); was the data "
                "prepared with another vocabulary than the model's?"
            )


def _own(unique: UniqueIds) -> PooledIds:
    if not isinstance(unique, PooledIds):
        raise TypeError(f"tables of lists need the result of their own unique(), found {type(unique).__name__}")
    return unique
