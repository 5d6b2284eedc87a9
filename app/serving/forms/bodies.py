"""Receive the bodies of requests within bounds of time and memory, and decompress them.

Bodies are decompressed piece by piece, because a small body may expand to terabytes.
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

BODY_SECONDS = 30.0  # Time for a whole body to arrive.
BODIES_HELD = 4  # Number of bodies of the largest size that may be in memory at the same time.
# Bodies up to this size are returned as bytes. Larger ones stay bytearrays, because a copy of 64 MiB takes 40 ms.
MOST_COPIED = 1 << 17
# ASGI extension of the service's own server: a function that tells if the whole body has arrived.
BODY_ARRIVED = "body_arrived"
CLOSE = {"connection": "close"}  # Headers of an answer to a request whose body was not read.
_ACCEPTED = "gzip, zstd"
_CODECS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}  # Codecs of pyarrow by their names in HTTP.
_PIECE = 1 << 20


class DisconnectedError(Exception):
    """Raised if a client disconnects before its whole body has arrived."""


class ServiceRequest:
    """A request with the values that its answer needs.

    Starlette's class would search and decode the headers at each access.
    """

    held_bytes = 0  # Size of its body in memory, including the decompressed one.
    num_rows: int | None = None  # Number of scored rows.
    predictor: Predictor | None = None  # Model that scored the rows. None stands for the current one.

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope, self.receive = scope, receive
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        # Several headers of the same name form one list (RFC 9110).
        if len(self.headers) < len(scope["headers"]):
            for name in self.headers:
                values = [value for other, value in scope["headers"] if other.decode("latin-1") == name]
                self.headers[name] = b", ".join(values).decode("latin-1")


class Bodies:
    """Reads the bodies of requests, and counts the memory of those that are not answered yet."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` is the maximum size of a body."""
        self._most_bytes, self.held_bytes = most_bytes, 0

    async def read(self, request: ServiceRequest, most: int | None = None) -> bytes:
        """Return the body of a request, of at most `most` bytes. Its memory counts until `release`.

        The result may be a bytearray, which is only read. Raise RequestError if the body is too large, late or wrong,
        and DisconnectedError if the client goes.
        """
        if (coding := request.headers.get("transfer-encoding", "chunked")).lower() != "chunked":
            raise RequestError(501, f"transfer-encoding is {coding!r}, expected chunked alone", CLOSE)
        codec = codec_of(request.headers.get("content-encoding", ""))
        most = min(most or self._most_bytes, self._most_bytes)
        self._check_size(int(request.headers.get("content-length", "0")), most)
        has_arrived = request.scope.get("extensions", {}).get(BODY_ARRIVED)
        # Setting and cancelling a timer takes twice as long as reading a body that has arrived.
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
        """Forget the memory of a request that is answered."""
        self.held_bytes -= request.held_bytes

    async def _received(self, request: ServiceRequest, most: int) -> bytearray:
        """Return a body as it arrives. Starlette's iterator would take longer than decoding a row."""
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
    """Return the codec for a content-encoding header, or None if the body is not compressed. Raise RequestError 415."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _CODECS:
        message = f"content-encoding is {name!r}, expected one of {_ACCEPTED}, or no such header for a body as it is"
        raise RequestError(415, message, {"accept-encoding": _ACCEPTED})
    return _CODECS[name]


async def unpack(body: bytes | bytearray, codec: str) -> AsyncIterator[bytes]:
    """Yield the decompressed body in pieces of 1 MiB. A thread decompresses each piece without holding the interpreter.

    Raise RequestError if the body is damaged or incomplete.
    """
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := await asyncio.to_thread(stream.read, _PIECE):
                yield piece
    except OSError as error:
        raise RequestError(400, f"the body is not {codec} as its content-encoding names it: {error}") from None
