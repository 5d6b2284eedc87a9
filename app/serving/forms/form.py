"""Define what all forms of rows share: their description, errors and bounds."""

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
# Function from a body and a row number to the row's name in error messages.
NameRow = Callable[[bytes, int], str]
# Words that Python's json module writes for non-finite numbers.
_NO_NUMBER = re.compile(rb"[^\w-]?(-?(?:NaN|Infinity))\b")
# Maximum length of an error message, because it may quote the request.
_MOST_SHOWN = 500


class RequestError(Exception):
    """Raised to answer a request with an error. `status` is the HTTP status."""

    def __init__(self, status: int, message: object, headers: dict[str, str] | None = None) -> None:
        super().__init__(str(message)[:_MOST_SHOWN])
        self.status, self.headers = status, headers or {}

    def with_row_as(self, name_of: Callable[[int], str]) -> RequestError:
        """Return the error with the row number at the start of its message replaced by `name_of(row)`.

        A message that does not begin with a row number stays as it is.
        """
        row = re.match(r"row (\d+)", str(self))
        return RequestError(self.status, name_of(int(row[1])) + str(self)[row.end() :]) if row else self


@dataclass(frozen=True)
class Form:
    """A form in which /v1/score accepts rows."""

    content_type: str
    title: str  # Name of the form in a list of all forms.
    # Function that converts a body to rows. It raises RequestError.
    to_chunk: Callable[[bytes, LogFormat, Limits], RowsToScore]
    # Function that returns the schema for /docs, with the given row as an example.
    describe: Callable[[LogFormat, dict[str, Any]], dict[str, Any]]
    # True if a small body can have so many rows that the event loop must not score them.
    has_small_rows: bool = True
    name_row: NameRow | None = None


def rows_to_chunk(rows: Any, log_format: LogFormat, limits: Limits) -> RowsToScore:
    """Convert rows of any form. Raise RequestError if a row is wrong or there are no rows."""
    check_rows(len(rows), limits)
    try:
        chunk = chunk_of(rows, log_format)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise RequestError(400, error) from None
    if not chunk.num_lines:
        raise RequestError(400, "the request has no rows")
    return chunk


def rejected_row(chunk: Chunk, row: int, reason: str, log_format: LogFormat) -> RequestError:
    """Return the error for a line that the log's parser rejects."""
    return RequestError(400, f"row {row}: rejected as {reason!r}: {bad_cell(chunk, row, log_format, reason)}")


def check_rows(num_rows: int, limits: Limits) -> None:
    """Raise RequestError with status 413 if a request has too many rows."""
    if num_rows > limits.max_rows:
        raise RequestError(413, f"the request has {num_rows:,} rows, expected at most {limits.max_rows:,}")


def without_mark(body: bytes) -> bytes:
    """Return a body without the byte order mark with which some programs begin UTF-8."""
    return body[len(BOM_UTF8) :] if body.startswith(BOM_UTF8) else body


def decode_json(decode: Callable[[bytes], Any], body: bytes) -> Any:
    """Decode JSON with a decoder of msgspec. Raise RequestError if it is not the expected JSON."""
    if not body:
        raise RequestError(400, "the body is empty, expected JSON")
    try:
        return decode(without_mark(body))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        place = re.search(r"malformed: .*\(byte (\d+)\)", str(error))
        if place and (word := _NO_NUMBER.match(without_mark(body), max(int(place[1]) - 1, 0))):
            found = word[1].decode()
            raise RequestError(400, f"the body has {found}, which is no JSON; write null for a missing cell") from None
        raise RequestError(400, f"the body is not the JSON that is expected: {error}") from None
