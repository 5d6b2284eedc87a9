"""The looked-up fields of a model: the parts that see each, and how the rows of its positions become one, in NumPy.

A position without a value has id -1, and no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from data_prep.prepared import examples

NO_ROW = -1  # the id of a position without a value


class TableField(NamedTuple):
    """A looked-up field and the parts of the model that see it.

    It takes `length` consecutive columns of a batch's ids. Several columns are a list: the field's row is the sum of
    the rows of its values, or with `mean` their average.
    """

    name: str
    wide: bool = True
    deep: bool = True
    length: int = 1
    mean: bool = False


def field_of_position(fields: Sequence[TableField]) -> np.ndarray:
    """Return the index in `fields` of each position [P]."""
    return np.repeat(np.arange(len(fields), dtype=np.int32), [field.length for field in fields])


def columns_of(fields: Sequence[TableField], part: Literal["wide", "deep"]) -> list[int]:
    """Return the columns of ids of the fields that a part sees."""
    ends = np.cumsum([field.length for field in fields]).tolist()
    bounds = [(end - field.length, end) for field, end in zip(fields, ends, strict=True) if getattr(field, part)]
    return [column for first, end in bounds for column in range(first, end)]


def position_weights(ids: np.ndarray, fields: Sequence[TableField]) -> np.ndarray:
    """Return the weight [B, P] float32 of each position in its field's row: 0 where there is no row, 1 / present values
    in a mean, else 1."""
    return examples.position_weights(ids, ((field.length, field.mean) for field in fields))


def pool(rows: np.ndarray, weights: np.ndarray, fields: Sequence[TableField]) -> np.ndarray:
    """Return the rows [B, C, D] of fields from those of their positions [B, P, D], added in order of position.

    A position of weight 0 adds nothing, whatever its row.
    """
    if len(fields) == rows.shape[1]:  # no list
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
    """Return the sum of `wide` [B, P], each times its weight, position by position: [B] float32.

    A position of weight 0 adds nothing, whatever `wide` is there.
    """
    return sum_in_order(np.where(weights > 0, weights * wide, np.float32(0)))


def sum_in_order(terms: np.ndarray) -> np.ndarray:
    """[B, P] -> [B], one position after the other, as training adds them (`sum` adds pairwise)."""
    if not terms.shape[1]:
        return np.zeros(len(terms), np.float32)
    total: np.ndarray = np.add.accumulate(terms, axis=1)[:, -1]
    return total
