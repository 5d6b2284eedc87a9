"""Check ids, gradients and states before a table takes them.

The error messages name the batch row, the field or the row id.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from app.tables.fields import NO_ROW, field_of_position
from app.tables.interface import DEEP, WIDE, RowArray, RowGradients, TablesSpec
from app.tables.optimizers import LAST_RATE, LAST_STEP, MEAN_STEP
from app.tables.rounding import BFLOAT16
from common.packages import python_command

# Upper bound of a gradient's absolute value. An optimizer squares the sum of an id's gradients after it has removed the
# loss scale. The square fits into float32 if that sum is below 2^64. With this bound and a loss_scale of 1024, sums
# over up to 16,000 positions stay below 2^64.
LARGEST_GRADIENT = np.float32(2.0**60)
NEVER_NEGATIVE = ("accumulator", "second_moment", LAST_RATE, LAST_STEP, MEAN_STEP)


def check_ids(ids: np.ndarray, spec: TablesSpec) -> None:
    """Raise ValueError, naming the first bad id, unless `ids` is an int32 or int64 array [B, P] within 0 … V-1.

    In a list field, -1 is allowed after the first value.
    """
    check_ids_shape(ids, spec)
    field_of = field_of_position(spec.fields)
    lowest = np.where(np.diff(field_of, prepend=-1), 0, NO_ROW) if spec.has_lists else 0
    bad = np.argwhere((ids < lowest) | (ids >= spec.vocabulary_size))
    if len(bad):
        row, position = bad[0]
        field = spec.fields[field_of[position]]
        of_lists = f" (a list may have {NO_ROW} after its first value)" if field.length > 1 else ""
        raise ValueError(
            f"batch row {row}, field {field.name}: id {ids[row, position]} is outside "
            f"0 … {spec.vocabulary_size - 1}{of_lists}; was the data prepared with another vocabulary than the "
            f"model's, or is it damaged ({python_command('data_prep inspect FOLDER')})?"
        )


def check_ids_shape(ids: np.ndarray, spec: TablesSpec) -> None:
    """Raise ValueError unless `ids` is an int32 or int64 array [B, P]. Its values are not checked."""
    if not isinstance(ids, np.ndarray) or ids.dtype not in (np.int32, np.int64):
        raise ValueError(f"ids must be an int32 or int64 array, found {_describe(ids)}")
    if ids.ndim != 2 or ids.shape[1] != spec.num_positions:
        raise ValueError(f"ids must have shape [batch, {spec.num_positions}], found {list(ids.shape)}")


def check_gradients(gradients: RowGradients, batch: int, spec: TablesSpec, only_shape: bool = False) -> None:
    """Check that gradients fit a batch of `batch` rows and lie within ±LARGEST_GRADIENT.

    Raise ValueError for a wrong dtype or shape, FloatingPointError for a bad value. With `only_shape` the
    values are not checked.
    """
    check_gradients_shape(gradients, batch, spec)
    for name in () if only_shape else (DEEP, WIDE):
        gradient = getattr(gradients, name)
        bad = ~(np.abs(gradient) < LARGEST_GRADIENT)  # The negated comparison also finds NaN.
        if bad.any():
            index = np.argwhere(bad)[0]
            field = f", field {spec.deep_names[index[1] // spec.embedding_dim]}" if name == DEEP else ""
            raise FloatingPointError(
                f"{name} gradient of batch row {index[0]}{field} is {gradient[tuple(index)]}; no row was updated"
            )


def check_gradients_shape(gradients: RowGradients, batch: int, spec: TablesSpec) -> None:
    """Raise ValueError unless `gradients` has the dtypes and shapes of a batch of `batch` rows and a finite `scale`."""
    expected = {DEEP: (batch, len(spec.deep_names) * spec.embedding_dim), WIDE: (batch,)}
    for name, shape in expected.items():
        gradient = getattr(gradients, name)
        if not isinstance(gradient, np.ndarray) or gradient.dtype != np.float32 or gradient.shape != shape:
            raise ValueError(f"{name} gradients must be float32 {list(shape)}, found {_describe(gradient)}")
    if not math.isfinite(gradients.scale):
        raise ValueError(f"the scale of the row gradients must be finite, found {gradients.scale}")


def check_table(table: str, row_ids: np.ndarray, layout: dict[str, RowArray], spec: TablesSpec) -> None:
    """Raise ValueError unless a saved table with these row ids and arrays can be loaded into the table of the same
    name.

    `layout` has dtype and width of each saved array, and `spec` describes the table to load into.

    The ids must ascend within 0 … V-1, and the arrays must have the expected names, dtypes and widths.
    """
    if table not in (WIDE, DEEP):
        raise ValueError(f"unknown table {table!r} in the state; known: {WIDE}, {DEEP}")
    check_row_ids(row_ids, table, spec.vocabulary_size)
    expected_layout, rows = spec.layout(table), row_ids.size
    if set(layout) != set(expected_layout):
        raise ValueError(f"{table} state must have the arrays {', '.join(expected_layout)}; found {', '.join(layout)}")
    for name, array in layout.items():
        expected = expected_layout[name]
        if array != expected:
            raise ValueError(
                f"{table} {name} must be {expected.dtype} {[rows, expected.width]}, "
                f"found {array.dtype} {[rows, array.width]}"
            )


def check_finite(table: str, name: str, row_ids: np.ndarray, values: np.ndarray) -> None:
    """Raise ValueError, naming the first bad row, unless all `values` [T, width] of the rows `row_ids` [T] are
    finite.
    """
    if not np.isfinite(values).all():
        index = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(f"{table} {name} of row {row_ids[index[0]]} is {values[tuple(index)]}; nothing was loaded")


def check_values(table: str, name: str, row_ids: np.ndarray, values: np.ndarray, step: int) -> None:
    """Raise ValueError, naming the first bad row, unless `step` training steps could have produced `values` [T, width]
    in state array `name` of the table.
    """
    check_finite(table, name, row_ids, values)
    check_bounds(table, name, row_ids, values, step)


def check_bounds(table: str, name: str, row_ids: np.ndarray, values: np.ndarray, step: int) -> None:
    """Raise ValueError if the state array `name` of a table has `values` that are impossible after `step` steps.

    Sums of squares and learning rates must be 0 or more. The numbers of rows' last steps must lie in 0 … step, because
    the kernels use them as indices. Other state arrays are not checked. The message names the first bad row.
    """
    if name not in NEVER_NEGATIVE or not values.size:
        return
    # The common case, no negative value, is tested on the sign bits alone, because NumPy compares bfloat16 slowly.
    if values.dtype == BFLOAT16 and values.view(np.int16).min() >= 0:
        return
    most = step if name in (LAST_STEP, MEAN_STEP) else math.inf
    if values.min() < 0 or values.max() > most:
        index = np.argwhere((values < 0) | (values > most))[0]
        expected = f"expected 0 … {step}, the steps taken" if name in (LAST_STEP, MEAN_STEP) else "expected 0 or more"
        raise ValueError(
            f"{table} {name} of row {row_ids[index[0]]} is {values[tuple(index)]}, {expected}; nothing was loaded"
        )


def check_row_ids(row_ids: np.ndarray, table: str, vocabulary_size: int) -> None:
    """Raise ValueError unless `row_ids` is int64 [T], ascending without repetition, within 0 … V-1."""
    if row_ids.dtype != np.int64 or row_ids.ndim != 1:
        raise ValueError(f"{table} row_ids must be int64 [rows], found {_describe(row_ids)}")
    if (row_ids[1:] <= row_ids[:-1]).any():
        raise ValueError(f"{table} row_ids must ascend without repetition")
    if row_ids.size and (row_ids[0] < 0 or row_ids[-1] >= vocabulary_size):
        raise ValueError(
            f"{table} row_ids go from {row_ids[0]} to {row_ids[-1]}, outside 0 … {vocabulary_size - 1}; "
            "is the checkpoint of a model with another vocabulary?"
        )


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__


def check_released(released: bool) -> None:
    """Raise RuntimeError if `released` is False: the last snapshot (view of the rows at one moment) is still in use."""
    if not released:
        raise RuntimeError("a snapshot of the tables is open: release it before the next one, and before a load")
