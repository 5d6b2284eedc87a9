"""Read rows from V2 requests (Open Inference Protocol), which have one input tensor for each field of the log.

The tensor of a vector of W numbers has the shape [n, W], or [n] if its values are texts. All other tensors have n
values. Values are part of the JSON or follow it as binary data. Shapes use n for the number of rows.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from app.serving.forms.form import RequestError, RowsToScore, cell_text, check_rows, decode_json, rows_to_chunk
from app.serving.options import Limits
from data_prep.options.kinds import KINDS, Kind
from data_prep.options.log_format import LogFormat

OUTPUTS = "score", "logit"
# HTTP header of V2's binary extension: the number of bytes of JSON at the beginning of a body, before the binary data.
HEADER_LENGTH = "inference-header-content-length"
_TYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
# A request is refused if a parameter is in UNSUPPORTED or begins with a prefix in UNSUPPORTED_KINDS, because such
# parameters ask for extensions of the Open Inference Protocol (V2) that this service does not have. Other unknown
# parameters are hints and are ignored.
UNSUPPORTED, UNSUPPORTED_KINDS = ("classification",), ("shared_memory_", "sequence_")
UNSUPPORTED_REASON = "there are no classes but the click, no shared memory and no sequences of requests"
_WRONG_VALUE = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Tensor(msgspec.Struct):
    """An input tensor of a V2 request, in the form of the request's JSON."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class WantedOutput(msgspec.Struct):
    """An output that a V2 request asks for: its name, and parameters such as binary_data."""

    name: str
    parameters: dict[str, Any] | None = None


class InferRequest(msgspec.Struct):
    """The JSON part of a V2 request (Open Inference Protocol): the inputs, the wanted outputs and parameters."""

    inputs: list[Tensor]
    id: str | None = None
    outputs: list[WantedOutput] | None = None
    parameters: dict[str, Any] | None = None

    @property
    def wanted(self) -> dict[str, bool]:
        """Names of the requested outputs (by default "score"), and for each True if it is wanted as binary data, False
        for JSON.
        """
        by_default = _parameter(self, "binary_data_output", False)
        outputs = self.outputs or [WantedOutput(OUTPUTS[0])]
        return {output.name: _parameter(output, "binary_data", by_default) for output in outputs}


_decode = msgspec.json.Decoder(InferRequest).decode


def _parameter(part: WantedOutput | InferRequest, name: str, default: bool) -> bool:
    value = (part.parameters or {}).get(name, default)
    if not isinstance(value, bool):
        raise RequestError(400, f"parameter {name!r}: found {value!r}, expected true or false")
    return value


def _check_parameters(request: InferRequest) -> None:
    """Raise RequestError if the request or one of its inputs and outputs has a parameter that asks for an unsupported
    extension of V2.
    """
    for part in (request, *request.inputs, *(request.outputs or ())):
        for name in part.parameters or ():
            if name in UNSUPPORTED or name.startswith(UNSUPPORTED_KINDS):
                raise RequestError(400, f"parameter {name!r} is not supported: {UNSUPPORTED_REASON}")


def split_body(body: bytes, header_length: str | None) -> tuple[InferRequest, memoryview]:
    """Decode the JSON at the beginning of a V2 request's body. Return it and the binary data after it.

    `header_length` is the value of the header HEADER_LENGTH, or None if the whole body is JSON. Raise RequestError if
    this value or the JSON is wrong.
    """
    size = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 12):
            raise RequestError(400, f"the header {HEADER_LENGTH} is no number of bytes")
        size = int(header_length)
        if size > len(body):
            raise RequestError(400, f"{HEADER_LENGTH} is {size}, and the body has {len(body)} bytes")
    request: InferRequest = decode_json(_decode, body[:size])
    _check_parameters(request)
    outputs = [output.name for output in request.outputs or ()]
    if any(outputs.count(name) > (name in OUTPUTS) for name in outputs):
        raise RequestError(400, f"outputs: found {outputs!r}, expected some of {', '.join(OUTPUTS)}, each once")
    return request, memoryview(body)[size:]


