"""Rows as JSON: {"rows": [{column: value …} …]}."""

from __future__ import annotations

from typing import Any

import msgspec

from app.serving.forms.form import Form, RowsToScore, decode_json, rows_to_chunk
from app.serving.options import Limits
from data_prep.options.kinds import KINDS
from data_prep.options.log_format import LogFormat


class ScoreRequest(msgspec.Struct):
    """The JSON of a request."""

    rows: list[dict[str, Any]]


_decode = msgspec.json.Decoder(ScoreRequest).decode


def read_rows(body: bytes) -> list[dict[str, Any]]:
    """Return the rows of a body. Raises RequestError."""
    rows: list[dict[str, Any]] = decode_json(_decode, body).rows
    return rows


def to_chunk(body: bytes, log_format: LogFormat, limits: Limits) -> RowsToScore:
    """Return the rows of a body as a chunk."""
    return rows_to_chunk(read_rows(body), log_format, limits)


def row_schema(log_format: LogFormat) -> dict[str, Any]:
    """Return the OpenAPI schema of a row."""
    fields = {name: KINDS[kind].json_schema for name, kind in log_format.fields}
    return {"type": "object", "properties": fields, "required": list(fields)}


def describe(_: LogFormat, row: dict[str, Any]) -> dict[str, Any]:
    """Return schema and example. The document has the schema once, for all addresses that take such rows."""
    return {"schema": {"$ref": "#/components/schemas/Rows"}, "example": {"rows": [row]}}


# Each row names all columns, so a small body has few.
FORM = Form("application/json", "JSON", to_chunk, describe, has_small_rows=False)
