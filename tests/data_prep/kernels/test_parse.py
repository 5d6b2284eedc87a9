import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.kernels.parse import parse_chunk
from data_prep.kernels.parsed import MAX_LINE_BYTES, Chunk
from data_prep.options.log_format import LogFormat

INTEGER = re.compile(rb"-?[0-9]{1,19}")
HEX = re.compile(rb"[0-9a-f]{8}")


def oracle_reason(line: bytes) -> str:
    """Why a line is rejected, "" for a good one: the definition in plain Python."""
    if len(line) > MAX_LINE_BYTES:
        return "too long"
    cells = line.split(b"\t")
    if len(cells) != 40:
        return "columns"
    cells[-1] = cells[-1].removesuffix(b"\r")
    if cells[0] not in (b"0", b"1"):
        return "label"
    for cell in cells[1:14]:
        if cell and not (INTEGER.fullmatch(cell) and -(2**63) <= int(cell) < 2**63):
            return "integer"
    if all(cell == b"" or HEX.fullmatch(cell) for cell in cells[14:]):
        return ""
    return "categorical"


def parse(lines):
    return parse_chunk(Chunk(0, len(lines), b"".join(line + b"\n" for line in lines)), LogFormat())


def check_against_oracle(lines):
    parsed = parse(lines)
    reasons = [oracle_reason(line) for line in lines]
    assert parsed.rows.row_numbers.tolist() == [i for i, reason in enumerate(reasons) if not reason]
    expected_rejects = [
        b"%d\t%s\t%s\n" % (i + 1, reason.encode(), lines[i][:MAX_LINE_BYTES])
        for i, reason in enumerate(reasons)
        if reason
    ]
    assert parsed.rejects_tsv == b"".join(expected_rejects)
    assert parsed.rejects_by_reason.total() == len(expected_rejects)

    good = [lines[i].removesuffix(b"\r").split(b"\t") for i in parsed.rows.row_numbers]
    rows = parsed.rows
    assert rows.labels.tolist() == [cells[0] == b"1" for cells in good]
    assert rows.integers.T.tolist() == [[int(cell or 0) for cell in cells[1:14]] for cells in good]
    assert rows.integers_present.T.tolist() == [[cell != b"" for cell in cells[1:14]] for cells in good]
    assert rows.values.T.tolist() == [[int(cell or b"0", 16) for cell in cells[14:]] for cells in good]
    assert rows.values_present.T.tolist() == [[cell != b"" for cell in cells[14:]] for cells in good]


good_integers = st.integers(-(2**63), 2**63 - 1).map(str) | st.integers(-99, 999).map(str) | st.just("")
good_values = st.integers(0, 2**32 - 1).map(lambda value: f"{value:08x}") | st.just("")
good_lines = st.tuples(
    st.sampled_from("01"),
    st.lists(good_integers, min_size=13, max_size=13),
    st.lists(good_values, min_size=26, max_size=26),
    st.sampled_from(["", "\r"]),
).map(lambda parts: "\t".join([parts[0], *parts[1], *parts[2]]).encode() + parts[3].encode())

# Bytes next to the accepted ones in ASCII, and some that other readers take for something.
dirt = st.sampled_from(list(b"0123456789abcdef/:`gAF-+ .,x\"'\r\0\t\x80\xff"))


@st.composite
def dirty_lines(draw):
    """A good line with a few bytes put in, taken away or replaced."""
    line = bytearray(draw(good_lines))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(line)))
        line[place : place + draw(st.integers(0, 2))] = bytes(draw(st.lists(dirt, max_size=2)))
    return bytes(line)


any_lines = good_lines | dirty_lines() | st.binary(max_size=100).map(lambda line: line.replace(b"\n", b""))


@settings(max_examples=60)
@given(st.lists(any_lines, min_size=1, max_size=8))
def test_every_line_is_a_row_or_a_reject_as_the_oracle_says(lines):
    check_against_oracle(lines)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("0", ""),
        ("-0", ""),
        ("007", ""),
        ("12345678", ""),
        ("123456789", ""),
        ("-1234567890123456", ""),
        ("9223372036854775807", ""),
        ("-9223372036854775808", ""),
        ("9223372036854775808", "integer"),
        ("-9223372036854775809", "integer"),
        ("18446744073709551617", "integer"),
        ("-", "integer"),
        ("--1", "integer"),
        ("1-", "integer"),
        ("+1", "integer"),
        (" 1", "integer"),
        ("1.5", "integer"),
        ("0x1f", "integer"),
        ("1\r", "integer"),
        ("ÿ", "integer"),
        ("1ÿ", "integer"),
    ],
)
def test_integers(make_line, cell, reason):
    line = make_line(integer=cell).encode()
    check_against_oracle([line, make_line().encode(), line])
    assert parse([line]).rejects_by_reason == ({reason: 1} if reason else {})


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("00000000", ""),
        ("ffffffff", ""),
        ("9a9f0a0f", ""),
        ("FFFFFFFF", "categorical"),
        ("0123456", "categorical"),
        ("012345678", "categorical"),
        ("`1234567", "categorical"),
        ("g1234567", "categorical"),
        ("/1234567", "categorical"),
        (":1234567", "categorical"),
        ("1234567 ", "categorical"),
        ('"123456"', "categorical"),
        ("ÿ234567", "categorical"),
    ],
)
def test_hex_values(make_line, cell, reason):
    line = make_line(value=cell).encode()
    check_against_oracle([line, make_line().encode(), line])
    assert parse([line]).rejects_by_reason == ({reason: 1} if reason else {})


@pytest.mark.parametrize("label", ["", "2", "-", "01", "1 ", "-1", "0.0"])
def test_a_label_is_0_or_1(make_line, label):
    assert parse([make_line(label=label).encode()]).rejects_by_reason == {"label": 1}


def test_the_first_reason_counts(make_line):
    assert parse([make_line("2", "x", "x").encode()]).rejects_by_reason == {"label": 1}
    assert parse([make_line("1", "x", "x").encode()]).rejects_by_reason == {"integer": 1}


def test_a_line_end_of_two_characters_is_stripped_once(make_line):
    check_against_oracle([make_line(value="").encode() + end for end in (b"", b"\r", b"\r\r")])


def test_only_the_start_of_an_overlong_line_is_kept(make_line):
    check_against_oracle([make_line().encode(), b"x" * (MAX_LINE_BYTES + 1), b"y" * MAX_LINE_BYTES, b""])


def test_row_numbers_count_from_the_chunks_first_line(make_line):
    lines = [make_line().encode(), b"bad", make_line().encode()]
    parsed = parse_chunk(Chunk(100, 3, b"\n".join(lines) + b"\n"), LogFormat())
    assert parsed.rows.row_numbers.tolist() == [100, 102]
    assert parsed.rejects_tsv == b"102\tcolumns\tbad\n"


def test_take_keeps_columns_together(make_log):
    lines = make_log(50).encode().splitlines()
    chosen = np.arange(50) % 3 == 0
    taken, alone = parse(lines).rows.take(chosen), parse(lines[::3]).rows
    assert np.array_equal(taken.labels, alone.labels)
    assert np.array_equal(taken.integers, alone.integers)
    assert np.array_equal(taken.values, alone.values)
    assert np.array_equal(taken.values_present, alone.values_present)
