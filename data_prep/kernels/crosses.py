"""The texts of categorical columns, those of crosses included: the values of several columns of a row as one text.

A cross's value is its columns' values, as vocabulary.parquet has them, with * between them: 05db9164*38a947a1. A * or a
backslash within a value has a backslash before it, so that different values have different texts. A cross is missing if
any of its columns is.

Letters: n rows, C categorical columns.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.parsed import SMALLEST_BUCKET, ParsedRows
from data_prep.kernels.strings import PADDING_BYTES, Strings
from data_prep.options.columns import CategoricalColumn

_HEX_PAIRS = np.frombuffer("".join(f"{number:02x}" for number in range(256)).encode(), "u2")


def presence(rows: ParsedRows, columns: Sequence[CategoricalColumn]) -> list[NDArray[np.bool_]]:
    """Return where each categorical column [C] is present [n]."""
    found: dict[str, NDArray[np.bool_]] = {}
    for column in columns:
        if column.cross:
            found[column.name] = functools.reduce(np.logical_and, (found[part] for part in column.cross))
        else:
            found[column.name] = rows.columns[column.source].present
    return list(found.values())


def text_columns(
    rows: ParsedRows, columns: Sequence[CategoricalColumn], kernels: ModuleType
) -> Iterator[tuple[CategoricalColumn, Strings, NDArray[np.bool_]]]:
    """Yield each column of text with its texts [n], and where they are present [n].

    A cross's text is made when it is its turn, so that one of them is in memory at a time. The values of a list are in
    `rows.lists`.
    """
    present = dict(zip((column.name for column in columns), presence(rows, columns), strict=True))
    by_name = {c.name: rows.columns[c.name].values for c in columns if c.is_text and not c.cross}
    numbers = rows.number_columns(columns)[0] if any(column.cross for column in columns) else None
    for column in columns:
        if column.is_text and not column.cross:
            yield column, by_name[column.name], present[column.name]
        elif column.cross:
            for part in columns:
                if part.name in column.cross and part.name not in by_name:
                    assert numbers is not None
                    by_name[part.name] = number_texts(numbers[part.place], part.kind)
            joined = kernels.join_strings([by_name[part] for part in column.cross], present[column.name])
            yield column, joined, present[column.name]


def number_texts(values: NDArray[np.uint32], kind: str) -> Strings:
    """Return each value [n] of a column of numbers as vocabulary.parquet has it."""
    if kind == "hex32":
        digits = _HEX_PAIRS[values.astype(">u4").view(np.uint8)].view(np.uint8)
        data = np.concatenate([digits, np.zeros(PADDING_BYTES, np.uint8)])
        return Strings(data, 8 * np.arange(len(values)), np.full(len(values), 8))
    smallest = SMALLEST_BUCKET if kind == "bucket" else 0
    distinct, places = np.unique(values, return_inverse=True)
    return Strings.of([b"%d" % (value + smallest) for value in distinct.tolist()]).take(places)
