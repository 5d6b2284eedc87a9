"""Rows of JSON as columns: those of the lines that they would be, with the same errors."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from app.serving.forms import json_rows
from app.serving.forms.form import RequestError, rejected_row
from app.serving.options import Limits
from data_prep.encoding.encoder import Chunk
from data_prep.encoding.from_values import lines_of, rejected
from data_prep.encoding.rows_to_score import RawTable

INTEGERS = [None, 0, 7, -1, 2**63 - 1, -(2**63), 2**63, True, False, 5.0, -0.0, "5", "", " 5", "x", []]
BAD_HEX = ["", "68FD1E64", "68fd1e6", "68fd1e640", "68fd 1e6", " 68fd1e6", "68fd1e6\n", "68fd1e6\t", "\u0661" * 8]
HEX = [None, "0" * 8, "ffffffff", "68fd1e64", *BAD_HEX, 5, 2**32, 1.5, False, ["6", "8"] * 4]
CHANGES = st.tuples(
    st.integers(0, 2), st.sampled_from(["I", "C"]), st.integers(1, 13), st.sampled_from(INTEGERS), st.sampled_from(HEX)
)


def outcome(predictor, to_chunk):
    """Return ids and numbers of the encoded rows, or the error."""
    try:
        chunk = to_chunk()
        if not isinstance(chunk, Chunk):
            encoded = predictor.encoder.encode_rows(chunk.rows)
        else:
            parsed, encoded = predictor.encoder.encode(chunk)
            for row, reason in sorted(rejected(chunk, parsed).items()):
                raise rejected_row(chunk, row, reason, predictor.log_format)
    except (RequestError, ValueError, TypeError) as error:
        return str(error)
    return encoded.ids.tolist(), encoded.numeric.tolist()


def check(predictor, rows):
    body, log_format = json.dumps({"rows": rows}).encode(), predictor.log_format
    expected = outcome(predictor, lambda: lines_of(rows, log_format))
    assert outcome(predictor, lambda: json_rows.to_chunk(body, log_format, Limits())) == expected


def test_a_row_becomes_the_columns_that_its_line_does(predictor, golden):
    for changed in [*({"I2": each} for each in INTEGERS), *({"C3": each} for each in HEX)]:
        check(predictor, [row | changed for row in golden.slice(0, 2).to_pylist()])


@given(st.lists(CHANGES, max_size=2), st.integers(0, 90), st.sampled_from([None, "I3", "C20"]))
def test_rows_become_the_columns_that_their_lines_do(predictor, golden, changes, first, missing):
    rows = golden.slice(first, 3).to_pylist()
    for row, kind, number, integer, text in changes:
        rows[row][f"{kind}{number}"] = integer if kind == "I" else text
    if missing and changes:
        del rows[changes[0][0]][missing]
    check(predictor, rows)


def test_whole_numbers_and_hex_digits_become_columns(predictor, golden):
    rows = golden.slice(0, 2).to_pylist()
    assert isinstance(json_rows.as_columns(rows, predictor.log_format), RawTable)
    assert json_rows.as_columns([rows[0] | {"I1": math.inf}], predictor.log_format) is None
    assert json_rows.as_columns([], predictor.log_format) is None
