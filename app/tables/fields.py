"""Describe looked-up fields, and pool the rows of a list field into one row, in NumPy.

A position is one id column of a batch row. A position without a value has the id -1 and no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from data_prep.prepared import examples

NO_ROW = -1  # Id that stands for no value. Lists with fewer values than id columns are filled up with it.


class TableField(NamedTuple):
    """A looked-up field, and the parts of the model (wide, deep) that see it.

    The field takes `length` consecutive columns of a batch's ids. With more than one column it is a list: its
    row is the sum of the rows of its values, or their mean if `mean` is set.
    """

    name: str
    wide: bool = True
    deep: bool = True
    length: int = 1
    mean: bool = False


def field_of_position(fields: Sequence[TableField]) -> np.ndarray:
    """Return for each of a batch's P id columns the index in `fields` of the field that it belongs to, int32 [P]."""
    return np.repeat(np.arange(len(fields), dtype=np.int32), [field.length for field in fields])


def columns_of(fields: Sequence[TableField], part: Literal["wide", "deep"]) -> list[int]:
    """Return the indices of the columns of a batch's ids [B, P] whose fields `part` of the model sees, ascending."""
    ends = np.cumsum([field.length for field in fields]).tolist()
    bounds = [(end - field.length, end) for field, end in zip(fields, ends, strict=True) if getattr(field, part)]
    return [column for first, end in bounds for column in range(first, end)]


def position_weights(ids: np.ndarray, fields: Sequence[TableField]) -> np.ndarray:
    """Return the factors with which the rows of a field's positions are added up to the field's row, float32 [B, P].

    The factor is 0 where the position has no value. In a list field whose rows are averaged (`mean`) it is 1 / (number
    of values in the batch row's list). Otherwise it is 1.
    """
    return examples.position_weights(ids, ((field.length, field.mean) for field in fields))


def pool(rows: np.ndarray, weights: np.ndarray, fields: Sequence[TableField]) -> np.ndarray:
    """Pool the rows of positions [B, P, D] into the rows of fields, and return these, [B, C, D]. Rows are added in the
    order of positions.

    `weights` [B, P] come from `position_weights`. A position of weight 0 adds nothing, even if its row is not
    finite.
    """
    if len(fields) == rows.shape[1]:  # There are no list fields.
        return rows
    pooled = np.zeros((len(rows), len(fields), rows.shape[2]), np.float32)
    for position, field in enumerate(field_of_position(fields)):
        if fields[field].length == 1:
            pooled[:, field] = rows[:, position]
            continue
        weight = weights[:, position, None]
        np.add(pooled[:, field], weight * rows[:, position], out=pooled[:, field], where=weight > 0)
    return pooled


def sum_over_positions(wide: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return Σ weights · wide over the positions of each batch row, float32 [B].

    `wide` [B, P] are weights of the wide table, `weights` [B, P] the factors of `position_weights`. A position with
    factor 0 adds nothing, even if its value is not finite.
    """
    return sum_in_order(np.where(weights > 0, weights * wide, np.float32(0)))


def sum_in_order(terms: np.ndarray) -> np.ndarray:
    """Sum each row of `terms` [B, P] from left to right. Returns [B].

    Training adds in this order. `np.sum` adds pairwise, which rounds differently.
    """
    if not terms.shape[1]:
        return np.zeros(len(terms), np.float32)
    return np.add.accumulate(terms, axis=1)[:, -1]
