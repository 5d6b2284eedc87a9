"""Read rows from an Arrow IPC stream."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.serving.forms.form import Form, RequestError, RowsToScore, check_rows, rows_to_chunk
from app.serving.options import Limits
from data_prep.options.log_format import LogFormat

_FILE = b"ARROW1\0\0"
_SHORT_VIEW = 12  # Texts of at most this many bytes are stored in the view itself.
# Metadata key of compression in Arrow 0.17. Streams with it do not state their decompressed sizes.
_OLD_COMPRESSION = b"ARROW:experimental_compression"


def to_chunk(body: bytes, log_format: LogFormat, limits: Limits) -> RowsToScore:
    """Return the rows of a stream or of a Feather file. Raise RequestError if they are wrong or too many.

    A Feather file consists of eight bytes, a stream and a footer.
    """
    body = body[len(_FILE) :] if body.startswith(_FILE) else body
    try:
        _check_claims(body, limits)
        table = pa.ipc.open_stream(body).read_all()
        table.validate()
        # Check the total size first, because full validation reads all these bytes.
        _check_bytes(sum(map(_view_bytes, table.columns)), limits)
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeError, struct.error) as error:
        raise RequestError(400, f"the body is no Arrow IPC stream: {error}") from None
    _check_bytes(sum(map(_dictionary_bytes, table.columns)), limits)
    return rows_to_chunk(table, log_format, limits)


def _check_claims(body: bytes, limits: Limits) -> None:
    """Raise RequestError if a stream claims to hold too many rows or bytes, before it is read.

    Null and compressed columns can claim any size with few bytes. A value counts 8 bytes, including nested values and
    texts, and a buffer counts its size without compression. pyarrow does not offer these numbers, so they are read from
    the flatbuffers of the messages, which pyarrow has verified
    (https://github.com/apache/arrow/blob/main/format/Message.fbs).
    """
    num_rows = num_bytes = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type not in ("record batch", "dictionary"):
            continue
        data = message.metadata.to_pybytes()
        if _OLD_COMPRESSION in data:
            raise RequestError(400, "the body is compressed as by Arrow 0.17; write it with a later release")
        header = _leads_to(data, _field(data, _leads_to(data, 0), 2))
        if message.type == "dictionary":
            header = _leads_to(data, _field(data, header, 1))
        else:
            num_rows += (
                abs(struct.unpack_from("<q", data, _field(data, header, 0))[0]) if _field(data, header, 0) else 0
            )
            check_rows(num_rows, limits)
        num_bytes += sum(8 * max(length, 0) for length, _ in _pairs(data, header, 1))
        for start, length in _pairs(data, header, 2):
            claimed = -1
            if length >= 8 and _field(data, header, 3):
                (claimed,) = struct.unpack_from("<q", message.body, start)
            num_bytes += max(claimed, length)
        _check_bytes(num_bytes, limits)


def _leads_to(data: bytes, place: int) -> int:
    """Return the position that the offset at `place` of a flatbuffer points to."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a flatbuffer's table, or 0 if the field has its default value."""
    first = table - struct.unpack_from("<i", data, table)[0]
    place, (size,) = first + 4 + 2 * number, struct.unpack_from("<H", data, first)
    offset = struct.unpack_from("<H", data, place)[0] if place < first + size else 0
    return table + offset if offset else 0


def _pairs(data: bytes, table: int, number: int) -> Iterator[tuple[int, int]]:
    """Yield the structures in a flatbuffer's vector, each a pair of int64 values."""
    if place := _field(data, table, number):
        start = _leads_to(data, place)
        yield from struct.iter_unpack(
            "<qq", data[start + 4 : start + 4 + 16 * struct.unpack_from("<I", data, start)[0]]
        )


def _dictionary_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes that a dictionary column takes with each cell's text written out."""
    if _is_list(column.type):
        column = pc.list_flatten(column)
    if not pa.types.is_dictionary(column.type):
        return 0
    texts, num_bytes = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()), 0
    for chunk in column.chunks:
        lengths = _view_lengths(chunk.dictionary)
        if column.type.value_type in texts:
            lengths = pc.binary_length(chunk.dictionary).fill_null(0).to_numpy(zero_copy_only=False)
        if len(lengths):
            num_bytes += int(lengths[chunk.indices.drop_null().to_numpy()].sum())
    return num_bytes


def _view_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes that a column of views takes with each text written out. Many views may share a text."""
    chunks = [chunk.values if _is_list(column.type) else chunk for chunk in column.chunks]
    return sum(int(_view_lengths(chunk).sum()) for chunk in chunks)


def _is_list(of_type: pa.DataType) -> bool:
    return pa.types.is_list(of_type) or pa.types.is_large_list(of_type) or pa.types.is_fixed_size_list(of_type)


def _view_lengths(texts: pa.Array) -> np.ndarray:
    """Return the lengths [n] of texts that are views, or an empty array for other types. Raise RequestError for bad
    views.

    A view has 16 bytes. The first four are the length.
    """
    if not (pa.types.is_string_view(texts.type) or pa.types.is_binary_view(texts.type)):
        return np.zeros(0, np.int64)
    _, places, *data = texts.buffers()
    views = np.frombuffer(places or b"", np.uint8)
    views = views[: len(views) // 16 * 16].view(np.int32).reshape(-1, 4)[texts.offset : texts.offset + len(texts)]
    lengths = views[:, 0].astype(np.int64)
    # pyarrow 26 casts a view without checking its position, and its validation skips views of missing texts.
    _, numbers, starts = views[lengths > _SHORT_VIEW, 1:].T.astype(np.int64)
    # The last size, -1, is used for buffer numbers out of range.
    sizes = np.array([*(buffer.size for buffer in data), -1])
    ends = sizes[np.where((numbers >= 0) & (numbers < len(data)), numbers, -1)]
    if len(views) < len(texts) or min(lengths.min(initial=0), starts.min(initial=0)) < 0:
        raise RequestError(400, "the body is no Arrow IPC stream: a view of a text is cut or negative")
    if np.any(starts + lengths[lengths > _SHORT_VIEW] > ends):
        raise RequestError(400, "the body is no Arrow IPC stream: a view is of bytes outside its buffer")
    return lengths


def _check_bytes(num_bytes: int, limits: Limits) -> None:
    if num_bytes > (most := limits.max_body_mib << 20):
        raise RequestError(413, f"the body's cells take {num_bytes:,} bytes, expected at most {most:,}")


def describe(log_format: LogFormat, row: dict[str, Any]) -> dict[str, Any]:
    """Return an example for the OpenAPI document, which has no schema for bytes."""
    table = pa.table({name: pa.array([row.get(name)]) for name, _ in log_format.fields})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {"example": sink.getvalue().to_pybytes()}


FORM = Form("application/vnd.apache.arrow.stream", "an Arrow IPC stream", to_chunk, describe)
