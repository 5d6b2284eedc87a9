"""Pass each distinct row of a batch to the device once, and receive one summed gradient for it.

The embedding tables get the distinct rows, ordered by field, in the form of a batch that has one field and one batch
row for each distinct row. If two fields use the same row, it is passed twice, once for each field.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from app.model.native_tower import distinct_rows
from app.tables.checks import check_ids
from app.tables.interface import HostTables, RowGradients, Rows, TablesSpec, UniqueIds
from app.training.step.step import ByPosition, Watched, gradient_places, pad_rows
from data_prep.prepared.batches import Batch

log = logging.getLogger(__name__)

CAPACITY_STEP = 256  # The capacity of a compiled graph, in distinct rows, is a multiple of this number.
# A graph is compiled for a number of distinct rows, its capacity. The first graph has room for 1.08 times the rows of
# the batch that it is compiled for, and the second for 1.5 times. The third and last fits any batch.
MARGINS = 1.08, 1.5


@dataclass(frozen=True)
class DistinctIds(UniqueIds):
    """The distinct rows of a batch, and the positions of the batch at which each distinct row is used.

    `rows` has the ids of the distinct rows as a batch with one field, [U, 1]. `index`, int32 [B, C], has the number
    (from 0 to U - 1) of the distinct row at each position. `fields`, int32 [2 * C + 1], has three parts: for each field
    the number of its first distinct row; the number U; and for each field 1 if the tower's first layer multiplies each
    distinct row once, or 0 if the layer multiplies the row of every position.
    """

    rows: UniqueIds
    index: np.ndarray
    fields: np.ndarray


class ByDistinctRow(ByPosition):
    """Passes each distinct table row of a batch to the device once.

    The array of the distinct rows is padded to one of at most three sizes. A graph is compiled for each size.
    """

    def __init__(self, tables: HostTables, spec: TablesSpec, batch_size: int, most_distinct: float) -> None:
        """`spec` describes the fields of the batches. `tables` are made from `one_field(spec)`, with a single field.

        The tower's first layer multiplies each distinct row of a field once if the field's distinct rows in a batch are
        at most the share `most_distinct` of its positions. Otherwise the layer multiplies the row of every position.
        """
        super().__init__(tables, batch_size)
        self._spec = spec
        self._most_distinct = most_distinct
        self._capacities: list[int] = []
        self._deep = np.zeros((0, spec.embedding_dim), np.float32)

    def prepare(self, batch: Batch, will_change: bool = False) -> DistinctIds:
        size = self.tables.spec.vocabulary_size
        if size != self._spec.vocabulary_size:  # The vocabulary of an online run grows, and ids are renumbered.
            self._spec = replace(self._spec, vocabulary_size=size)
        check_ids(batch.ids, self._spec)
        row_ids, index, starts = distinct_rows(batch.ids)
        is_distinct = np.diff(starts) <= self._most_distinct * batch.num_rows
        rows = self.tables.unique(row_ids[:, None])
        self.tables.read_ahead(rows, will_change)
        # A short batch is filled up with copies of its first batch row, which get weight 0. An empty batch has no row
        # to copy, so `starts` gives each field one distinct row, and the batch is filled up with these rows.
        filling = index[:1]
        if not batch.num_rows:
            starts = np.arange(len(starts), dtype=np.int32)
            filling = starts[None, :-1]
        index = np.concatenate([index, np.repeat(filling, self.batch_size - batch.num_rows, axis=0)])
        fields = np.concatenate([starts, is_distinct.astype(np.int32)])
        return DistinctIds(rows.shape, rows.values, rows.inverse, rows, index, fields)

    def lookup(self, unique: UniqueIds, means: bool = False) -> Rows:
        return self.tables.lookup(own(unique).rows, means)

    def update(self, unique: UniqueIds, gradients: RowGradients) -> None:
        self.tables.update(own(unique).rows, gradients, checked=True)

    def inputs(self, unique: UniqueIds, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        num_rows = len(rows.wide)
        capacity = self._capacity(max(num_rows, len(self._spec.fields)))
        if len(self._deep) != capacity:
            self._deep = np.zeros((capacity, rows.deep.shape[1]), np.float32)
        # The rows of `_deep` from `num_rows` on may keep the values of an earlier batch, because the model does not use
        # them: `index` refers to none of them.
        self._deep[:num_rows] = rows.deep
        return self._deep, pad_rows(rows.wide, capacity)

    def index(self, unique: UniqueIds) -> dict[str, np.ndarray]:
        unique = own(unique)
        return {"index": unique.index, "fields": unique.fields}

    def places(self, batch: Batch, unique: UniqueIds, rows: Rows) -> tuple[Watched, Watched, Watched]:
        names, index = self._spec.field_names, own(unique).index[: batch.num_rows]
        deep = Watched("deep row", rows.deep[index].reshape(batch.num_rows, -1), names, batch.ids)
        wide = Watched("wide row", rows.wide[index], names, batch.ids)
        return deep, wide, Watched("sum of wide rows", rows.wide[index].sum(axis=1))

    def gradient_places(self, batch: Batch, unique: UniqueIds, gradients: RowGradients) -> tuple[Watched, Watched]:
        index = own(unique).index[: batch.num_rows]
        deep = gradients.deep[index].reshape(batch.num_rows, -1)
        return gradient_places(deep, gradients.wide[index].sum(axis=1), self._spec.field_names, batch.ids)

    def _capacity(self, num_rows: int) -> int:
        fitting = [capacity for capacity in self._capacities if capacity >= num_rows]
        if fitting:
            return min(fitting)
        most = self.batch_size * len(self._spec.fields)
        with_room = num_rows * MARGINS[len(self._capacities)] if len(self._capacities) < len(MARGINS) else most
        capacity = min(most, -(-int(with_room) // CAPACITY_STEP) * CAPACITY_STEP)
        self._capacities.append(capacity)
        log.info("the graph of a batch with up to %d distinct rows is compiled: one has %d", capacity, num_rows)
        return capacity


def own(unique: UniqueIds) -> DistinctIds:
    """Return `unique` unchanged, typed as `DistinctIds`. It must be a result of `ByDistinctRow.prepare`."""
    assert isinstance(unique, DistinctIds)
    return unique
