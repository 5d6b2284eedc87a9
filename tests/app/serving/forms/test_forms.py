"""Bodies that other libraries write: blank lines at the end, Arrow files, vectors of every datatype."""

import io
import json
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

from app.serving.decoding import decode_checked, decode_rows, decode_tensors
from app.serving.forms import FORMS
from app.serving.forms.form import RequestError, rejected_row
from app.serving.options import Limits
from data_prep.encoding.from_values import lines_to_chunk
from data_prep.options.log_format import LogFormat, VectorForm
from tests.request_bodies import arrow_stream

FORMAT = LogFormat({"label": "label", "site": "string", "price": "float"}, separator=",")
EXPECTED = b"0,a,1.5\n0,,2\n"


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n\r\n\r\n"])
def test_blank_lines_end_a_csv_body(end):
    assert FORMS["text/csv"].to_chunk(f"price,site\n1.5,a\n2,{end}".encode(), FORMAT, Limits()).lines == EXPECTED
    alone = LogFormat({"label": "label", "site": "string"}, separator=",")
    assert FORMS["text/csv"].to_chunk(f"site\na\n{end}".encode(), alone, Limits()).num_lines == 1 + end.count("\n")


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_a_feather_file_is_read_as_its_stream(compression):
    table = pa.table({"site": ["a", None], "price": [1.5, 2.0]}).cast(pa.schema({"site": pa.string(), "price": "f4"}))
    body = io.BytesIO()
    pyarrow.feather.write_feather(table, body, compression=compression)
    arrow = FORMS["application/vnd.apache.arrow.stream"]
    assert arrow.to_chunk(body.getvalue(), FORMAT, Limits()).lines == EXPECTED
    with pytest.raises(RequestError, match="no Arrow IPC stream"):
        arrow.to_chunk(body.getvalue()[:100], FORMAT, Limits())


def test_nan_within_a_text_is_not_the_reason_of_an_error():
    with pytest.raises(RequestError) as error:
        FORMS["application/json"].to_chunk(b'{"rows": [{"site": "NaN" "a"}]}', FORMAT, Limits())
    assert "null" not in str(error.value)


VECTORS = LogFormat({"label": "label", "item": "vector"}, vectors={"item": VectorForm(3)})
ROWS = [[1.5, 2, 3], [4, 5], None]


def tensor_of(shape, datatype, data):
    return json.dumps({"inputs": [{"name": "item", "shape": shape, "datatype": datatype, "data": data}]}).encode()


TEXTS = ["1.5 2 3", "[4, 5]", ""]
BAD_VECTORS = {
    "JSON": ("application/json", json.dumps({"rows": [{"item": row} for row in ROWS]}).encode()),
    "JSON of text": ("application/json", json.dumps({"rows": [{"item": text} for text in TEXTS]}).encode()),
    "lines": ("text/plain", "".join(f"{text}\n" for text in TEXTS).encode()),
    "CSV": ("text/csv", b'item\n1.5|2|3\n"[4, 5]"\n\n'),
    "Arrow": ("application/vnd.apache.arrow.stream", arrow_stream(pa.table({"item": ROWS}))),
    "Arrow of text": ("application/vnd.apache.arrow.stream", arrow_stream(pa.table({"item": TEXTS}))),
    "V2": ("", tensor_of([3, 3], "FP32", ROWS)),
    "V2 of text": ("", tensor_of([3], "BYTES", TEXTS)),
}


@pytest.mark.parametrize("form", BAD_VECTORS)
def test_a_vector_of_another_width_is_named(form):
    content_type, body = BAD_VECTORS[form]
    decode = partial(decode_rows, content_type) if content_type else partial(decode_tensors, None)
    name_row = FORMS[content_type].name_row if content_type else None
    with pytest.raises(RequestError, match=r"^(row 1|line 3)\b.*'item'.* 2 (numbers|values), expected 3") as error:
        decode_checked(partial(decode, VECTORS, Limits()), name_row, VECTORS, body)
    assert error.value.status == 400


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
@pytest.mark.parametrize("is_binary", [False, True])
def test_vectors_of_every_datatype_are_float32(datatype, is_binary):
    vectors = np.float16([[0.1, -2.5, 6e-8], [np.nan] * 3, [65504, 0, 1]])
    tensor = {"name": "item", "shape": [3, 3], "datatype": datatype}
    data = vectors.astype(f"<f{int(datatype[2:]) // 8}")
    if is_binary:
        head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": data.nbytes}}]}).encode()
        chunk = decode_tensors(str(len(head)), VECTORS, Limits(), head + data.tobytes())[0]
    else:
        rows = [None if np.isnan(row).any() else row.astype(float).tolist() for row in vectors]
        chunk = decode_tensors(None, VECTORS, Limits(), tensor_of([3, 3], datatype, rows))[0]
    values, present = chunk.vectors["item"]
    assert present.tolist() == [True, False, True]
    assert np.array_equal(values[present], np.float32(vectors)[present])


@pytest.mark.parametrize("vector", [[1, True, 2], [False, 0.5, 2], [0.5, None, 2], [0.5, "x", 2]])
def test_json_vectors_have_numbers_only(vector):
    body = json.dumps({"rows": [{"item": [1, 2, 3]}, {"item": vector}]}).encode()
    with pytest.raises(RequestError, match=r"^row 1\b.*'item'.* as component [12] of 3, expected a number"):
        decode_checked(partial(decode_rows, "application/json", VECTORS, Limits()), None, VECTORS, body)


@pytest.mark.parametrize("shape", [[1, 2], [3], [1, 3, 1]])
def test_a_shape_that_is_no_vector_s_is_refused(shape):
    with pytest.raises(RequestError, match=r"'item' has shape .*, expected \[n, 3\]"):
        decode_tensors(None, VECTORS, Limits(), tensor_of(shape, "FP64", [1, 2, 3]))


def test_the_reason_and_the_cell_of_a_rejected_row_belong_together():
    log_format = LogFormat({"label": "label", "flag": "boolean", "count": "integer"}, separator=",")
    for reason, cell in (("integer", "column 'count' of kind integer, found 'x'"), ("categorical", "column 'flag'")):
        error = rejected_row(lines_to_chunk(["0,maybe,x"], log_format), 0, reason, log_format)
        assert f"rejected as {reason!r}: {cell}" in str(error)
