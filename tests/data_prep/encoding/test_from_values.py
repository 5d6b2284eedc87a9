"""Raw rows without labels are parsed as the same rows with labels are."""

import dataclasses
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from data_prep.encoding.encoder import whole_numbers
from data_prep.encoding.from_values import add_label, bad_cell, chunk_to_mapping, mappings_to_chunk
from data_prep.encoding.rows_to_score import arrow_table, table_to_chunk
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parsed import Chunk
from data_prep.kernels.strings import Strings
from data_prep.options.log_format import LogFormat
from data_prep.raw_log.arrow_to_text import times_as_text
from tests.data_prep.kernels.test_parse import cells_of


def test_a_badly_quoted_line_of_one_column_is_no_missing_value():
    form = LogFormat(separator=",", quotes=True, columns={"label": "label", "only": "string"})
    for kernels in ("native", "numpy"):
        parsed = choose_kernels(kernels).parse_chunk(add_label(Chunk(0, 2, b'x\n"x\n'), form), form)
        assert dict(parsed.rejects_by_reason) == {"quotes": 1}


def test_lines_of_bare_cells_get_bare_labels():
    form = LogFormat(separator=",", quotes=True, columns={"only": "string", "label": "label"})
    labelled = add_label(Chunk(0, 1, b'a,"b"\n', is_bare=True), form)
    assert labelled == dataclasses.replace(labelled, lines=b'a,"b"\x1f0\n', is_bare=True)


def test_whole_floats_of_a_hex_column_are_numbers_of_32_bits():
    form = LogFormat({"label": "label", "C": "hex32"}, separator=",")
    found = mappings_to_chunk([{"C": value} for value in (12345678.0, 12345678, -1.0, None)], form)
    assert found.lines == b"0,00bc614e\n0,00bc614e\n0,ffffffff\n0,\n"


def test_values_as_pandas_gives_them_are_cells():
    form = LogFormat({"label": "label", "seen": "timestamp", "tags": "list"}, separator=",")
    rows = [{"seen": 1.7e9, "tags": np.array(["a", "b"], object)}, {"seen": float("nan"), "tags": np.array([], object)}]
    assert mappings_to_chunk(rows, form).lines == b"0,1700000000,a|b\n0,,\n"


@pytest.mark.parametrize(
    ("zone", "expected"),
    [("+02:00", "16:00"), ("-0330", "10:30"), (" +0200", "16:00"), (" UTC", "14:00"), ("", "14:00")],
)
def test_times_of_a_zone_are_written_by_the_clock_of_the_form_s(zone, expected):
    """Pandas and others write them to text so: another hour would be another category."""
    log_format = LogFormat(
        {"label": "label", "seen": "timestamp"}, ",", timestamps={"seen": f"%Y-%m-%d %H:%M:%S{zone}"}, label="optional"
    )
    cell = f"2024-07-01 {expected}:00{zone}"
    moment = pd.Timestamp("2024-07-01 14:00", tz="UTC")
    for value in (moment, moment.tz_convert("Asia/Tokyo"), moment.tz_convert("Europe/Paris").to_pydatetime()):
        assert mappings_to_chunk([{"seen": value}], log_format).lines == f"0,{cell}\n".encode()
        (found,) = times_as_text(pa.array([value]), log_format.time_form("seen"))
        assert found.as_py() == cell
    plain = pa.array([pd.Timestamp("2024-07-01 14:00")])  # no zone: by the clock of the log
    assert times_as_text(plain, log_format.time_form("seen"))[0].as_py() == f"2024-07-01 14:00:00{zone}"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([[], [""]], None),
        ([["7.0", "", "0.5", "x"]], True),
        ([["7.0"], ["8"]], None),
        ([["x"], ["-12.0", "1.2.0", "v1"]], True),
        ([["1.2.0", ".0", "x.0"]], False),
        ([["7"]], False),
    ],
)
def test_a_vocabulary_says_whether_whole_numbers_have_a_point(texts, expected):
    assert whole_numbers([Strings.of([text.encode() for text in each]) for each in texts]) is expected


