"""Make the texts of categorical columns, including crosses. A cross joins the values of several columns in one text.

The text of a cross consists of the values of its columns, written as in vocabulary.parquet and separated by *, such as
05db9164*38a947a1. A * or a backslash within a value gets a backslash before it, so that different combinations have
different texts. A cross is missing in a row if any of its columns is missing there.

A cross with a list column is a list too. In each row it has all combinations of the values of its columns. If there
would be more than `max_length` combinations, the lists in the row are first shortened at their ends, and the remaining
values are combined.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.parsed import SMALLEST_BUCKET, ParsedRows
from data_prep.kernels.strings import PADDING_BYTES, Lists, Strings, combinations, shorten
from data_prep.options.columns import CategoricalColumn, number_groups

_HEX_PAIRS = np.frombuffer("".join(f"{number:02x}" for number in range(256)).encode(), "u2")


def presence(rows: ParsedRows, columns: Sequence[CategoricalColumn]) -> list[NDArray[np.bool_]]:
    """Return, for each categorical column [C], a mask [n] of the rows in which the column's cell is not missing."""
    by_name: dict[str, NDArray[np.bool_]] = {}
    for column in columns:
        if column.cross:
            by_name[column.name] = functools.reduce(np.logical_and, (by_name[part] for part in column.cross))
        else:
            by_name[column.name] = rows.columns[column.source].present
    return list(by_name.values())


def text_columns(
    rows: ParsedRows, columns: Sequence[CategoricalColumn], kernels: ModuleType
) -> Iterator[tuple[CategoricalColumn, Strings | Lists, NDArray[np.bool_]]]:
    """Yield each text column and each cross, with its texts [n] or lists of texts, and a mask [n] of its cells.

    The mask is False in rows whose cell is missing. The texts of a cross are made when the cross is yielded, so that
    memory holds the texts of one cross at a time. `kernels` is the module `native` or `numpy_kernels`, which joins the
    texts.
    """
    present = dict(zip((column.name for column in columns), presence(rows, columns), strict=True))
    by_name = {
        c.name: rows.lists.get(c.name, rows.columns[c.name].values) for c in columns if c.is_text and not c.cross
    }
    numbers = rows.number_columns(number_groups(columns))[0] if any(column.cross for column in columns) else None
    for column in columns:
        if column.is_text and not column.cross:
            yield column, by_name[column.name], present[column.name]
        elif column.cross:
            for part in columns:
                if part.name in column.cross and part.name not in by_name:
                    assert numbers is not None
                    by_name[part.name] = number_texts(numbers[part.place], part.kind)
            parts, is_present = [by_name[part] for part in column.cross], present[column.name]
            texts = (
                _cross_lists(parts, is_present, column.max_length, kernels)
                if column.is_list
                else kernels.join_strings(parts, is_present)
            )
            yield column, texts, is_present


def _cross_lists(
    parts: Sequence[Strings | Lists], present: NDArray[np.bool_], max_length: int, kernels: ModuleType
) -> Lists:
    """Return, for each row [n], the list of the combinations of its values of several columns, each as one text.

    `parts` has the texts, or lists of texts, of each of the columns. A list of combinations has at most `max_length`
    elements. Rows that `present` [n] does not mark get empty lists.
    """
    lengths = np.where(present, [part.lengths if isinstance(part, Lists) else present for part in parts], 0)
    num_values = shorten(lengths, max_length)
    rows, places = combinations(num_values)
    texts = [
        part.values.take((np.cumsum(part.lengths) - part.lengths)[rows] + place)
        if isinstance(part, Lists)
        else part.take(rows)
        for part, place in zip(parts, places, strict=True)
    ]
    crossed = kernels.join_strings(texts, np.ones(len(rows), np.bool_))
    return Lists(crossed, num_values.prod(axis=0), lengths.prod(axis=0) > max_length)


def number_texts(values: NDArray[np.uint32], kind: str) -> Strings:
    """Return, for each of `values` [n] of a column of the given `kind` (such as hex32 or bucket), whose values are
    integers, the text that stands for the value in vocabulary.parquet.
    """
    if kind == "hex32":
        digits = _HEX_PAIRS[values.astype(">u4").view(np.uint8)].view(np.uint8)
        data = np.concatenate([digits, np.zeros(PADDING_BYTES, np.uint8)])
        return Strings(data, 8 * np.arange(len(values)), np.full(len(values), 8))
    smallest = SMALLEST_BUCKET if kind == "bucket" else 0
    distinct, places = np.unique(values, return_inverse=True)
    return Strings.of([b"%d" % (value + smallest) for value in distinct.tolist()]).take(places)
