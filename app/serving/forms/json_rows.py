"""Read the rows of a request body that is JSON: {"rows": [{column: value …} …]}."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from app.serving.forms.form import Form, RequestError, RowsToScore, check_rows, decode_json, rows_to_chunk
from app.serving.options import Limits
from data_prep.encoding.rows_to_score import Cells, RawTable
from data_prep.options.kinds import KINDS
from data_prep.options.log_format import LogFormat

_NO_DIGITS, _HEX = "0" * 8, re.compile("[0-9a-f]*")


class ScoreRequest(msgspec.Struct):
    """The JSON body of a request with rows. Each row maps column names to values."""

    rows: list[dict[str, Any]]


_decode = msgspec.json.Decoder(ScoreRequest).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_EXPECTED = '{"rows": [{column: value …} …]}'


def read_rows(body: bytes) -> list[dict[str, Any]]:
    """Return the rows of a JSON body as mappings from columns to values. Raise RequestError if the body is not the
    expected JSON.
    """
    rows: list[dict[str, Any]] = decode_json(_decode, body, _EXPECTED).rows
    return rows


def read_row(body: bytes, log_format: LogFormat) -> dict[str, Any]:
    """Return the only row of a JSON body, which is the row itself or {"rows": [row]}. Raise RequestError for any other
    body.
    """

    def decode(body: bytes) -> list[dict[str, Any]]:
        found: dict[str, Any] = _decode_object(body)
        is_row = all(name in found for name, _ in log_format.fields)
        return [found] if is_row else msgspec.convert(found, ScoreRequest).rows

    rows: list[dict[str, Any]] = decode_json(decode, body, _EXPECTED)
    if len(rows) != 1:
        raise RequestError(400, f"expected one row, found {len(rows)}")
    return rows[0]


def to_chunk(body: bytes, log_format: LogFormat, limits: Limits) -> RowsToScore:
    """Return the rows of a JSON body in the form that a model scores. Raise RequestError if a row is wrong or there are
    too many.
    """
    rows = read_rows(body)
    check_rows(len(rows), limits)
    return as_columns(rows, log_format) or rows_to_chunk(rows, log_format, limits)


def as_columns(rows: list[dict[str, Any]], log_format: LogFormat) -> RawTable | None:
    """Convert the rows of a JSON body directly to columns if all their cells are null, whole numbers or 8-digit
    hexadecimal texts. This takes half the time of writing the rows as lines of the log and parsing them.

    Both ways give the same columns. Return None if a cell is anything else. The rows must then be written as lines and
    parsed.
    """
    num_plain = len(log_format.integer_fields) + len(log_format.hex_fields)
    if not rows or num_plain < len(log_format.fields) or log_format.missing:
        return None
    try:
        numbers = [row[name] for name in log_format.integer_fields for row in rows]
        texts = [row[name] for name in log_format.hex_fields for row in rows]
        digits = [_NO_DIGITS if text is None else text for text in texts]
        all_digits = "".join(digits)
        if (
            not {*map(type, numbers)} <= {int, type(None)}
            or {*map(len, digits)} - {8}
            or not _HEX.fullmatch(all_digits)
        ):
            return None
        integers = np.array([number or 0 for number in numbers], np.int64)
    except (KeyError, TypeError, OverflowError):
        return None
    hex_values = np.frombuffer(bytes.fromhex(all_digits), ">u4").astype(np.uint32)
    shape, num_integers = (-1, len(rows)), len(log_format.integer_fields)
    present = np.array([each is not None for each in numbers + texts], np.bool_).reshape(shape)
    of_integers = Cells(integers.reshape(shape), present[:num_integers])
    return RawTable(of_integers, Cells(hex_values.reshape(shape), present[num_integers:]), log_format)


def row_schema(log_format: LogFormat) -> dict[str, Any]:
    """Return the OpenAPI schema of a row in JSON.

    The schema allows every row that can be scored. The schema cannot say which texts a column takes, such as the form
    of a time.
    """
    fields = {}
    for name, kind in log_format.fields:
        schema = KINDS[kind].json_schema
        types = [*schema["type"], *["boolean"] * bool(log_format.texts_of_booleans(name))]
        lists = {"type": [*types, "array"], "items": {"type": types}} if "lists" in KINDS[kind].arrow else {}
        fields[name] = {**schema, "type": types, **lists}
        if kind == "vector":  # An empty list is a missing vector.
            width = log_format.vectors[name].width
            fields[name] |= {"maxItems": width, "anyOf": [{"minItems": width}, {"maxItems": 0}]}
    return {"type": "object", "properties": fields, "required": list(fields)}


def describe(_: LogFormat, row: dict[str, Any]) -> dict[str, Any]:
    """Return what the OpenAPI document says about a body of this form. The schema is a reference, because several
    routes share it, and the row `row` is the example.
    """
    return {"schema": {"$ref": "#/components/schemas/Rows"}, "example": {"rows": [row]}}


# Each row of a JSON body repeats all column names, so a small body has few rows.
FORM = Form("application/json", "JSON", to_chunk, describe, has_small_rows=False)