@pytest.mark.parametrize("form", ["milliseconds", "%Y-%m-%d %H"])
def test_a_time_of_another_form_is_named_beside_the_form_that_is_expected(form):
    log_format = LogFormat({"label": "label", "seen": "timestamp", "C": "string"}, timestamps={"seen": form})
    chunk = mappings_to_chunk([{"seen": "2017-10-14T03:41", "C": "a"}], log_format)
    found = bad_cell(chunk, 0, log_format, "timestamp")
    assert found == f"column 'seen' of kind timestamp in the form {form}, found '2017-10-14T03:41'"


@pytest.mark.parametrize("kernels", ["numpy", "native"])
@pytest.mark.parametrize(
    ("form", "other", "good", "bad"),
    [
        ("milliseconds", "seconds", (-2, 1, 599_999_999, 4_100_000_000, 1_700_000_000_000), 1_700_000_000),
        ("seconds", "milliseconds", (1, -(10**9), 7 * 10**8, 1_700_000_000), 1_700_000_000_000),
    ],
)
def test_a_time_in_the_other_unit_is_refused_with_its_day(kernels, form, other, good, bad):
    """Seconds among milliseconds would all be January and February of 1970; times before and after these are kept."""
    log_format = LogFormat({"label": "label", "seen": "timestamp", "C": "string"}, timestamps={"seen": form})
    chunk = mappings_to_chunk([{"seen": seen, "C": "a"} for seen in (*good, bad)], log_format)
    parsed = choose_kernels(kernels).parse_chunk(chunk, log_format)
    assert parsed.rejects_by_reason == {"timestamp": 1}
    assert parsed.rows.columns["seen"].values.tolist() == [time * (1000 if form == "seconds" else 1) for time in good]
    assert bad_cell(mappings_to_chunk([{"seen": bad, "C": "a"}], log_format), 0, log_format, "timestamp") == (
        f"column 'seen' of kind timestamp in the form {form}, found '{bad}', in {other} a time of 2023-11-14: "
        f"give {form}, or prepare with timestamps: {{seen: {other}}}"
    )


def test_a_number_that_no_float_holds_is_a_bad_cell():
    form = LogFormat({"label": "label", "price": "float", "C": "string"}, separator=",")
    for number in (10**400, 1e39, float("inf")):
        chunk = mappings_to_chunk([{"price": number, "C": "a"}], form)
        assert choose_kernels("numpy").parse_chunk(chunk, form).rejects_by_reason == {"float": 1}
    with pytest.raises(TypeError, match="row 0, column 'price' of kind float: Exceeds the limit"):
        mappings_to_chunk([{"price": 10**5000, "C": "a"}], form)


def test_numbers_of_mappings_are_the_categories_that_a_column_of_them_has():
    form = LogFormat({"label": "label", "C": "string", "tags": "list"}, separator=",")
    numbers = [1e-5, 1.5e-7, 30319482929164.5, 0.1, -2.5, 3.0, 2.0**53 - 1, float("inf"), float("nan")]
    numbers += [float(np.nextafter(bound, side)) for bound in (1e-4, 1e10) for side in (0, np.inf)]
    numbers += (10 ** np.random.default_rng(1).uniform(-12, 15.9, 500)).tolist()
    small = [number for number in numbers if abs(number) < 2**24]
    columns = [
        pa.array(numbers),
        pa.array(np.float32([*small, 5895020.5])),
        pa.array(np.float16([each for each in numbers if abs(each) < 2**11])),
    ]
    columns += [pa.array([Decimal(number)]) for number in ("0.0000001", "-0.00", "1.50", "0.00001")]
    for column in columns:
        values = column.to_numpy() if pa.types.is_floating(column.type) else column.to_pylist()
        table = pa.table({"C": column, "tags": [[value] for value in values]})
        rows = [{"C": value, "tags": [value]} for value in values]
        assert mappings_to_chunk(rows, form).lines == table_to_chunk(table, form).lines


