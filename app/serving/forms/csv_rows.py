"""Read the rows of a request body that is CSV with a header, quoted according to RFC 4180 and encoded as UTF-8. An
empty cell is missing.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from app.serving.forms.form import Form, RequestError, RowsToScore, cell_text, check_rows, rows_to_chunk
from app.serving.options import Limits
from data_prep.options.log_format import LogFormat

FOUND_CHARACTERS = 100  # An error message about the header quotes at most this many characters of line 1.


def to_chunk(body: bytes, log_format: LogFormat, limits: Limits) -> RowsToScore:
    """Return the rows of a CSV body. Its header may list the columns in any order, and unknown columns are ignored.
    Raise RequestError if the body is wrong or has too many rows.
    """
    records = _records(body)
    _, header = next(records, (1, []))
    names, counts = [name for name, _ in log_format.fields], Counter(header)
    if wrong := [name for name in names if counts[name] != 1]:
        raise RequestError(
            400,
            "line 1 must name each column of the model once, separated by commas; missing or twice: "
            f"{', '.join(wrong)}; found {','.join(header)[:FOUND_CHARACTERS]}",
        )
    rows: list[list[str]] = []
    for line, cells in records:
        if len(cells) != len(header):
            raise RequestError(400, f"line {line} has {len(cells)} cells, expected {len(header)} as in line 1")
        rows.append(cells)
        check_rows(len(rows), limits)
    places = [header.index(name) for name in names]
    columns = [pa.array([cells[place] for cells in rows], pa.string()) for place in places]
    return rows_to_chunk(pa.table(columns, names), log_format, limits)


def _records(body: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield each record of a CSV body, the header included, as (number of its first line, cells). Line numbers start at
    1. Raise RequestError if the body is no UTF-8 or not quoted correctly.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RequestError(400, f"line {line} is no UTF-8: byte {error.object[error.start]:#x}") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line, width, blank = 1, 0, 0
    try:
        for cells in reader:
            width = width or len(cells)
            # Yield the record. In a body with a single column, even a blank line is a record: a row whose only cell is
            # missing.
            if cells or width == 1:
                if blank:
                    yield blank, [""]
                yield line, cells or [""]
            # Remember the first blank line of a body with several columns. It is an error if any line after it is not
            # blank.
            blank = 0 if cells or width == 1 else blank or line
            line = reader.line_num + 1
    except csv.Error as error:
        raise RequestError(400, f"line {line} is not quoted as in RFC 4180: {error}") from None


def name_row(body: bytes, row: int) -> str:
    """Return how error messages name the row with the index `row`: "line N", the line on which it begins."""
    line, _ = next(islice(_records(body), row + 1, None))
    return f"line {line}"


def describe(log_format: LogFormat, row: dict[str, Any]) -> dict[str, Any]:
    """Return what the OpenAPI document says about a body of this form: its schema, and the row `row` as an example."""
    names, text = [name for name, _ in log_format.fields], io.StringIO()
    csv.writer(text).writerows([names, [cell_text(row.get(name)) for name in names]])
    return {"schema": {"type": "string"}, "example": text.getvalue()}


FORM = Form("text/csv", "CSV with a header", to_chunk, describe, name_row=name_row)
