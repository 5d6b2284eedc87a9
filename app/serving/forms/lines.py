"""Read the rows of a request body whose lines have the format of the log that the model was trained on. The label may
be left out of a line.
"""

from __future__ import annotations

from typing import Any

from app.serving.forms.form import Form, RowsToScore, cell_text, check_rows, rows_to_chunk, without_mark
from app.serving.options import Limits
from data_prep.options.log_format import LogFormat


def to_chunk(body: bytes, log_format: LogFormat, limits: Limits) -> RowsToScore:
    """Return the rows to score of a request body that has one row a line. Raise RequestError if a row is wrong or there
    are too many.
    """
    body = without_mark(body)
    check_rows(body.count(b"\n"), limits)
    return rows_to_chunk(body.removesuffix(b"\n").split(b"\n") if body else [], log_format, limits)


def describe(log_format: LogFormat, row: dict[str, Any]) -> dict[str, Any]:
    """Return what the OpenAPI document says about a body of this form: its schema, and the row `row` as an example."""
    # `row` has only the columns that are fields. A line needs all columns except the label, for example also a weight.
    blanks = {name: cell for name, cell in log_format.blank_row.items() if name != log_format.label_column}
    between = ";" if log_format.separator == "|" else "|"
    cells = [blank if row.get(name) is None else cell_text(row[name], between) for name, blank in blanks.items()]
    if log_format.quotes:
        cells = ['"' + cell.replace('"', '""') + '"' for cell in cells]
    return {"schema": {"type": "string"}, "example": log_format.separator.join(cells) + "\n"}


FORM = Form("text/plain", "lines as in the log", to_chunk, describe)
