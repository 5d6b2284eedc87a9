"""Bodies of requests as lines of the log, so that one parser decides what a good row is, and answers as bytes.

Tables of plain numbers and hex digits alone become columns at once.

/v1/score takes rows as JSON, lines of text or an Arrow IPC stream. V2 (the Open Inference Protocol) takes one input of
n values for each field, as JSON or as binary data behind the JSON.

Letters: n rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.scoring.predictor import Predictor
from app.serving.options import Limits
from data_prep.encoding.encoder import Chunk
from data_prep.encoding.from_table import RawTable

RowsToScore = Chunk | RawTable
OUTPUT = "score"  # the only one of the model
HEADER_LENGTH = "inference-header-content-length"  # of V2's binary extension: bytes of JSON before the binary data
_TYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
_HEX_TYPES = ("BYTES", "INT32", "UINT32", "INT64")  # others have no form of eight hex digits
_WHOLE_TYPES = tuple(name for name in _TYPES if "INT" in name)
_OLD_COMPRESSION = b"ARROW:experimental_compression"  # of one release, beside the format: nothing else names the sizes
_MOST_SHOWN = 500  # characters of a message: it may quote the request


class RequestError(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, status: int, message: object) -> None:
        super().__init__(str(message)[:_MOST_SHOWN])
        self.status = status


class Tensor(msgspec.Struct):
    """An input of V2."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] = {}


class WantedOutput(msgspec.Struct):
    """An output that a V2 request asks for."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(msgspec.Struct):
    """The JSON of a V2 request."""

    inputs: list[Tensor]
    id: str | None = None
    outputs: list[WantedOutput] | None = None
    parameters: dict[str, Any] = {}

    @property
    def is_binary_wanted(self) -> bool:
        """True if the scores shall follow the answer's JSON as binary data."""
        by_default = bool(self.parameters.get("binary_data_output"))
        return bool((self.outputs or [WantedOutput(OUTPUT)])[0].parameters.get("binary_data", by_default))


class ScoreRequest(msgspec.Struct):
    """The JSON of /v1/score."""

    rows: list[dict[str, Any]]


class VersionRequest(msgspec.Struct):
    """The JSON of /v1/rollback, the version that is not to be served any more, and of /v1/pin, the one that is."""

    version: str


_decode_version = msgspec.json.Decoder(VersionRequest).decode
_decode_score = msgspec.json.Decoder(ScoreRequest).decode
_decode_infer = msgspec.json.Decoder(InferRequest).decode


def _decoded(decode: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise RequestError(400, f"the body is not the JSON that is expected: {error}") from None


def rows_to_chunk(body: bytes, predictor: Predictor, limits: Limits) -> RowsToScore:
    """Return the rows of {"rows": [{column: value …} …]}. Raises RequestError, as the others here."""
    return _chunk(rows_of(body), predictor, limits)


def rows_of(body: bytes) -> list[dict[str, Any]]:
    """Return the rows of a body of /v1/score."""
    rows: list[dict[str, Any]] = _decoded(_decode_score, body).rows
    return rows


def version_in(body: bytes) -> str:
    """Return the version that a body of /v1/rollback or /v1/pin names."""
    version: str = _decoded(_decode_version, body).version
    return version


def lines_to_chunk(body: bytes, predictor: Predictor, limits: Limits) -> RowsToScore:
    """Return lines as in the log, whose label may be left out."""
    _check_rows(body.count(b"\n"), limits)
    return _chunk(body.removesuffix(b"\n").split(b"\n") if body else [], predictor, limits)


def arrow_to_chunk(body: bytes, predictor: Predictor, limits: Limits) -> RowsToScore:
    """Return the rows of an Arrow IPC stream."""
    try:
        _check_claims(body, limits)
        table = pa.ipc.open_stream(body).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeError, struct.error) as error:
        raise RequestError(400, f"the body is no Arrow IPC stream: {error}") from None
    _check_bytes(sum(map(_dictionary_bytes, table.columns)), limits)
    return _chunk(table, predictor, limits)


def _check_claims(body: bytes, limits: Limits) -> None:
    """Check what an Arrow IPC stream claims to hold, before it is read: null or compressed columns may claim anything.

    Counts 8 bytes a value, nested ones too, for its text, and buffers as they are without compression. pyarrow gives
    no access to these numbers: https://github.com/apache/arrow/blob/main/format/Message.fbs, which it has verified.
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
            _check_rows(num_rows, limits)
        num_bytes += sum(8 * max(length, 0) for length, _ in _pairs(data, header, 1))
        for start, length in _pairs(data, header, 2):
            claimed = -1
            if length >= 8 and _field(data, header, 3):
                (claimed,) = struct.unpack_from("<q", message.body, start)
            num_bytes += max(claimed, length)
        _check_bytes(num_bytes, limits)


def _leads_to(data: bytes, place: int) -> int:
    """Return the place to which an offset of a flatbuffer leads."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return the place of a field of a flatbuffer's table, 0 where that has the default."""
    first = table - struct.unpack_from("<i", data, table)[0]
    place, (size,) = first + 4 + 2 * number, struct.unpack_from("<H", data, first)
    offset = struct.unpack_from("<H", data, place)[0] if place < first + size else 0
    return table + offset if offset else 0