@pytest.mark.parametrize("number", [2.0**53, 9007199254927213.0, np.float32(2**24), np.float16(2**11), -1e300])
def test_inexact_ids_are_refused_with_the_reason(number):
    form = LogFormat({"label": "label", "C": "string", "tags": "list", "n": "float"}, separator=",")
    for row in ({"C": number, "tags": ["a"], "n": 0}, {"C": "a", "tags": [number], "n": 0}):
        table = pa.table({name: pa.array(np.array([cell]) if name != "tags" else [cell]) for name, cell in row.items()})
        for refused in (
            lambda row=row: mappings_to_chunk([row], form),
            lambda table=table: table_to_chunk(table, form),
        ):
            with pytest.raises((TypeError, ValueError), match=r"column '(C|tags)'.* several ids become one"):
                refused()
    assert mappings_to_chunk([{"C": 2**53 + 1, "tags": [], "n": number}], form).lines.startswith(b"0,9007199254740993,")


@pytest.mark.parametrize("quotes", [False, True])
def test_blanks_in_the_cells_of_mappings_are_trimmed_as_in_lines(quotes):
    kinds = {"label": "label", "job": "string", "tags": "list", "age": "integer", "price": "float"}
    form = LogFormat(
        kinds, ";", quotes=quotes, trim=True, decimal=",", missing=("?",), not_clicked="no", clicked="rest"
    )
    rows = [{"job": " Sales ", "tags": "a | b", "age": 39, "price": 0.5}, dict.fromkeys(kinds, " ? ")]
    rows[1].pop("label")
    rows[1]["age"] = None
    for kernels in ("native", "numpy"):
        parsed = choose_kernels(kernels).parse_chunk(mappings_to_chunk(rows, form), form)
        assert parsed.rejects_by_reason.total() == 0
        cells = cells_of(parsed.rows, form)
        assert cells == {"job": ["Sales", None], "tags": ["a | b", None], "age": [39, None], "price": [0.5, None]}


@pytest.mark.parametrize("quotes", [False, True])
def test_a_line_becomes_the_mapping_of_its_fields(quotes):
    kinds = {"label": "label", "count": "integer", "price": "float", "none": "float", "site": "string"}
    form = LogFormat(columns=kinds, separator=";", decimal=",", quotes=quotes, missing=("NA",))
    row = chunk_to_mapping(Chunk(0, 1, b"1;-3;0,25;NA;a.b\n"), form)
    assert row == {"count": -3, "price": 0.25, "none": None, "site": "a.b"}
    assert chunk_to_mapping(mappings_to_chunk([row], form), form) == row


def test_times_of_mappings_are_the_categories_that_a_column_of_them_has():
    form = LogFormat({"label": "label", "C": "string", "tags": "list"}, separator=",")
    moment = pd.Timestamp("2024-07-01 14:00:00.123456")
    exact = moment + pd.Timedelta(7, "ns")
    values = [moment.date(), moment.to_pydatetime(), moment.floor("s"), exact, exact.tz_localize("Europe/Paris")]
    values += [moment.tz_localize("UTC").to_pydatetime(), pd.Timestamp("1600-01-01").as_unit("s"), exact.to_numpy()]
    values += [moment.time(), pd.Timedelta(1_500_000_001, "ns"), pd.Timedelta("2D").to_pytimedelta()]
    values += [np.datetime64("2024-07-01T14:00:00.120"), np.timedelta64(1500, "ms"), pd.NaT]
    for value in values:
        tags = [moment.date(), None]
        table = arrow_table(pd.DataFrame({"C": [value], "tags": [tags]}))
        expected = table_to_chunk(table, form).lines
        assert mappings_to_chunk([{"C": value, "tags": tags}], form).lines == expected, value
    days = mappings_to_chunk([{"C": np.datetime64("2024-07-01"), "tags": np.array(["2024-07-01"], "M8[ns]")}], form)
    assert days.lines == b"0,2024-07-01,2024-07-01 00:00:00\n"
    for kind, value in (("integer", np.timedelta64(3, "s")), ("float", moment), ("string", np.datetime64("2024", "h"))):
        with pytest.raises(TypeError, match="row 0, column 'C' of kind"):
            mappings_to_chunk([{"C": value}], LogFormat({"label": "label", "C": kind}, separator=","))
