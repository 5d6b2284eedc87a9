"""Dense arrays that are laid out by the model's fields, as blocks of rows by the fields' names.

A layout is the order and the size of an array's blocks. Two models whose fields have another order, or that share some
fields only, differ in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from app.config.config import ModelOptions
from app.tables.fields import TableField
from data_prep.prepared.schema import Schema

Key = tuple[str, str | None]  # the kind and the name of a field
Layout = Sequence[tuple[Key, int]]  # key and rows of each block, in their order
Arrays = Mapping[str, np.ndarray]

NUMERIC, FIELD = "numeric", "field"
FIELD_PARAMETERS = ("wide.numeric_weight", "tower.numeric_rows", "tower.numeric_matrix", "tower.matrix_0")


def dense_layouts(schema: Schema, fields: Sequence[TableField], model: ModelOptions) -> dict[str, Layout]:
    """Return the layout of each parameter of `FIELD_PARAMETERS`, of a model with these looked-up `fields`.

    Numeric fields that are not folded are looked up before the others. A deep part without fields has one input of 0.
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
    """Return the arrays of `source` as a model with the arrays `fresh` has them, by the layouts of both.

    Blocks that `source` lacks are those of `fresh`. Arrays whose fields are all gone are left out. Optimizer state has
    the layout of its parameter. Raises ValueError for an array that is not of its layout.
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
    """Return `fresh`, which has `layout`, with the blocks that `source`, which has `source_layout`, has by their names.

    Both arrays are [rows, …], and blocks of one name have as many rows.
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
    """Return the parameter that an array is, or is optimizer state of, if that is laid out by fields."""
    return next((parameter for parameter in FIELD_PARAMETERS if f".{name}".endswith(f".{parameter}")), None)
