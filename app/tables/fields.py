"""The looked-up fields of a model, and the parts of the model that see each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    pass  # a bundle carries this file without the settings of a run

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
    seen = [(end - field.length, end) for field, end in zip(fields, ends, strict=True) if getattr(field, part)]
    return [column for first, end in seen for column in range(first, end)]