def to_chunk(request: InferRequest, binary: memoryview, log_format: LogFormat, limits: Limits) -> RowsToScore:
    """Return the rows of a V2 request in the form that a model scores. `binary` is the binary data after its JSON.
    Raise RequestError if an input is wrong or there are too many rows.
    """
    kinds = dict(log_format.fields)
    names = [tensor.name for tensor in request.inputs]
    # A request may have the fields that get the same value in all rows. Their tensors are read, but not used.
    kinds |= {name: "ignored" for name in log_format.serve_as if name in names}
    if sorted(names) != sorted(kinds):
        missing, others = sorted(set(kinds) - set(names)), [n for n in names if n not in kinds or names.count(n) > 1]
        raise RequestError(
            400, f"expected one input for each field; missing: {missing}; unknown or twice: {sorted(set(others))}"
        )
    columns, start = [], 0
    for tensor in request.inputs:
        num_rows = request.inputs[0].shape[0] if request.inputs[0].shape else 0
        _check_type(tensor, kinds[tensor.name])
        is_vector = kinds[tensor.name] == "vector" and tensor.datatype != "BYTES"
        width = log_format.vectors[tensor.name].width if is_vector else 1
        if tensor.shape not in ([num_rows, width], *([] if is_vector else [[num_rows]])) or num_rows < 0:
            expected = f"[n, {width}]" if is_vector else "[n] or [n, 1]"
            raise RequestError(
                400, f"input {tensor.name!r} has shape {tensor.shape}, expected {expected} with one n for all inputs"
            )
        check_rows(num_rows, limits)
        size = (tensor.parameters or {}).get("binary_data_size")
        if size is None:
            column = _json_column(tensor, num_rows, width)
        elif type(size) is int and 0 <= size <= len(binary) - start and tensor.data is None:
            column = _binary_column(tensor, binary[start : start + size], num_rows * width)
            start += size
        else:
            raise RequestError(
                400,
                f"input {tensor.name!r} has binary_data_size {size!r}, and {len(binary) - start} bytes of binary data "
                "are left; it must have no data in JSON",
            )
        columns.append(_vectors(column, width) if is_vector else column)
    if start != len(binary):
        raise RequestError(400, f"{len(binary) - start} bytes of binary data belong to no input")
    return rows_to_chunk(pa.table(columns, names=names), log_format, limits)


def _check_type(tensor: Tensor, kind: Kind) -> None:
    allowed = KINDS[kind].datatypes
    if tensor.datatype not in allowed:
        raise RequestError(
            400, f"input {tensor.name!r} of kind {kind} has datatype {tensor.datatype!r}, expected {', '.join(allowed)}"
        )


def _json_column(tensor: Tensor, num_rows: int, width: int) -> pa.Array:
    """Return the n · W values of a tensor. Its JSON is a list of all these values, or a list that has, for each of the
    n rows, a list of W values or null.
    """
    data = tensor.data or []
    if all(value is None or isinstance(value, list) for value in data):
        for row, value in enumerate(data):
            if value is not None and len(value) != width:
                raise RequestError(
                    400, f"row {row}, input {tensor.name!r}: found {len(value)} values, expected {width} or null"
                )
        data = [each for value in data for each in value or [None] * width]
    if len(data) != num_rows * width:
        raise RequestError(400, f"input {tensor.name!r} has {len(data)} values, expected {num_rows * width}")
    of_type = pa.string() if tensor.datatype == "BYTES" else pa.from_numpy_dtype(_TYPES[tensor.datatype])
    try:
        return pa.array(data, of_type)
    except _WRONG_VALUE:
        place, wrong = next((i, value) for i, value in enumerate(data) if not _is_of(value, of_type))
        raise RequestError(
            400,
            f"row {place // width}, input {tensor.name!r}: expected a value of {tensor.datatype} or null, found "
            f"{wrong!r}",
        ) from None


