"""Logs of other columns than Criteo's: every line is a row or a reject as plain Python says."""

import csv
import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.kernels.choose import choose_kernels
from data_prep.kernels.parsed import MAX_LINE_BYTES, Chunk
from data_prep.options.log_format import LogFormat

COLUMNS = {"id": "ignored", "count": "integer", "site": "string", "click": "label", "hash": "hex32", "city": "string"}
FORMAT = LogFormat(
    columns=COLUMNS, separator=",", missing=("NULL", "a long mark"), clicked=("1", "yes"), not_clicked=("0", "no")
)
QUOTED = dataclasses.replace(FORMAT, quotes=True)


def cells_of(line, log_format):
    """Cells as bytes; None where quotes are wrong."""
    if not log_format.quotes:
        cells = line.split(b",")
        cells[-1] = cells[-1].removesuffix(b"\r")
        return cells
    text = line.removesuffix(b"\r").decode("latin-1")
    if '"' not in text:
        return None if "\x1f" in text else [cell.encode("latin-1") for cell in text.split(",")]
    if re.search("[\x1f\r]", text):
        return None
    try:
        cells = next(csv.reader([text], strict=True))
    except csv.Error:
        return None
    return [cell.encode("latin-1") for cell in cells]


def oracle(line, log_format):
    """(reason, cells with missing ones empty)."""
    if len(line) > MAX_LINE_BYTES:
        return "too long", None
    cells = cells_of(line, log_format)
    if cells is None:
        return "quotes", None
    if len(cells) != len(COLUMNS):
        return "columns", None
    cells = [b"" if cell in (b"NULL", b"a long mark") else cell for cell in cells]
    _, count, site, click, hexadecimal, city = cells
    if click not in (b"1", b"yes", b"0", b"no"):
        return "label", None
    if count and not (re.fullmatch(rb"-?[0-9]{1,19}", count) and -(2**63) <= int(count) < 2**63):
        return "integer", None
    if hexadecimal and not re.fullmatch(rb"[0-9a-f]{8}", hexadecimal):
        return "categorical", None
    for text in (site, city):
        try:
            text.decode()
        except UnicodeDecodeError:
            return "categorical", None
    return "", cells


def check(lines, log_format, kernels="auto"):
    parse_chunk = choose_kernels(kernels).parse_chunk
    parsed = parse_chunk(Chunk(5, len(lines), b"".join(line + b"\n" for line in lines)), log_format)
    expected = [oracle(line, log_format) for line in lines]
    rows = parsed.rows
    assert rows.row_numbers.tolist() == [5 + i for i, (reason, _) in enumerate(expected) if not reason]
    assert parsed.rejects_tsv == b"".join(
        b"%d\t%s\t%s\n" % (6 + i, reason.encode(), lines[i][:MAX_LINE_BYTES])
        for i, (reason, _) in enumerate(expected)
        if reason
    )
    assert len(rows.labels) + parsed.rejects_by_reason.total() == len(lines)
    good = [cells for reason, cells in expected if not reason]
    assert rows.integers.tolist() == [[int(cells[1] or 0) for cells in good]]
    assert rows.integers_present.tolist() == [[cells[1] != b"" for cells in good]]
    assert rows.labels.tolist() == [cells[3] in (b"1", b"yes") for cells in good]
    assert rows.values.tolist() == [[int(cells[4] or b"0", 16) for cells in good]]
    assert [texts.tolist() for texts in rows.texts] == [[cells[place] for cells in good] for place in (2, 5)]
    assert [present.tolist() for present in rows.strings_present] == [
        [cells[place] != b"" for cells in good] for place in (2, 5)
    ]
    return [reason for reason, _ in expected]


text_cells = st.sampled_from(["", "NULL", "a long mark", "NUL", "a long", "Zürich", "東京", " x ", "\0", "x" * 30])
good_lines = st.tuples(
    st.text("abc", max_size=3),
    st.sampled_from(["", "NULL", "-7", "123456789012"]),
    text_cells,
    st.sampled_from(["1", "0", "yes", "no"]),
    st.sampled_from(["", "NULL", "0123abcd"]),
    text_cells,
).map(lambda cells: ",".join(cells).encode())
quoted_lines = st.lists(
    st.sampled_from(['""', '"a,b"', '"say ""hi"""', '"1"', "1", "yes", '"0123abcd"', "7", "", '"', 'a"b', '"a"b']),
    min_size=5,
    max_size=7,
).map(lambda cells: ",".join(cells).encode())
dirt = st.sampled_from(list(b'01af,"\r\0\t\x80\xff\x1f'))


