"""The access log: a line of JSON for each request, on standard output, and the ids by which callers find theirs.

Of what a client has sent, a line has the id alone: no value of a row, no other header, and an address by its form.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

ID_HEADER = "x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")
_TRACE = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")  # W3C's
_STANDARD_OUTPUT = 1


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id of a request: its x-request-id, the trace's of its traceparent, or a new one if neither is right.

    An id has up to 128 letters, digits and ._:/+=@~- so that it can stand in any log.
    """
    found = dict(headers)
    if _ID.fullmatch(given := found.get(b"x-request-id", b"")):
        return given.decode()
    trace = _TRACE.fullmatch(found.get(b"traceparent", b""))
    return trace[1].decode() if trace else f"{random.getrandbits(128):032x}"


def log_request(number: str, method: str, route: str, status: int, rows: int | None, seconds: float) -> None:
    """Write a line. `rows` is the number of those that were scored.

    In one write, so that lines of several processes are whole. A reader that has gone costs no client an answer.
    """
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": number,
        "method": method,
        "route": route,
        "status": status,
        "rows": rows,
        "milliseconds": round(seconds * 1e3, 3),
    }
    with suppress(OSError):
        os.write(_STANDARD_OUTPUT, msgspec.json.encode(line) + b"\n")
