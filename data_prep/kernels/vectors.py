"""Parse vectors that are written as text, and give each parsed row its vectors.

A vector is written as numbers between blanks, commas, semicolons or bars, with or without brackets around them, such as
`[0.1, 0.2]` or `0.1 0.2`. An empty cell and empty brackets are a missing vector.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.parsed import Cells, Chunk, ParsedRows
from data_prep.kernels.strings import Strings
from data_prep.options.log_format import LogFormat

DECIMAL = re.compile(rb"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_BLANKS = b" \t"
_BRACKETS = (b"[]", b"()", b"{}")

# Three arrays: vectors [n, W], a mask [n] of the vectors that are not missing, and a mask [n] of the good cells, whose
# rows are not rejected because of them.
ParsedVectors = tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]


def parse_vectors(cells: Strings, width: int, decimal: str) -> ParsedVectors:
    """Parse cells [n] as vectors with `width` components. The vector of a missing or bad cell is all zeros.

    A good cell is empty, or has `width` decimal numbers in the range of float32. A number is rounded to float64 and
    then to float32. `decimal` is the decimal point of the numbers. If it is a comma, commas do not separate numbers.
    """
    values = np.zeros((len(cells), width), np.float32)
    present, good = np.zeros(len(cells), np.bool_), np.ones(len(cells), np.bool_)
    for row, cell in enumerate(cells.tolist()):
        numbers = vector_parts(cell, decimal)
        good[row] = not numbers or vector_fault(numbers, width) == ""
        present[row] = good[row] and bool(numbers)
        if present[row]:
            in_row = np.array(list(map(float, numbers)))
            in_row[np.abs(in_row) < np.finfo(np.float64).smallest_normal] = 0
            values[row] = in_row
    return values, present, good


def vector_parts(cell: bytes, decimal: str) -> list[bytes]:
    """Return the texts of the numbers in a cell, with a point as decimal point. Return [] for a missing vector."""
    text = cell.strip(_BLANKS)
    if text[:1] + text[-1:] in _BRACKETS and len(text) > 1:
        text = text[1:-1].strip(_BLANKS)
    parts = _separators(decimal).split(text) if text else []
    return [part.replace(b",", b".") for part in parts] if decimal == "," else parts


def vector_fault(numbers: list[bytes], width: int) -> str:
    """Return what is wrong with a vector whose numbers are written as `numbers`, or "" if nothing is wrong. A vector
    must have `width` numbers in the range of float32.
    """
    if len(numbers) != width:
        return f"a vector of {len(numbers):,} numbers, expected {width:,}"
    for place, number in enumerate(numbers, 1):
        if not DECIMAL.fullmatch(number):
            return f"{number.decode(errors='replace')[:40]!r} as component {place:,} of {width:,}, expected a number"
        with np.errstate(over="ignore"):
            if not np.isfinite(np.float32(float(number))):
                return (
                    f"{number.decode()[:40]} as component {place:,} of {width:,}, which is beyond the range of float32"
                )
    return ""


def vector_text(value: Any) -> str:
    """Return a vector as text, such as [0.1;null]. A value that is a text itself is returned as it is."""
    if isinstance(value, str | bytes):
        return value.decode(errors="replace") if isinstance(value, bytes) else value
    return f"[{';'.join('null' if number is None else str(number) for number in value)}]"


def cell_of_bad_vector(text: str, separator: str) -> str:
    """Return the text of a bad vector as a cell of a line, whose cells are divided by `separator`.

    The separator becomes another mark that may stand between the numbers of a vector, and a line end becomes a blank.
    """
    return text.replace(separator, "|" if separator == ";" else ";").replace("\n", " ")


@functools.cache
def _separators(decimal: str) -> re.Pattern[bytes]:
    marks = rb"[;|]" if decimal == "," else rb"[,;|]"
    return re.compile(rb"[ \t]*" + marks + rb"[ \t]*|[ \t]+")


def with_vectors(
    rows: ParsedRows, chunk: Chunk, log_format: LogFormat, parse: Callable[[Strings, int, str], ParsedVectors]
) -> tuple[ParsedRows, NDArray[np.bool_]]:
    """Replace the texts in the vector columns of the `rows` [n] of a chunk by vectors.

    Return the new rows, and a mask [n] of the rows with a bad vector. A vector may also be in `chunk.vectors`; its cell
    in the line is then empty. `parse` is a kernel `parse_vectors`.
    """
    separate, are_bad = dict(rows.separate), np.zeros(len(rows.labels), np.bool_)
    for name in log_format.vector_fields:
        texts: Strings = separate[name].values
        width = log_format.vectors[name].width
        if name in chunk.vectors:
            cells = chunk.vectors[name]
            lines = rows.row_numbers - chunk.first_line
            cells = cells if len(lines) == len(cells.present) else cells.take(lines)
            # A bad vector of a table (such as a Parquet file) is written as text in its line. A line with such a text
            # is bad.
            are_bad |= texts.lengths > 0
        else:
            values, present, good = parse(texts, width, log_format.decimal)
            cells, are_bad = Cells(values, present), are_bad | ~good
        separate[name] = cells
    return replace(rows, separate=separate), are_bad
