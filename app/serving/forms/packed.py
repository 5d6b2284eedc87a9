"""Decompress bodies piece by piece, because a small body may expand to terabytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa

from app.serving.forms.form import RequestError

_ACCEPTED = "gzip, zstd"
_CODECS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}  # Codecs of pyarrow by their names in HTTP.
_PIECE = 1 << 20


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
