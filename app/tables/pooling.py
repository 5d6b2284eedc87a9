"""Lists: the rows of a field's positions are pooled into one row of the field, in NumPy.

A position without a value has id -1, and no row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.tables.fields import TableField, field_of_position
from data_prep.prepared import examples


def position_weights(ids: np.ndarray, fields: Sequence[TableField]) -> np.ndarray:
    """Return the weight [B, P] float32 of each position in its field's row: 0 where there is no row, 1 / present values
    in a mean, else 1."""
    return examples.position_weights(ids, ((field.length, field.mean) for field in fields))


def pool(rows: np.ndarray, weights: np.ndarray, fields: Sequence[TableField]) -> np.ndarray:
    """Return the rows [B, C, D] of fields from those of their positions [B, P, D], added in order of position.

    A position of weight 0 adds nothing, whatever its row.
    """
    pooled = np.zeros((len(rows), len(fields), rows.shape[2]), np.float32)
    for position, field in enumerate(field_of_position(fields)):
        if fields[field].length == 1:
            pooled[:, field] = rows[:, position]
            continue
        weight = weights[:, position, None]
        np.add(pooled[:, field], weight * rows[:, position], out=pooled[:, field], where=weight > 0)
    return pooled


def sum_over_positions(wide: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sum of `wide` [B, P], each times its weight, position by position: [B] float32."""
    total = np.zeros(len(wide), np.float32)
    for position in range(wide.shape[1]):
        weight = weights[:, position]
        np.add(total, weight * wide[:, position], out=total, where=weight > 0)
    return total
