"""Description, errors and bounds of a request, which all forms of its rows share."""

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
from data_prep.encoding.from_table import RawTable, chunk_of
from data_prep.encoding.from_values import bad_cell
from data_prep.options.log_format import LogFormat

RowsToScore = Chunk | RawTable
NameRow = Callable[[bytes, int], str]  # of a body and a row's number, for errors if that is not the row's name
_NO_NUMBER = re.compile(rb"[^\w-]?(-?(?:NaN|Infinity))\b")  # as Python's json writes them
_MOST_SHOWN = 500  # characters of a message: it may quote the request


class RequestError(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, status: int, message: object, headers: dict[str, str] | None = None) -> None:
        super().__init__(str(message)[:_MOST_SHOWN])
        self.status, self.headers = status, headers or {}

    def with_row_as(self, name_of: Callable[[int], str]) -> RequestError:
        """Return the error with another name of the row that its message begins with, if it begins with one."""
        row = re.match(r"row (\d+)", str(self))
        return RequestError(self.status, name_of(int(row[1])) + str(self)[row.end() :]) if row else self


@dataclass(frozen=True)
class Form:
    """A form of the rows of /v1/score."""

    content_type: str
    title: str  # in a list of all forms
    to_chunk: Callable[[bytes, LogFormat, Limits], RowsToScore]  # raises RequestError
    describe: Callable[[LogFormat, dict[str, Any]], dict[str, Any]]  # for /docs: its schema, and a row as an example
    has_small_rows: bool = True  # a small body may have so many that the event loop must not score them
    name_row: NameRow | None = None


def rows_to_chunk(rows: Any, log_format: LogFormat, limits: Limits) -> RowsToScore:
    """Return as a chunk rows of any form. Raises RequestError if a row is wrong or none is there."""
    check_rows(len(rows), limits)
    try:
        chunk = chunk_of(rows, log_format)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise RequestError(400, error) from None
    if not chunk.num_lines:
        raise RequestError(400, "the request has no rows")
    return chunk


def rejected_row(chunk: Chunk, row: int, reason: str, log_format: LogFormat) -> RequestError:
    """Return the error of a line that is none of the log's."""
    return RequestError(400, f"row {row}: rejected as {reason!r}: {bad_cell(chunk, row, log_format, reason)}")


def check_rows(num_rows: int, limits: Limits) -> None:
    """Raise RequestError 413 if a request has too many rows."""
    if num_rows > limits.max_rows:
        raise RequestError(413, f"the request has {num_rows:,} rows, expected at most {limits.max_rows:,}")


def without_mark(body: bytes) -> bytes:
    """Return a body without the byte order mark that some writers of UTF-8 begin with."""
    return body[len(BOM_UTF8) :] if body.startswith(BOM_UTF8) else body


def decode_json(decode: Callable[[bytes], Any], body: bytes) -> Any:
    """Return a body of JSON by one of msgspec's decoders. Raises RequestError."""
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