def _pairs(data: bytes, table: int, number: int) -> Iterator[tuple[int, int]]:
    """Yield the structures of a flatbuffer's vector, of two numbers each."""
    if place := _field(data, table, number):
        start = _leads_to(data, place)
        yield from struct.iter_unpack(
            "<qq", data[start + 4 : start + 4 + 16 * struct.unpack_from("<I", data, start)[0]]
        )


def _dictionary_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes of a column's texts where each has the place of one in a dictionary, which may be long."""
    of_type = column.type
    if pa.types.is_list(of_type) or pa.types.is_large_list(of_type) or pa.types.is_fixed_size_list(of_type):
        column = pc.list_flatten(column)
    texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    if not (pa.types.is_dictionary(column.type) and column.type.value_type in texts):
        return 0
    lengths = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks)
    return sum(pc.sum(each).as_py() or 0 for each in lengths)


def _check_bytes(num_bytes: int, limits: Limits) -> None:
    if num_bytes > (most := limits.max_body_mib << 20):
        raise RequestError(413, f"the body's cells take {num_bytes:,} bytes, expected at most {most:,}")


def _check_rows(num_rows: int, limits: Limits) -> None:
    if num_rows > limits.max_rows:
        raise RequestError(413, f"the request has {num_rows:,} rows, expected at most {limits.max_rows:,}")


def _chunk(rows: Any, predictor: Predictor, limits: Limits) -> RowsToScore:
    _check_rows(len(rows), limits)
    try:
        chunk = predictor.chunk_of(rows)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise RequestError(400, error) from None
    if not chunk.num_lines:
        raise RequestError(400, "the request has no rows")
    return chunk


def split_infer(body: bytes, header_length: str | None) -> tuple[InferRequest, memoryview]:
    """Return the JSON of a V2 request and the binary data behind it."""
    size = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 12):
            raise RequestError(400, f"the header {HEADER_LENGTH} is no number of bytes")
        size = int(header_length)
        if size > len(body):
            raise RequestError(400, f"{HEADER_LENGTH} is {size}, and the body has {len(body)} bytes")
    request: InferRequest = _decoded(_decode_infer, body[:size])
    outputs = [output.name for output in request.outputs or ()]
    if outputs not in ([], [OUTPUT]):
        raise RequestError(400, f"outputs: found {outputs!r}, expected [{OUTPUT!r}]")
    return request, memoryview(body)[size:]


def tensors_to_chunk(request: InferRequest, binary: memoryview, predictor: Predictor, limits: Limits) -> RowsToScore:
    """Return the rows of a V2 request."""
    kinds = dict(predictor.log_format.fields)
    names = [tensor.name for tensor in request.inputs]
    if sorted(names) != sorted(kinds):
        missing, others = sorted(set(kinds) - set(names)), [n for n in names if n not in kinds or names.count(n) > 1]
        raise RequestError(
            400, f"expected one input for each field; missing: {missing}; unknown or twice: {sorted(set(others))}"
        )
    columns, start = [], 0
    for tensor in request.inputs:
        num_rows = request.inputs[0].shape[0] if request.inputs[0].shape else 0
        if tensor.shape not in ([num_rows], [num_rows, 1]) or num_rows < 0:
            raise RequestError(
                400, f"input {tensor.name!r} has shape {tensor.shape}, expected [n] or [n, 1] with one n for all inputs"
            )
        _check_rows(num_rows, limits)
        _check_type(tensor, kinds[tensor.name])
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            columns.append(_json_column(tensor, num_rows))
            continue
        if type(size) is not int or not 0 <= size <= len(binary) - start or tensor.data is not None:
            raise RequestError(
                400,
                f"input {tensor.name!r} has binary_data_size {size!r}, and {len(binary) - start} bytes of binary data "
                "are left; it must have no data in JSON",
            )
        columns.append(_binary_column(tensor, binary[start : start + size], num_rows))
        start += size
    if start != len(binary):
        raise RequestError(400, f"{len(binary) - start} bytes of binary data belong to no input")
    return _chunk(pa.table(columns, names=names), predictor, limits)


