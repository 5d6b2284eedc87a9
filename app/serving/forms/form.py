"""Define what all forms of a request's rows (such as CSV and JSON) share: their description, errors and bounds."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from app.serving.options import Limits
from data_prep.encoding.encoder import Chunk
from data_prep.encoding.from_values import bad_cell
from data_prep.encoding.rows_to_score import RawTable, chunk_of
from data_prep.options.log_format import LogFormat

RowsToScore = Chunk | RawTable
# Function that takes a body and the index of a row, and returns how error messages name the row, such as "line 3".
NameRow = Callable[[bytes, int], str]
# Pattern of NaN, Infinity and -Infinity, which Python's json module writes although JSON does not have them.
_NO_NUMBER = re.compile(rb"[^\w-]?(-?(?:NaN|Infinity))\b")
# Error messages are cut to this many characters, because they may quote a request of any size.
_MOST_SHOWN = 500


class RequestError(Exception):
    """Raised if a request is to be answered with the HTTP status `status`, an error message, and perhaps extra
    `headers`.
    """

    def __init__(self, status: int, message: object, headers: dict[str, str] | None = None) -> None:
        super().__init__(str(message)[:_MOST_SHOWN])
        self.status, self.headers = status, headers or {}

    def with_row_as(self, name_of: Callable[[int], str]) -> RequestError:
        """Return a copy of the error with "row N" at the start of its message replaced by the name `name_of(N)`. If the
        message does not begin so, return the error itself.
        """
        row = re.match(r"row (\d+)", str(self))
        return RequestError(self.status, name_of(int(row[1])) + str(self)[row.end() :]) if row else self


@dataclass(frozen=True)
class Form:
    """A format in which /v1/score accepts rows, such as CSV, and the functions that read and describe it."""

    content_type: str
    title: str  # Name of the form in texts for users, such as "CSV with a header".
    # Function that converts a body to rows. It raises RequestError if the body is wrong or has too many rows.
    to_chunk: Callable[[bytes, LogFormat, Limits], RowsToScore]
    # Function that returns what the OpenAPI document says about a body: its schema, and the given row as an example.
    describe: Callable[[LogFormat, dict[str, Any]], dict[str, Any]]
    # True if the rows of this form can be so short that even a small body has more rows than the event loop should
    # score itself.
    has_small_rows: bool = True
    name_row: NameRow | None = None


def rows_to_chunk(rows: Any, log_format: LogFormat, limits: Limits) -> RowsToScore:
    """Return the rows of a request, which are decoded already (lines, mappings or a table), in the form that a model
    scores. Raise RequestError if a row is wrong, or if there are none or too many.
    """
    check_rows(len(rows), limits)
    try:
        chunk = chunk_of(rows, log_format)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise RequestError(400, error) from None
    if not chunk.num_lines:
        raise RequestError(400, "the request has no rows")
    return chunk


def rejected_row(chunk: Chunk, row: int, reason: str, log_format: LogFormat) -> RequestError:
    """Return the error for the line with the index `row`, which the log's parser rejected because of `reason`. The
    message quotes the wrong cell.
    """
    return RequestError(400, f"row {row}: rejected as {reason!r}: {bad_cell(chunk, row, log_format, reason)}")


def check_rows(num_rows: int, limits: Limits) -> None:
    """Raise RequestError with status 413 if a request has more rows than `limits.max_rows`."""
    if num_rows > limits.max_rows:
        raise RequestError(413, f"the request has {num_rows:,} rows, expected at most {limits.max_rows:,}")


def cell_text(value: Any, between: str = "|") -> str:
    """Return a value of an example row as the text of a cell. The numbers of a vector are separated by `between`."""
    if isinstance(value, list):
        return between.join(map(str, value))
    return "" if value is None else str(value)


def without_mark(body: bytes) -> bytes:
    """Return a body without UTF-8's byte order mark, which some programs write at the beginning."""
    return body[len(BOM_UTF8) :] if body.startswith(BOM_UTF8) else body


def decode_json(decode: Callable[[bytes], Any], body: bytes, expected: str = "") -> Any:
    """Return a JSON body decoded by `decode`, a msgspec decoder for the expected type.

    Raise RequestError if the body is empty, no JSON or of another type. Its message shows the form `expected`.
    """
    if not body:
        raise RequestError(400, "the body is empty, expected JSON")
    try:
        return decode(without_mark(body))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        place = re.search(r"malformed: .*\(byte (\d+)\)", str(error))
        if place and (word := _NO_NUMBER.match(without_mark(body), max(int(place[1]) - 1, 0))):
            found = word[1].decode()
            raise RequestError(400, f"the body has {found}, which is no JSON; write null for a missing cell") from None
        form = f", {expected}" if expected else ""
        raise RequestError(400, f"the body is not the JSON that is expected{form}: {error}") from None