def _is_of(value: Any, of_type: pa.DataType) -> bool:
    try:
        pa.array([value], of_type)
    except _WRONG_VALUE:
        return False
    return True


def _vectors(numbers: pa.Array, width: int) -> pa.Array:
    """Return n vectors made of n · W numbers. A vector is missing if all its numbers are null or NaN."""
    is_missing = np.isnan(numbers.to_numpy(zero_copy_only=False)).reshape(-1, width).all(axis=1)
    return pa.FixedSizeListArray.from_arrays(numbers, width, mask=pa.array(is_missing))


def _binary_column(tensor: Tensor, data: memoryview, num_values: int) -> pa.Array:
    if tensor.datatype == "BYTES":
        return _texts(tensor.name, data, num_values)
    dtype = _TYPES[tensor.datatype]
    if len(data) != num_values * dtype.itemsize:
        raise RequestError(
            400,
            f"input {tensor.name!r} has {len(data)} bytes of binary data, expected {num_values * dtype.itemsize}: "
            f"{num_values} values of {tensor.datatype}",
        )
    if dtype == np.bool_:  # In binary data of type BOOL, any byte except 0 means true.
        return pa.array(np.frombuffer(data, np.uint8) != 0)
    return pa.array(np.frombuffer(data, dtype))


def _texts(name: str, data: memoryview, num_rows: int) -> pa.Array:
    """Return the texts in V2's binary data for the input `name`, in which a uint32 before each text is its length in
    bytes. Raise RequestError if they are not `num_rows` texts.
    """
    if (texts := _texts_of_eight(np.frombuffer(data, np.uint8), num_rows)) is not None:
        return texts
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
    # True for the bytes that belong to a text, False for the 4 bytes before each text, which are its length.
    is_text = np.ones(len(data), np.bool_)
    starts = ends - sizes + 4 * np.arange(num_rows)
    for offset in range(4):
        is_text[starts + offset] = False
    return _binary_array(sizes, np.frombuffer(data, np.uint8)[is_text])


