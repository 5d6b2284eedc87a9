"""Read the rows of a request body that is an Arrow IPC stream or a Feather file."""

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
# Arrow's view types describe each text by a view of 16 bytes. A text of at most this many bytes is stored in the view
# itself, a longer one in a buffer.
_SHORT_VIEW = 12
# Metadata key with which Arrow 0.17 marked compressed streams. Such streams do not state the sizes of decompressed
# buffers.
_OLD_COMPRESSION = b"ARROW:experimental_compression"


def to_chunk(body: bytes, log_format: LogFormat, limits: Limits) -> RowsToScore:
    """Return the rows of a request body that is an Arrow IPC stream or a Feather file. Raise RequestError if they are
    wrong or too many.

    A Feather file consists of eight bytes, an Arrow IPC stream and a footer.
    """
    body = body[len(_FILE) :] if body.startswith(_FILE) else body
    try:
        _check_claims(body, limits)
        table = pa.ipc.open_stream(body).read_all()
        table.validate()
        columns = [pa.chunked_array(map(_guarded, column.chunks), column.type) for column in table.columns]
        table = pa.Table.from_arrays(columns, schema=table.schema)
        # Many cells of a column of type string_view can refer to the same bytes, so that a small body stands for far
        # more text. Check the amount of text before the full validation, which reads all of it.
        _check_bytes(sum(map(_view_bytes, table.columns)), limits)
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeError, struct.error) as error:
        raise RequestError(400, f"the body is no Arrow IPC stream: {error}") from None
    _check_bytes(sum(map(_dictionary_bytes, table.columns)), limits)
    return rows_to_chunk(table, log_format, limits)


def _check_claims(body: bytes, limits: Limits) -> None:
    """Raise RequestError if a stream's messages state too many rows or bytes. This check runs before pyarrow decodes
    the columns.

    A small body can state any size, because columns of nulls take no bytes and compressed ones take few. The check
    counts 8 bytes for each value, including nested values and texts, and the decompressed size of each buffer. pyarrow
    does not offer these numbers, so they are read from the flatbuffers of the messages, which pyarrow has verified
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
    """Return the position in the flatbuffer `data` that the offset stored at `place` points to."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of field number `number` of the table at position `table` in the flatbuffer `data`. Return 0
    if the field is not stored, because it has its default value.
    """
    first = table - struct.unpack_from("<i", data, table)[0]
    place, (size,) = first + 4 + 2 * number, struct.unpack_from("<H", data, first)
    offset = struct.unpack_from("<H", data, place)[0] if place < first + size else 0
    return table + offset if offset else 0


def _pairs(data: bytes, table: int, number: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of int64 values in the vector that is field number `number` of the table at position `table` of
    the flatbuffer `data`.
    """
    if place := _field(data, table, number):
        start = _leads_to(data, place)
        yield from struct.iter_unpack(
            "<qq", data[start + 4 : start + 4 + 16 * struct.unpack_from("<I", data, start)[0]]
        )


def _dictionary_bytes(column: pa.ChunkedArray) -> int:
    """Return the number of bytes that the cells of a dictionary-encoded column will take when each cell has a copy of
    its text. Return 0 for other columns.
    """
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
    """Return the number of bytes that the cells of a column of views take if each has its own copy of its text (many
    views may share one text). Return 0 for other columns.
    """
    return sum(int(_view_lengths(_innermost(chunk)).sum()) for chunk in column.chunks)


def _is_list(of_type: pa.DataType) -> bool:
    return pa.types.is_list(of_type) or pa.types.is_large_list(of_type) or pa.types.is_fixed_size_list(of_type)


def _are_views(cells: pa.Array) -> bool:
    return bool(pa.types.is_string_view(cells.type) or pa.types.is_binary_view(cells.type))


