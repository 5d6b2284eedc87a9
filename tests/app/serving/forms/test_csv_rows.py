"""CSV with a header: it scores as the same rows do in other forms, and an error names line and column."""

import csv
import io
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CSV = {"content-type": "text/csv; charset=utf-8"}


def post(client, body):
    return client.post("/v1/score", content=body.encode() if isinstance(body, str) else body, headers=CSV)


def csv_of(names, rows, quoting=csv.QUOTE_MINIMAL, line_end="\r\n"):
    text = io.StringIO()
    csv.writer(text, quoting=quoting, lineterminator=line_end).writerows([names, *rows])
    return text.getvalue()


@pytest.fixture(scope="session")
def columns(golden):
    return golden.schema.names


@settings(max_examples=30)
@given(seed=st.integers(0, 10**9))
def test_columns_in_any_order_beside_others_score_as_the_rows_do(client, golden, golden_scores, columns, seed):
    draw = random.Random(seed)
    names = draw.sample([*columns, "comment", "comment"], len(columns) + 2)
    rows = [{**row, "comment": "".join(draw.choices('a,"\n\ré', k=draw.randrange(4)))} for row in golden.to_pylist()]
    form = draw.choice([(csv.QUOTE_MINIMAL, "\r\n"), (csv.QUOTE_ALL, "\r\n"), (csv.QUOTE_ALL, "\n")])

    def body(rows):
        return csv_of(names, [[row[name] for name in names] for row in rows], *form)

    answer = post(client, draw.choice(["", "\ufeff"]) + (body(rows) if seed % 2 else body(rows).removesuffix(form[1])))
    assert answer.json().get("scores") == golden_scores, answer.text
    number = draw.randrange(len(rows))
    rows[number]["C1"] = draw.choice(["zz", "a\tb", "a\nb"])
    line = 1 + len(re.findall("\r\n|\r|\n", body(rows[:number])))
    assert re.match(f"line {line}(, |:).*column 'C1' of kind hex32", post(client, body(rows)).json()["error"])


HEADER_ERROR = "line 1 must name each column of the model once, separated by commas; missing or twice: "


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (lambda lines: [], 400, HEADER_ERROR),
        (lambda lines: lines[1:], 400, HEADER_ERROR),
        (lambda lines: [lines[0].replace("C2,", "C1,"), *lines[1:]], 400, f"{HEADER_ERROR}C1, C2; found I1,I2,"),
        (lambda lines: [lines[0].replace("C2,", ""), *lines[1:]], 400, f"{HEADER_ERROR}C2; found I1,I2,"),
        (lambda lines: [lines[0].replace(",", ";"), *lines[1:]], 400, HEADER_ERROR),
        (lambda lines: lines[:1], 400, "the request has no rows"),
        (lambda lines: [*lines, "1,2"], 400, "line 4 has 2 cells, expected 39 as in line 1"),
        (lambda lines: [*lines[:2], "", lines[2]], 400, "line 3 has 1 cells, expected 39 as in line 1"),
        (lambda lines: [*lines, '"1" 2,'], 400, "line 4 is not quoted as in RFC 4180: ',' expected after '\"'"),
        (lambda lines: [*lines, '1,"2'], 400, "line 4 is not quoted as in RFC 4180: unexpected end of data"),
        (lambda lines: [*lines, "\udcff"], 400, "line 4 is no UTF-8: byte 0xff"),
        (lambda lines: [lines[0]] + ["," * 38] * 10_001, 413, "the request has 10,001 rows, expected at most 10,000"),
    ],
)
def test_a_wrong_body_is_refused_by_its_line(client, golden, columns, change, status, message):
    lines = csv_of(columns, [row.values() for row in golden.to_pylist()[:2]]).split("\r\n")[:-1]
    body = "".join(f"{line}\r\n" for line in change(lines)).encode("utf-8", "surrogateescape")
    for start in (b"", b"\xef\xbb\xbf"):
        answer = post(client, start + body)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert error.startswith(message) if message.startswith(HEADER_ERROR) else error == message