def _check_type(tensor: Tensor, kind: str) -> None:
    allowed = {"hex32": _HEX_TYPES, "string": ("BYTES", *_WHOLE_TYPES)}.get(kind, ("BYTES", *_TYPES))
    if tensor.datatype not in allowed:
        raise RequestError(
            400, f"input {tensor.name!r} of kind {kind} has datatype {tensor.datatype!r}, expected {', '.join(allowed)}"
        )


def _json_column(tensor: Tensor, num_rows: int) -> pa.Array:
    data = tensor.data or []
    if data and all(isinstance(value, list) and len(value) == 1 for value in data):
        data = [value[0] for value in data]
    if len(data) != num_rows:
        raise RequestError(400, f"input {tensor.name!r} has {len(data)} values, expected {num_rows}")
    of_type = pa.string() if tensor.datatype == "BYTES" else pa.from_numpy_dtype(_TYPES[tensor.datatype])
    try:
        return pa.array(data, of_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        row = next(i for i, value in enumerate(data) if not _is_of(value, of_type))
        raise RequestError(
            400, f"row {row}, input {tensor.name!r}: expected a value of {tensor.datatype} or null, found {data[row]!r}"
        ) from None


def _is_of(value: Any, of_type: pa.DataType) -> bool:
    try:
        pa.array([value], of_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _binary_column(tensor: Tensor, data: memoryview, num_rows: int) -> pa.Array:
    if tensor.datatype == "BYTES":
        return _texts(tensor.name, data, num_rows)
    dtype = _TYPES[tensor.datatype]
    if len(data) != num_rows * dtype.itemsize:
        raise RequestError(
            400,
            f"input {tensor.name!r} has {len(data)} bytes of binary data, expected {num_rows * dtype.itemsize}: "
            f"{num_rows} values of {tensor.datatype}",
        )
    if dtype == np.bool_:  # any byte but 0 is true
        return pa.array(np.frombuffer(data, np.uint8) != 0)
    return pa.array(np.frombuffer(data, dtype))


def _texts(name: str, data: memoryview, num_rows: int) -> pa.Array:
    """Return texts that each have their length, uint32, before them."""
    if (found := _texts_of_eight(np.frombuffer(data, np.uint8), num_rows)) is not None:
        return found
    lengths: list[int] = []
    place = 0
    read = struct.Struct("<I").unpack_from
    try:
        while place < len(data) and len(lengths) <= num_rows:
            (length,) = read(data, place)
            lengths.append(length)
            place += 4 + length
    except struct.error:
        place = -1
    if place != len(data) or len(lengths) != num_rows:
        raise RequestError(
            400, f"input {name!r}: {len(data)} bytes of binary data are not {num_rows} texts, each behind its length"
        )
    sizes = np.array(lengths, np.int64)
    ends = np.cumsum(sizes)
    # The texts without their lengths: byte i of the result lies 4 bytes further for each text up to its own.
    taken = np.ones(len(data), np.bool_)
    starts = ends - sizes + 4 * np.arange(num_rows)
    for offset in range(4):
        taken[starts + offset] = False
    return _binary_array(sizes, np.frombuffer(data, np.uint8)[taken])


def _texts_of_eight(data: np.ndarray, num_rows: int) -> pa.Array | None:
    """Return texts of eight bytes or none, as those of hex digits, whose halves are not the numbers 0 or 8; or None."""
    if len(data) % 4:
        return None
    words = data.view("<u4")
    is_length = (words == 0) | (words == 8)
    places = np.flatnonzero(is_length)
    sizes = words[places].astype(np.int64)
    after = np.concatenate([places, [len(words)]])  # each length, then as many words as it has
    if len(places) != num_rows or after[0] != 0 or not np.array_equal(np.diff(after), 1 + sizes // 4):
        return None
    return _binary_array(sizes, words[~is_length])


def _binary_array(sizes: np.ndarray, texts: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return pa.Array.from_buffers(pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])


def infer_answer(
    request: InferRequest, model: str, version: str, generation: int, scores: np.ndarray
) -> tuple[bytes, int | None]:
    """Return the body that answers a V2 request, and the length of its JSON where binary data follow."""
    output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": [len(scores)]}
    binary = scores.astype("<f4").tobytes() if request.is_binary_wanted else b""
    if request.is_binary_wanted:
        output["parameters"] = {"binary_data_size": len(binary)}
    else:
        output["data"] = scores.tolist()
    answer: dict[str, Any] = {"model_name": model, "model_version": version, "parameters": {"generation": generation}}
    answer["outputs"] = [output]
    if request.id is not None:
        answer["id"] = request.id
    head = msgspec.json.encode(answer)
    return head + binary, len(head) if request.is_binary_wanted else None