def _innermost(cells: pa.Array) -> pa.Array:
    """Return the array of the single values that an array of lists or dictionaries contains, at any depth of nesting.
    Return any other array unchanged.
    """
    while (is_list := _is_list(cells.type)) or pa.types.is_dictionary(cells.type):
        cells = cells.values if is_list else cells.dictionary
    return cells


def _guarded(cells: pa.Array) -> pa.Array:
    """Check the views of an array's texts, also within lists and dictionaries. Return the array with empty views in
    place of the views of missing texts.

    Raise RequestError if the view of a present text refers to bytes outside its buffer. In pyarrow 26 the cast of an
    array with a view outside its buffers was not safe, even after full validation.
    """
    if not _are_views(_innermost(cells)):
        return cells
    if pa.types.is_dictionary(cells.type):
        return pa.DictionaryArray.from_arrays(cells.indices, _guarded(cells.dictionary), ordered=cells.type.ordered)
    if _is_list(cells.type):
        own = cells.buffers()[: cells.type.num_buffers]
        children = [_guarded(cells.values)]
        return pa.Array.from_buffers(cells.type, len(cells), own, offset=cells.offset, children=children)
    data = cells.buffers()[2:]
    valid = np.asarray(cells.is_valid())
    views = good_views(_views(cells), valid, np.array([buffer.size for buffer in data], np.int64))
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(cells.type, len(cells), [bits, pa.py_buffer(views), *data])


def _views(texts: pa.Array) -> np.ndarray:
    """Return the views of an array of n texts, int32 [n, 4].

    A view has 16 bytes. The first four are the length of the text. A short text follows in the view itself. For a
    longer one, its first four bytes follow, then the number of its buffer and its position in this buffer.
    """
    data = np.frombuffer(texts.buffers()[1] or b"", np.uint8)
    return data[: len(data) // 16 * 16].view(np.int32).reshape(-1, 4)[texts.offset :][: len(texts)]


def good_views(views: np.ndarray, valid: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Check the views, int32 [n, 4] (see `_views`), of n texts. Return them with zeros in place of the views of missing
    texts.

    `valid` [n] is a mask of the texts that are present, and `sizes` holds the size of each buffer in bytes. Raise
    RequestError if there are fewer views than texts, or if the view of a present text has a negative length or position
    or refers to bytes outside its buffer.
    """
    if len(views) < len(valid):
        raise RequestError(400, "the body is no Arrow IPC stream: the views of its texts are cut")
    views = np.where(valid[:, None], views, np.int32(0))
    lengths, _, numbers, starts = views[(views[:, 0] < 0) | (views[:, 0] > _SHORT_VIEW)].T.astype(np.int64)
    ends = np.append(sizes, -1)[np.where((numbers >= 0) & (numbers < len(sizes)), numbers, -1)]
    if np.any((lengths < 0) | (starts < 0) | (starts + lengths > ends)):
        raise RequestError(400, "the body is no Arrow IPC stream: the view of a text is of bytes outside its buffer")
    return views


def _view_lengths(texts: pa.Array) -> np.ndarray:
    """Return the lengths in bytes, int64 [n], of n texts that are stored as views, or an empty array if they are stored
    otherwise.
    """
    return _views(texts)[:, 0].astype(np.int64) if _are_views(texts) else np.zeros(0, np.int64)


def _check_bytes(num_bytes: int, limits: Limits) -> None:
    if num_bytes > (most := limits.max_body_mib << 20):
        raise RequestError(413, f"the body's cells take {num_bytes:,} bytes, expected at most {most:,}")


def describe(log_format: LogFormat, row: dict[str, Any]) -> dict[str, Any]:
    """Return what the OpenAPI document says about a body of this form: the row `row` as an Arrow IPC stream. There is
    no schema, because OpenAPI has none for bytes.
    """
    table = pa.table({name: pa.array([row.get(name)]) for name, _ in log_format.fields})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return {"example": sink.getvalue().to_pybytes()}


FORM = Form("application/vnd.apache.arrow.stream", "an Arrow IPC stream", to_chunk, describe)
