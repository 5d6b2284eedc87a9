"""Bodies that other libraries write: blank lines at the end, Arrow files, numbers that JSON does not have."""

import io

import pyarrow as pa
import pyarrow.feather
import pytest

from app.serving.forms import FORMS
from app.serving.forms.form import RequestError, rejected_row
from app.serving.options import Limits
from data_prep.encoding.from_values import lines_to_chunk
from data_prep.options.log_format import LogFormat

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


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_nan_in_json_is_answered_with_null(number):
    with pytest.raises(RequestError, match="write null for a missing cell"):
        FORMS["application/json"].to_chunk(
            b'{"rows": [{"site": "NaN", "price": %s}]}' % number.encode(), FORMAT, Limits()
        )
    with pytest.raises(RequestError) as error:
        FORMS["application/json"].to_chunk(b'{"rows": [{"site": "NaN" "a"}]}', FORMAT, Limits())
    assert "null" not in str(error.value)


def test_the_reason_and_the_cell_of_a_rejected_row_belong_together():
    log_format = LogFormat({"label": "label", "flag": "boolean", "count": "integer"}, separator=",")
    for reason, cell in (("integer", "column 'count' of kind integer, found 'x'"), ("categorical", "column 'flag'")):
        error = rejected_row(lines_to_chunk(["0,maybe,x"], log_format), 0, reason, log_format)
        assert f"rejected as {reason!r}: {cell}" in str(error)