@st.composite
def dirty_lines(draw):
    line = bytearray(draw(good_lines))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(line)))
        line[place : place + draw(st.integers(0, 2))] = bytes(draw(st.lists(dirt, max_size=2)))
    return bytes(line) + draw(st.sampled_from([b"", b"\r"]))


any_lines = st.lists(
    good_lines | dirty_lines() | quoted_lines | st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150)
@given(any_lines, st.sampled_from([FORMAT, QUOTED]))
def test_every_line_is_a_row_or_a_reject(lines, log_format):
    check(lines, log_format)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'1,2,"a,b",1,0123abcd,"say ""hi"""', ""),
        (b'1,2,"",1,0123abcd,"', "quotes"),
        (b'1,2,"a"b,1,0123abcd,c', "quotes"),
        (b'1,2,a"b,1,0123abcd,c', ""),
        (b'1,2,a\x1fb,1,0123abcd,c', "quotes"),
        (b'1,2,"a,b",1,0123abcd', "columns"),
        (b'"1","2","x","1","0123abcd","y"\r', ""),
        (b'1,2,"' + b"x" * MAX_LINE_BYTES + b'",1,0123abcd,c', "too long"),
        (b'1,2,"' + b"x" * 2 * MAX_LINE_BYTES + b'",1,0123abcd,c', "too long"),  # more than the csv module takes
        (b'1,2,"' + b'""' * (MAX_LINE_BYTES // 2) + b'",1,0123abcd,c', "too long"),  # not without its quotes
        (b'1,2,"a\xff",1,0123abcd,c', "categorical"),
    ],
)  # fmt: skip
def test_quotes(line, reason):
    assert check([line, b"1,2,a,1,0123abcd,c", line], QUOTED) == [reason, "", reason]


@pytest.mark.parametrize("end", [b"\r", b"\r\r", b"\x1f"])
def test_a_line_is_the_same_row_whatever_stands_beside_it(end):
    line = b"1,2,site,1,0123abcd,city" + end
    alone = choose_kernels("numpy").parse_chunk(Chunk(0, 1, line + b"\n"), QUOTED)
    beside = choose_kernels("numpy").parse_chunk(Chunk(0, 2, line + b'\n1,2,"site",1,0123abcd,city\n'), QUOTED)
    assert alone.rejects_tsv == beside.rejects_tsv
    assert [texts.tolist() for texts in alone.rows.texts] == [texts.tolist()[:-1] for texts in beside.rows.texts]


def test_a_line_break_in_quotes_costs_its_two_lines_alone():
    lines = [b"1,2,a,1,0123abcd,c", b'1,2,"a', b'b",1,0123abcd,c', b"1,2,a,1,0123abcd,c"]
    assert check(lines, QUOTED) == ["", "quotes", "columns", ""]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"label": "label", "C1": "hex32"}, b"1\t0123abcd"),
        ({"label": "label", "I1": "integer", "C1": "hex32", "C2": "hex32"}, b"0\t-5\t\tffffffff"),
    ],
)
def test_other_numbers_of_criteos_columns_are_parsed_alike(columns, line):
    log_format = LogFormat(columns=columns)
    lines = [line, line + b"\t", line[:-1], b"", line + b"\r", b"2" + line]
    chunk = Chunk(0, len(lines), b"".join(line + b"\n" for line in lines))
    ours, theirs = (choose_kernels(name).parse_chunk(chunk, log_format) for name in ("auto", "numpy"))
    assert ours.rejects_tsv == theirs.rejects_tsv
    assert ours.rows.row_numbers.tolist() == theirs.rows.row_numbers.tolist() == [0, 4]
    assert ours.rows.values.tolist() == theirs.rows.values.tolist()
    assert ours.rows.integers.tolist() == theirs.rows.integers.tolist()


def parse(lines, kernels, **fields):
    """The rows of lines, and the number of lines rejected for each reason."""
    log_format = LogFormat(**{"separator": ",", **fields})
    chunk = Chunk(0, len(lines), "".join(f"{line}\n" for line in lines).encode())
    parsed = choose_kernels(kernels).parse_chunk(chunk, log_format)
    return parsed.rows.with_lists(log_format, choose_kernels(kernels)), dict(parsed.rejects_by_reason)


