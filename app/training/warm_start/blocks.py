"""Rearrange arrays of the dense model that have a block of rows for each field, so that they fit a model with other
fields.

A layout describes such an array. It lists the blocks in order, each with the field and the number of rows. The layouts
of two models differ if their fields are ordered differently or if they share only some fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from app.config.config import ModelOptions
from app.tables.fields import TableField
from data_prep.prepared.schema import Schema

Key = tuple[str, str | None]  # Kind of a field (numeric, vector or categorical) and its name.
Layout = Sequence[tuple[Key, int]]  # The blocks of an array in order: the field and the number of rows of each.
Arrays = Mapping[str, np.ndarray]

NUMERIC, VECTOR, FIELD = "numeric", "vector", "field"
NUMERIC_PARAMETERS = ("wide.numeric_weight", "tower.numeric_rows", "tower.numeric_matrix")
FIELD_PARAMETERS = (*NUMERIC_PARAMETERS, "tower.vector_matrix", "tower.matrix_0")


def dense_layouts(schema: Schema, fields: Sequence[TableField], model: ModelOptions) -> dict[str, Layout]:
    """Return the layout of each parameter in `FIELD_PARAMETERS`, for a model with the looked-up fields `fields`.

    The layout of tower.matrix_0 begins with the numeric fields of `schema` if these fields have embedding rows
    (`fold_numeric` is False). If the deep part sees none of `fields`, the layout has one block for the tower's
    placeholder input of zeros.
    """
    numeric: list[Key] = [(NUMERIC, column.name) for column in schema.numeric]
    inputs: list[Key] = [(FIELD, field.name) for field in fields if field.deep] or [(FIELD, None)]
    folded = [(key, 1) for key in numeric if model.fold_numeric]
    if not model.fold_numeric:
        inputs = [*numeric, *inputs]
    layouts: dict[str, Layout] = dict.fromkeys(NUMERIC_PARAMETERS, folded)
    layouts["tower.vector_matrix"] = [((VECTOR, vector.name), vector.inputs) for vector in schema.vectors]
    return layouts | {"tower.matrix_0": [(key, model.embedding_dim) for key in inputs]}


def move_dense(
    source: Arrays, fresh: Arrays, source_layouts: Mapping[str, Layout], layouts: Mapping[str, Layout]
) -> dict[str, np.ndarray]:
    """Return the dense arrays of a trained model (`source`), with their rows arranged for a new model with the arrays
    `fresh`.

    All arrays are given and returned by name.

    `source_layouts` are the layouts of the arrays in `source` by parameter name, and `layouts` those of the arrays in
    `fresh`. Blocks that `source` lacks are taken from `fresh`. An array of `source` is left out if the new model has
    none of the array's fields. Optimizer state has the layout of its parameter. Raise ValueError for an array that does
    not fit its layout.
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
    """Return a copy of `fresh` in which each field's block of rows has the values of that field's block in `source`.

    Blocks of fields that `source` lacks stay as in `fresh`.

    Both arrays have shape [rows, …], and a field's blocks have the same number of rows in both. `source_layout` is the
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
    """Return the parameter in `FIELD_PARAMETERS` that the array `name` holds, or whose optimizer state it holds.

    Return None for an array of any other parameter. Such an array has no blocks of rows for fields, so it need not be
    rearranged.
    """
    return next((parameter for parameter in FIELD_PARAMETERS if f".{name}".endswith(f".{parameter}")), None)