def _texts_of_eight(data: np.ndarray, num_rows: int) -> pa.Array | None:
    """Return the texts of V2's binary data without a loop over the texts, or None if only a loop can find the texts.

    No loop is needed if each text has eight bytes or none, and no 4-byte word of a text equals the number 0 or 8, which
    could be a length. Texts of eight hexadecimal digits always fulfil these conditions.
    """
    if len(data) % 4:
        return None
    words = data.view("<u4")
    is_length = (words == 0) | (words == 8)
    places = np.flatnonzero(is_length)
    sizes = words[places].astype(np.int64)
    # A text follows its length, and then comes the next length. Counted in words of 4 bytes, the distance between two
    # lengths must therefore be 1 (for the first length) plus the number of words of the text between them.
    after = np.concatenate([places, [len(words)]])
    if len(places) != num_rows or after[0] != 0 or not np.array_equal(np.diff(after), 1 + sizes // 4):
        return None
    return _binary_array(sizes, words[~is_length])


def _binary_array(sizes: np.ndarray, texts: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return pa.Array.from_buffers(pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])


def answer(
    request: InferRequest, model: str, version: str, generation: int, values: dict[str, np.ndarray]
) -> tuple[bytes, int | None]:
    """Return the body of the response to a V2 request. Also return the number of bytes of its JSON if binary data
    follows the JSON, otherwise None.

    `values` holds each output by name, float32 [n].
    """
    outputs, binary = [], b""
    for name, is_binary in request.wanted.items():
        output: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": [len(values[name])]}
        if is_binary:
            data = values[name].astype("<f4").tobytes()
            output["parameters"] = {"binary_data_size": len(data)}
            binary += data
        else:
            output["data"] = values[name].tolist()
        outputs.append(output)
    answer: dict[str, Any] = {"model_name": model, "model_version": version, "parameters": {"generation": generation}}
    answer["outputs"] = outputs
    if request.id is not None:
        answer["id"] = request.id
    head = msgspec.json.encode(answer)
    return head + binary, len(head) if any(request.wanted.values()) else None


def inputs_of(log_format: LogFormat) -> list[dict[str, Any]]:
    """Return name, datatype and shape of each input (one for each field of the log), in the form that the Open
    Inference Protocol V2 gives to the metadata of a model.
    """
    widths = {name: [form.width] for name, form in log_format.vectors.items()}
    return [
        {"name": name, "datatype": KINDS[kind].datatype, "shape": [-1, *widths.get(name, [])]}
        for name, kind in log_format.fields
    ]


def metadata_of_model(model: str, version: str, log_format: LogFormat) -> dict[str, Any]:
    """Return the metadata of a model as the Open Inference Protocol V2 defines it, with the outputs score and logit."""
    outputs = [{"name": name, "datatype": "FP32", "shape": [-1]} for name in OUTPUTS]
    model_of = {"name": model, "versions": [version], "platform": "onnxruntime_onnx"}
    return {**model_of, "inputs": inputs_of(log_format), "outputs": outputs}


def config_of_model(model: str, version: str, log_format: LogFormat) -> dict[str, Any]:
    """Return the configuration of a model as Triton's model configuration extension defines it.

    A `max_batch_size` of 0 means that the shapes include the dimension of the rows, as they do in the metadata.
    """
    metadata = metadata_of_model(model, version, log_format)

    def declared(tensor: dict[str, Any]) -> dict[str, Any]:
        data_type = f"TYPE_{tensor['datatype']}".replace("BYTES", "STRING")
        return {"name": tensor["name"], "data_type": data_type, "dims": tensor["shape"]}

    tensors = {key: [*map(declared, metadata[f"{key}s"])] for key in ("input", "output")}
    return {"name": model, "platform": metadata["platform"], "max_batch_size": 0, **tensors}


def schema(log_format: LogFormat) -> dict[str, Any]:
    """Return the OpenAPI schema of a V2 request to a model whose log has the fields of `log_format`."""
    names = [name for name, _ in log_format.fields]
    properties = {
        "name": {"type": "string", "enum": names},
        "shape": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        "datatype": {"type": "string"},
        "data": {"type": "array"},
    }
    tensor = {"type": "object", "properties": properties, "required": list(properties)}
    inputs = {"type": "array", "items": tensor, "minItems": len(names), "maxItems": len(names)}
    return {"type": "object", "properties": {"inputs": inputs}, "required": ["inputs"]}


def example(log_format: LogFormat, row: dict[str, Any]) -> dict[str, Any]:
    """Return a V2 request for the row `row`, with the row's values as JSON rather than as binary data after the JSON. A
    value of `row` that is a text is sent as BYTES, whatever the type of its column.
    """
    cells = [
        {**tensor, "shape": [1, *tensor["shape"][1:]], "data": [row.get(tensor["name"])]}
        for tensor in inputs_of(log_format)
    ]
    of_texts = {"datatype": "BYTES", "shape": [1]}
    return {"inputs": [each | of_texts if isinstance(each["data"][0], str) else each for each in cells]}


def binary_example(log_format: LogFormat, row: dict[str, Any]) -> tuple[bytes, int]:
    """Return the body of a V2 request in which the values of the row `row` follow the JSON as binary data, and the
    number of bytes of its JSON.
    """
    texts = {name: cell_text(row.get(name)).encode() for name, _ in log_format.fields}
    tensor = {"shape": [1], "datatype": "BYTES"}
    inputs = [
        {"name": name, **tensor, "parameters": {"binary_data_size": 4 + len(text)}} for name, text in texts.items()
    ]
    head = msgspec.json.encode({"inputs": inputs})
    return head + b"".join(struct.pack("<I", len(text)) + text for text in texts.values()), len(head)