@pytest.mark.parametrize("kernels", ["native", "numpy"])
def test_blanks_around_cells_are_no_part_of_them(kernels):
    columns = {"income": "label", "age": "integer", "hash": "hex32", "job": "string", "tags": "list", "pay": "float"}
    lines = [" >50K, 39 , 0123abcd,Sales rep , a| b c |,1.5", '>50K ,,    ," ""x"" ", "a | d" ,NA ', '1, 2,"x"y,z,,']
    rows, rejects = parse(
        lines, kernels, columns=columns, trim=True, quotes=True, missing=("NA",), clicked=(">50K",), not_clicked="rest"
    )
    assert rows.labels.tolist() == [True, True]
    assert (rows.integers[0].tolist(), rows.integers_present[0].tolist()) == ([39, 0], [True, False])
    assert (rows.values[0].tolist(), rows.values_present[0].tolist()) == ([0x0123ABCD, 0], [True, False])
    assert rows.texts[0].tolist() == [b"Sales rep", b'"x"']
    assert rows.lists["tags"].values.tolist() == [b"a", b"b c", b"a", b"d"]
    assert rows.floats_present[0].tolist() == [True, False]
    assert rejects == {"quotes": 1}


@pytest.mark.parametrize("kernels", ["native", "numpy"])
def test_a_decimal_comma_is_a_point(kernels):
    columns = {"click": "label", "price": "float", "weight": "weight", "c": "string"}
    lines = ["3,5;1,25;0,5;a", "2,5;-1.5;2;b", "4;1.234,5;1;c", "4;12345678901234567890,5;1;c"]
    rows, rejects = parse(lines, kernels, columns=columns, separator=";", decimal=",", clicked=">= 3")
    assert rows.labels.tolist() == [True, False, True]
    assert rows.floats[0].tolist() == [1.25, -1.5, 12345678901234567890.5]
    assert rows.weights.tolist() == [0.5, 2, 1]
    assert rejects == {"float": 1}


@pytest.mark.parametrize("kernels", ["native", "numpy"])
@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({"not_clicked": "normal.", "clicked": "rest"}, [False, True, True]),
        ({"not_clicked": ("normal.", "smurf."), "clicked": "rest"}, [False, True, False]),
        ({"clicked": "normal.", "not_clicked": "rest"}, [True, False, False]),
        ({"clicked": ("normal.", "e"), "not_clicked": "rest"}, [True, False, False]),
    ],
)
def test_the_rest_of_a_label_is_any_cell_that_is_not_missing(kernels, fields, labels):
    lines = ["normal.,a", "back.,a", "smurf.,b", ",c", "?,c"]
    rows, rejects = parse(lines, kernels, columns={"y": "label", "c": "string"}, missing=("?",), **fields)
    assert (rows.labels.tolist(), rejects) == (labels, {"label": 2})


@pytest.mark.parametrize("kernels", ["native", "numpy"])
@pytest.mark.parametrize(
    ("form", "times", "bad"),
    [
        (
            "%m/%d/%Y %I:%M:%S %p",
            ["1/2/1970 12:00:01 AM", "01/02/1970 12:00:01 AM", "1/1/1970 12:00:01 pm"],
            "1/2/1970 0:00:01 AM",
        ),
        (
            "%Y-%m-%d %H:%M:%S.%f",
            ["1970-1-2 0:0:1.000999", "1970-01-02 00:00:01.0", "1970-01-01 12:00:01.0004"],
            "1970-1-2 0:0:1.",
        ),
        ("%Y%m%d", ["19700102", "19700102", "19700101"], "1970102"),
    ],
)
def test_parts_of_times_may_lack_a_zero_where_that_is_clear(kernels, form, times, bad):
    second = 1000 * ("%S" in form)
    lines = [*(f"1,{time}" for time in times), f"0,{bad}"]
    rows, rejects = parse(lines, kernels, columns={"click": "label", "t": "timestamp"}, timestamps={"t": form})
    half = 43_200_000 if second else 0
    assert rows.times[0].tolist() == [86_400_000 + second, 86_400_000 + second, half + second]
    assert rejects == {"timestamp": 1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"separator": " ", "trim": True}, "blanks separate them here"),
        ({"decimal": ","}, "a number's comma would end its cell"),
        ({"timestamps": {"t": "%m/%d/%Y %I:%M"}}, "%I .1 to 12. and %p .AM or PM. go together"),
        ({"clicked": "rest", "not_clicked": "rest"}, "must be cells that differ"),
    ],
)
def test_formats_that_contradict_themselves_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LogFormat(**{"separator": ",", "columns": {"y": "label", "c": "string", "t": "timestamp"}, **fields})
