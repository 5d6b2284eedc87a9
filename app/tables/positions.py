"""Find the distinct ids of a batch, expand their rows to positions, and sum gradients over the positions of an id.

The functions are in NumPy, and the C++ kernels are tested against them. A position is one id of a batch row. A plain
field has one position. A list field has one position per value, and the rows of its values are pooled into one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.tables.checks import check_ids
from app.tables.fields import NO_ROW, TableField, field_of_position, position_weights
from app.tables.interface import ListPositions, TablesSpec, UniqueIds


def find_unique(ids: np.ndarray, spec: TablesSpec) -> UniqueIds:
    """Return the distinct ids of a batch's `ids` [B, P]. Raise ValueError for ids out of range, as `Tables.unique`
    does.
    """
    check_ids(ids, spec)
    lists = find_lists(ids, spec.fields) if spec.has_lists else None
    values, inverse = np.unique(ids if lists is None else ids[ids != NO_ROW], return_inverse=True)
    return UniqueIds((len(ids), len(spec.fields)), values.astype(np.int64), inverse.reshape(-1), lists=lists)


def find_lists(ids: np.ndarray, fields: Sequence[TableField]) -> ListPositions:
    """Return batch row, field and pooling factor of each value in `ids` [B, P], in the order of batch rows. Skip the
    positions of list fields that hold no value.
    """
    row, position = np.nonzero(ids != NO_ROW)
    places = (row * len(fields) + field_of_position(fields)[position]).astype(np.int32)
    counts = np.bincount(places, minlength=len(ids) * len(fields))
    first = np.append(0, np.cumsum(counts)).astype(np.int32)
    return ListPositions(first, places, position_weights(ids, fields)[row, position])


def expand(unique: UniqueIds, deep_rows: np.ndarray, wide_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the embedding rows of a batch by field, [B, C * D], and the sum of the wide weights of each batch row,
    [B], for `Rows`.

    `deep_rows` [U, D] and `wide_rows` [U] are the rows of the batch's distinct ids.

    Rows of the values of one list field, and wide rows of one batch row, are added in the order of positions.
    """
    (batch, num_fields), dim = unique.shape, deep_rows.shape[1]
    deep, by_position = deep_rows[unique.inverse], wide_rows[unique.inverse]
    if unique.lists is not None:
        by_position = unique.lists.weights * by_position
        weighted = unique.lists.weights[:, None] * deep
        deep = np.zeros((batch * num_fields, dim), np.float32)
        np.add.at(deep, unique.lists.places, weighted)
    wide = np.zeros(batch, np.float32)
    # `np.add.at` adds in the order of positions, as the kernels do. `np.sum` would add pairwise, which rounds
    # differently.
    np.add.at(wide, _batch_rows(unique), by_position)
    return deep.reshape(batch, num_fields * dim), wide


def sum_deep_by_id(unique: UniqueIds, deep: np.ndarray, embedding_dim: int) -> np.ndarray:
    """Sum the gradients `deep` [B, C * D] over all positions of each distinct id, in the order of positions. Return
    float32 [U, D].
    """
    by_position = deep.reshape(unique.shape[0] * unique.shape[1], embedding_dim)
    if unique.lists is not None:
        by_position = unique.lists.weights[:, None] * by_position[unique.lists.places]
    return _sum_by_id(unique, by_position)


def sum_wide_by_id(unique: UniqueIds, wide: np.ndarray) -> np.ndarray:
    """Sum the gradients `wide` [B] over all positions of each distinct id, in the order of positions. Return float32
    [U].

    The gradient of a batch row counts once for each position of that row.
    """
    by_position = wide[_batch_rows(unique)]
    return _sum_by_id(unique, by_position if unique.lists is None else unique.lists.weights * by_position)


def _batch_rows(unique: UniqueIds) -> np.ndarray:
    places = np.arange(unique.inverse.size) if unique.lists is None else unique.lists.places
    return places // max(unique.shape[1], 1)


def _sum_by_id(unique: UniqueIds, by_position: np.ndarray) -> np.ndarray:
    sums = np.zeros((unique.values.size, *by_position.shape[1:]), np.float32)
    np.add.at(sums, unique.inverse, by_position)
    return sums
