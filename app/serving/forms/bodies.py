"""Receive the bodies of requests within bounds of time and memory, and decompress them.

A compressed body is decompressed one MiB at a time, so that a body that would expand to terabytes is refused early.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pyarrow as pa

from app.serving.forms.form import RequestError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

    from app.scoring.predictor import Predictor

BODY_SECONDS = 30.0  # A request whose body has not arrived after this time gets status 408.
BODIES_HELD = 4  # All bodies in memory together may have this many times the size of the largest allowed body.
# `Bodies.read` returns bodies up to this size as bytes. It returns larger bodies as the bytearrays into which they were
# received, because copying 64 MiB takes 40 ms.
MOST_COPIED = 1 << 17
# Key in `scope["extensions"]` under which the service's own server offers a function that returns True if the whole
# body has arrived.
BODY_ARRIVED = "body_arrived"
# Headers of the response to a request whose body was not read. They end the connection, because the next request would
# have to be read after this body.
CLOSE = {"connection": "close"}
_ACCEPTED = "gzip, zstd"
# For each accepted value of the header content-encoding, pyarrow's name of the codec.
_CODECS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}
_PIECE = 1 << 20


class DisconnectedError(Exception):
    """Raised if a client disconnects before its whole body has arrived."""


class ServiceRequest:
    """An HTTP request, and what is found out while it is answered: the memory of its body, the number of its rows, and
    the model that scores them.

    It replaces Starlette's class, which would search and decode the headers at each access.
    """

    held_bytes = 0  # Number of bytes that the request's body takes in memory, compressed and decompressed.
    num_rows: int | None = None  # Number of scored rows.
    predictor: Predictor | None = None  # Model that scores the rows. None before the body has arrived.

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope, self.receive = scope, receive
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        # If a header occurs several times, join its values by commas, as RFC 9110 says.
        if len(self.headers) < len(scope["headers"]):
            for name in self.headers:
                values = [value for other, value in scope["headers"] if other.decode("latin-1") == name]
                self.headers[name] = b", ".join(values).decode("latin-1")


class Bodies:
    """Receives the bodies of requests, and counts the memory that the bodies of unanswered requests take."""

    def __init__(self, most_bytes: int) -> None:
        """Start with no body in memory. `most_bytes` is the maximum size of a body, decompressed."""
        self._most_bytes, self.held_bytes = most_bytes, 0

    async def read(self, request: ServiceRequest, most: int | None = None) -> bytes:
        """Receive and decompress the body of a request, and return it. Its memory is counted until `release` is called.

        The result is a bytearray if the body is large. Callers must not change it. Raise RequestError if the body has
        more than `most` bytes, arrives too slowly or cannot be decompressed, or if all bodies together take too much
        memory. Raise DisconnectedError if the client disconnects.
        """
        if (coding := request.headers.get("transfer-encoding", "chunked")).lower() != "chunked":
            raise RequestError(501, f"transfer-encoding is {coding!r}, expected chunked alone", CLOSE)
        codec = codec_of(request.headers.get("content-encoding", ""))
        most = min(most or self._most_bytes, self._most_bytes)
        self._check_size(int(request.headers.get("content-length", "0")), most)
        has_arrived = request.scope.get("extensions", {}).get(BODY_ARRIVED)
        # Set no timer if the whole body has arrived, because setting and cancelling one takes twice as long as reading
        # such a body.
        timer = nullcontext() if has_arrived is not None and has_arrived() else asyncio.timeout(BODY_SECONDS)
        try:
            async with timer:
                body = await self._received(request, most)
        except TimeoutError:
            raise RequestError(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from None
        if codec is not None:
            packed, body = body, bytearray()
            async for part in unpack(packed, codec):
                self._hold(request, body, part, most)
        return bytes(body) if len(body) <= MOST_COPIED else body  # type: ignore[return-value]

    def release(self, request: ServiceRequest) -> None:
        """Subtract the memory of the body of `request`, which is answered now, from the memory that all bodies take."""
        self.held_bytes -= request.held_bytes

    async def _received(self, request: ServiceRequest, most: int) -> bytearray:
        """Receive the body of a request and return it. A compressed body is not decompressed. Starlette's iterator over
        the parts of a body is not used, because it would take longer than decoding a row.
        """
        body = bytearray()
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            self._hold(request, body, message.get("body", b""), most)
            if not message.get("more_body", False):
                return body

    def _hold(self, request: ServiceRequest, body: bytearray, part: bytes, most: int) -> None:
        body += part
        request.held_bytes += len(part)
        self.held_bytes += len(part)
        self._check_size(len(body), most)

    def _check_size(self, size: int, most: int) -> None:
        if size > most:
            raise RequestError(413, f"the body is larger than {most:,} bytes")
        if self.held_bytes > BODIES_HELD * self._most_bytes:
            raise RequestError(503, "the bodies of other requests fill the memory for them; try again in a second")


def codec_of(encoding: str) -> str | None:
    """Return pyarrow's name of the compression codec that `encoding`, the value of a request's header content-encoding,
    names, or None if the body is not compressed. Raise RequestError with status 415 for any other codec.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _CODECS:
        message = f"content-encoding is {name!r}, expected one of {_ACCEPTED}, or no such header for a body as it is"
        raise RequestError(415, message, {"accept-encoding": _ACCEPTED})
    return _CODECS[name]


async def unpack(body: bytes | bytearray, codec: str) -> AsyncIterator[bytes]:
    """Yield the decompressed body, 1 MiB at a time. A thread decompresses it without holding the global interpreter
    lock.

    Raise RequestError if the body is damaged or incomplete.
    """
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := await asyncio.to_thread(stream.read, _PIECE):
                yield piece
    except OSError as error:
        raise RequestError(400, f"the body is not {codec} as its content-encoding names it: {error}") from None
