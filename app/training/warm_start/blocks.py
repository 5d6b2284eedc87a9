"""Rearrange dense arrays whose rows are laid out by the model's fields, in blocks with the fields' names.

A layout lists the blocks of an array in order, with their sizes. The layouts of two models differ if their fields are
ordered differently or if they share only some fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from app.config.config import ModelOptions
from app.tables.fields import TableField
from data_prep.prepared.schema import Schema

Key = tuple[str, str | None]  # Kind and name of a field.
Layout = Sequence[tuple[Key, int]]  # Key and number of rows of each block, in order.
Arrays = Mapping[str, np.ndarray]

NUMERIC, FIELD = "numeric", "field"
FIELD_PARAMETERS = ("wide.numeric_weight", "tower.numeric_rows", "tower.numeric_matrix", "tower.matrix_0")


def dense_layouts(schema: Schema, fields: Sequence[TableField], model: ModelOptions) -> dict[str, Layout]:
    """Return the layout of each parameter in `FIELD_PARAMETERS` for a model with the looked-up fields `fields`.

    Unfolded numeric fields come before the other looked-up fields. A deep part without fields has one zero input.
    """
    numeric: list[Key] = [(NUMERIC, column.name) for column in schema.numeric]
    inputs: list[Key] = [(FIELD, field.name) for field in fields if field.deep] or [(FIELD, None)]
    folded = [(key, 1) for key in numeric if model.fold_numeric]
    if not model.fold_numeric:
        inputs = [*numeric, *inputs]
    layouts: dict[str, Layout] = dict.fromkeys(FIELD_PARAMETERS, folded)
    return layouts | {"tower.matrix_0": [(key, model.embedding_dim) for key in inputs]}


def move_dense(
    source: Arrays, fresh: Arrays, source_layouts: Mapping[str, Layout], layouts: Mapping[str, Layout]
) -> dict[str, np.ndarray]:
    """Rearrange the arrays of `source` for a model whose arrays are `fresh`, using the layouts of both models.

    Blocks that `source` lacks are taken from `fresh`. Arrays are left out if the new model has none of their fields.
    Optimizer state has the layout of its parameter. Raise ValueError for an array that does not fit its layout.
    """
    moved = {name: array for name, array in source.items() if name in fresh or _parameter(name) is None}
    for name, values in fresh.items():
        parameter = _parameter(name)
        if parameter is not None and (name in source or not source_layouts[parameter]):
            array = source.get(name, values[:0])
            expected = (sum(size for _, size in source_layouts[parameter]), *values.shape[1:])
            if array.shape != expected:
                raise ValueError(
                    f"the checkpoint is of another model: {name} has shape {list(array.shape)}, expected "
                    f"{list(expected)}"
                )
            moved[name] = move_blocks(array, source_layouts[parameter], layouts[parameter], values)
    return moved


def move_blocks(source: np.ndarray, source_layout: Layout, layout: Layout, fresh: np.ndarray) -> np.ndarray:
    """Return a copy of `fresh` in which blocks that `source` also has, by name, are taken from `source`.

    Both arrays have shape [rows, …], and blocks with the same name have the same number of rows. `source_layout` is the
    layout of `source`, and `layout` that of `fresh`.
    """
    source_slices, moved = _slices(source_layout), fresh.copy()
    for name, block in _slices(layout).items():
        if name in source_slices:
            moved[block] = source[source_slices[name]]
    return moved


def _slices(layout: Layout) -> dict[Key, slice]:
    ends = np.cumsum([0, *(size for _, size in layout)]).tolist()
    return {name: slice(first, first + size) for (name, size), first in zip(layout, ends, strict=False)}


def _parameter(name: str) -> str | None:
    """Return the parameter that an array belongs to, as its value or as optimizer state.

    Return None if the parameter is not laid out by fields.
    """
    return next((parameter for parameter in FIELD_PARAMETERS if f".{name}".endswith(f".{parameter}")), None)
