"""Both tables where fields are lists: each distinct row is looked up once, as a batch row of one field, and the rows of
a field's positions are pooled into one (`pooling.py`). Gradients are summed by row before the update.

Letters: B batch, P positions, C fields, D embedding width, n present positions, U unique ids of a batch.
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
from app.tables.reference import sum_by_id


@dataclass(frozen=True)
class PooledIds(UniqueIds):
    """The distinct ids of a batch; its own shape [B, C] and inverse are those of each field's first position.

    `rows` has them as a batch [U, 1], `found` the present positions as one [n, 1]. Of each present position, in their
    order: `place` [n] of its field's row among B * C, its `weight` [n] in that row. `first` [B * C + 1] are the first
    ones of each field's row, and n.
    """

    rows: UniqueIds
    found: UniqueIds
    place: np.ndarray
    weight: np.ndarray
    first: np.ndarray


class ListKernels:
    """The sums over a list's positions in NumPy: their definition, and those of the `reference` backend."""

    def __init__(self, spec: TablesSpec) -> None:
        """`row_spec` is that of tables whose batches are single rows, [n, 1]."""
        self.row_spec = replace(spec, fields=(TableField("row"),))

    def unique(self, ids: np.ndarray) -> UniqueIds:
        """Return the distinct ids of `ids` [n, 1], all of them in the vocabulary."""
        values, inverse = np.unique(ids, return_inverse=True)
        return UniqueIds((len(ids), 1), values, inverse.reshape(-1))

    def expand(self, ids: PooledIds, deep_rows: np.ndarray, wide_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `Rows.deep` and `Rows.wide` of `deep_rows` [U, D] and `wide_rows` [U], position by position.

        They are valid until the call after the next.
        """
        (batch, num_fields), inverse = ids.shape, ids.found.inverse
        deep = np.zeros((batch * num_fields, self.row_spec.embedding_dim), np.float32)
        np.add.at(deep, ids.place, deep_rows[inverse] * ids.weight[:, None])
        wide = np.zeros(batch, np.float32)
        np.add.at(wide, ids.place // max(num_fields, 1), ids.weight * wide_rows[inverse])
        return deep.reshape(batch, num_fields * self.row_spec.embedding_dim), wide

    def sum_by_id(self, ids: PooledIds, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sum gradients [B, C * D] and [B], times their weights, to [U, D] and [U] in order of position; valid until
        the next call."""
        batch, num_fields = ids.shape
        by_field = deep.reshape(batch * num_fields, self.row_spec.embedding_dim)
        by_position = wide[ids.place // max(num_fields, 1)] * ids.weight
        deep_sums = sum_by_id(by_field[ids.place] * ids.weight[:, None], ids.found)
        return deep_sums, sum_by_id(by_position[:, None], ids.found)[:, 0]


class ListTables(HostTables):
    """`HostTables` whose fields may be lists, over tables of single rows."""

    def __init__(self, spec: TablesSpec, make: Callable[[TablesSpec], HostTables], kernels: ListKernels) -> None:
        """`make` makes the tables of single rows."""
        self.spec = spec
        self._kernels = kernels
        self._tables = make(kernels.row_spec)
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
        found = self._kernels.unique(ids[present][:, None])
        rows = self._tables.unique(found.values[:, None])
        first = np.flatnonzero(self._place_in_list[position] == 0).astype(np.int32)
        weight = position_weights(ids, self.spec.fields)[present]
        place = (of_row * num_fields + self._field_of[position]).astype(np.int32)
        inverse = found.inverse[first]
        first = np.append(first, np.int32(place.size))
        return PooledIds((batch, num_fields), found.values, inverse, rows, found, place, weight, first)

    def lookup(self, unique: UniqueIds) -> Rows:
        ids = _own(unique)
        rows = self._tables.lookup(ids.rows)
        deep, wide = self._kernels.expand(ids, rows.deep, rows.wide)
        return Rows(deep, wide, rows.squared_norm)

    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        """Take a step: the gradient of a position is that of its field times its weight."""
        ids = _own(unique)
        check = check_gradients_shape if checked else check_gradients
        check(gradients, ids.shape[0], self.spec)
        deep, wide = self._kernels.sum_by_id(ids, gradients.deep, gradients.wide)
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
