import dataclasses
import random
from datetime import time
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.checks.propose import describe
from data_prep.kernels.parse import parse_chunk
from data_prep.kernels.parsed import ONLY_FILE
from data_prep.options.kinds import time_text
from data_prep.options.log_format import LogFormat, VectorForm
from data_prep.pipeline.prepare import prepare
from data_prep.raw_log.arrow_to_text import TableChunk, cells_as_text, is_readable
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.parquet import open_reader
from tests.prepared_folders import contents

FORMAT = LogFormat(
    columns={"click": "label", "x": "ignored", "count": "integer", "hash": "hex32", "site": "string"}, separator=","
)


def lines_of(tmp_path, table, log_format=FORMAT):
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=3)
    (file,) = find_log(tmp_path / "log.parquet")
    with open_reader(file, log_format) as reader:
        chunks = [task.load() for task, _ in reader.chunks(60)]
    next_line = 0
    for chunk in chunks:
        assert (chunk.first_line, chunk.num_lines) == (next_line, chunk.lines.count(b"\n"))
        next_line += chunk.num_lines
    return b"".join(chunk.lines for chunk in chunks).decode().splitlines()


def table_of(**columns):
    usual = {"site": ["a"], "count": [1], "hash": ["0123abcd"], "click": [1]}
    num_rows = len(next(iter(columns.values())))
    return pa.table({**{name: values * num_rows for name, values in usual.items()}, **columns})


@pytest.mark.parametrize(
    ("name", "cells", "expected"),
    [
        ("click", pa.array([True, False, None]), ["1", "0", ""]),
        ("click", pa.array([1.0, 0.0, 0.5]), ["1", "0", "0.5"]),
        ("count", pa.array([7, None, -1], pa.int16()), ["7", "", "-1"]),
        ("count", pa.array([7.0, None, float("nan"), 1.5, -3.0, 1e300]), ["7", "", "", "1.5", "-3", "1e+300"]),
        ("count", pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
        ("count", pa.array(["12", "", "x"]), ["12", "", "x"]),
        ("count", pa.array([Decimal("12"), None, Decimal("-3")]), ["12", "", "-3"]),
        ("hash", pa.array(["0123abcd", None, "FFFFFFFF"]).dictionary_encode(), ["0123abcd", "", "FFFFFFFF"]),
        ("hash", pa.array([1, None, -1, 2**31, 2**32, -(2**31) - 1]),
         ["00000001", "", "ffffffff", "80000000", "4294967296", "-2147483649"]),
        ("hash", pa.array([255, None], pa.uint32()), ["000000ff", ""]),
        ("hash", pa.array([12345678, None, 2**32, 2**64 - 1], pa.uint64()),
         ["00bc614e", "", "4294967296", "18446744073709551615"]),
        ("hash", pa.array([12345678.0, None, float("nan"), -1.0, -0.0, 1.5, 1e300, 2.0**32, 1.25e-05, float("inf")]),
         ["00bc614e", "", "", "ffffffff", "00000000", "1.5", "1e+300", "4294967296", "0.0000125", "inf"]),
        ("hash", pa.array([1e10], pa.float32()), ["10000000000"]),
        ("site", pa.array(["é", "", None, "a,b", "a\nb"]), ["é", "", "", "a,b", "a,b"]),
        ("site", pa.array([1005.0, None, 1.5]), ["1005", "", "1.5"]),
        ("site", pa.array([b"\xc3\xa9"], pa.binary()), ["é"]),
        ("site", pa.nulls(2), ["", ""]),
    ],
)  # fmt: skip
def test_cells_of_every_type(tmp_path, name, cells, expected):
    kinds = [column for column in FORMAT.columns if column != "x"]
    usual = {"click": "1", "count": "1", "hash": "0123abcd", "site": "a"}
    found = lines_of(tmp_path, table_of(**{name: cells}))
    wanted = [{**usual, name: cell} for cell in expected]
    assert found == [f"{row['click']},,{row['count']},{row['hash']},{row['site']}" for row in wanted]
    assert set(usual) == set(kinds)


def test_quotes_of_a_format_are_not_looked_for_in_cells(tmp_path):
    quoted = dataclasses.replace(FORMAT, quotes=True)
    assert lines_of(tmp_path, table_of(site=['"', "a,b"]), quoted) == [
        "1\x1f\x1f1\x1f0123abcd\x1f" + site for site in ('"', "a,b")
    ]


def test_lists_of_values_become_cells(tmp_path):
    rows = [["a", "b"], None, [], ["c", None, "d"], ["a|b"], ["x\ny"], ["é,"]]
    listed = LogFormat(columns={"click": "label", "tags": "list"}, quotes=True)
    for of_type in (pa.list_(pa.string()), pa.large_list(pa.large_string())):
        table = pa.table({"click": [1] * 7, "tags": pa.array(rows, of_type)})
        found = lines_of(tmp_path, table.slice(1), listed)
        # A value with the list's separator, or a line end, in it gives its line a column too many: it is rejected.
        assert found == [f"1\x1f{cell}" for cell in ("", "", "c||d", "\x1f", "x\x1fy", "é,")]
    numbers = pa.table({"click": [0, 1], "tags": pa.array([[7, 8], [9, None]], pa.list_(pa.int64(), 2))})
    assert lines_of(tmp_path, numbers, listed) == ["0\x1f7|8", "1\x1f9|"]


PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.mark.parametrize("form", ["seconds", "milliseconds", "%Y-%m-%d %H:%M:%S.%f", "%y%m%d%H", "%d/%m/%Y"])
def test_times_of_every_unit_are_cut_to_the_form_before_1970_too(tmp_path, form):
    """A log's text of a time is cut so: 0.5 ms before 1970 is in 1969."""
    random_ = random.Random(form)
    listed = LogFormat(columns={"seen": "timestamp", "click": "label"}, separator=";", timestamps={"seen": form})
    seconds = [-1, 0, -3600, *(random_.randint(-31_536_000, 3_124_223_999) for _ in range(50))]
    for unit, per_second in PER_SECOND.items():
        numbers = [second * per_second + random_.choice([0, -1, 1, per_second // 2]) for second in seconds]
        expected = [time_text(number * 1000 // per_second, form) + ";1" for number in numbers]
        for zone in (None, "Europe/Zurich"):
            cells = pa.array([*numbers, None], pa.timestamp(unit, zone))
            assert lines_of(tmp_path, pa.table({"seen": cells, "click": [1] * 54}), listed) == [*expected, ";1"]
    days = [random_.randint(-365, 36_000) for _ in seconds]
    for of_type, per_day in ((pa.date32(), 1), (pa.date64(), 86_400_000)):
        table = pa.table({"seen": pa.array([day * per_day for day in days], of_type), "click": [1] * 53})
        assert lines_of(tmp_path, table, listed) == [time_text(day * 86_400_000, form) + ";1" for day in days]


def test_times_that_the_form_cannot_write_are_rejected():
    far = pa.table({"seen": pa.array([-(2**62), -62_135_596_801, 253_402_300_800, 2**62], pa.timestamp("s"))})
    for form, year in (("milliseconds", 0), ("%Y-%m-%d", 0), ("%y%m%d", -631_152_000)):  # 1950 would be read as 2050
        columns = {"seen": "timestamp", "click": "label", "site": "string"}
        listed = LogFormat(columns, ",", timestamps={"seen": form}, label="optional")
        table = pa.concat_tables([far, pa.table({"seen": pa.array([year or 2**61], pa.timestamp("s"))})])
        table = table.append_column("click", pa.array([1] * 5)).append_column("site", pa.array(["a"] * 5))
        chunk = TableChunk(0, 5, table.combine_chunks().to_batches()[0], listed, ONLY_FILE).load()
        assert parse_chunk(chunk, listed).rejects_by_reason == {"timestamp": 5}


def open_it(path, log_format=FORMAT):
    with open_reader(find_log(path)[0], log_format) as reader:
        return list(reader.chunks(100))


def test_other_columns_are_an_error(tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(table_of(site=["a"]).rename_columns(["Site", "count", "hash", "click"]), path)
    with pytest.raises(ValueError, match=r"lacks columns .*not found, or not once: site; found Site, count"):
        open_it(path)
    pq.write_table(table_of(site=[["a"]]), path)
    with pytest.raises(ValueError, match=r"'site' is of type list<.*>; expected for kind string: times .*, strings"):
        open_it(path)
    pq.write_table(pa.table({"click": [1], "seen": [time(9)]}), path)
    message = r"'seen' is of type time64\[us\]; expected for kind timestamp: timestamps, dates"
    with pytest.raises(ValueError, match=message):
        open_it(path, LogFormat({"click": "label", "seen": "timestamp"}))


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "page"])
def test_a_damaged_file_is_an_error(tmp_path, damage):
    path = tmp_path / "log.parquet"
    pq.write_table(table_of(site=[f"{row:x}" for row in range(1000)]), path, use_dictionary=False)
    whole = path.read_bytes()
    damaged = {
        "cut": whole[:-100],
        "text": b"1,2,3\n" * 9,
        "empty": b"",
        "page": whole[:100] + bytes(2900) + whole[3000:],
    }
    path.write_bytes(damaged[damage])
    reason = "cannot be read" if damage == "page" else "is damaged or not a Parquet file"
    with pytest.raises(ValueError, match=rf"log.parquet {reason} \("):
        open_it(path)


def test_null_lists_of_a_fixed_size_are_explained(tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"click": [1, 0], "v": pa.array([[1, 2], None], pa.list_(pa.float32(), 2))}), path)
    log_format = LogFormat({"click": "label", "v": "vector"}, vectors={"v": VectorForm(2)})
    expected = r"log.parquet cannot be read \(Expected all lists.*any size, such as pl.read_parquet.*arr.to_list"
    for read in (lambda: open_it(path, log_format), lambda: describe(str(path))):
        with pytest.raises(ValueError, match=expected):
            read()


@pytest.mark.parametrize(
    ("of_type", "numbers", "texts"),
    [
        (pa.duration, [0, 17464, -3, None, 10**9], [b"0", b"17464", b"-3", b"", b"1000000000"]),
        (lambda unit: (pa.time32 if unit in ("s", "ms") else pa.time64)(unit), [0, 5607, 86399, None],
         [b"00:00:00", b"01:33:27", b"23:59:59", b""]),
    ],
    ids=["durations", "times"],
)  # fmt: skip
def test_times_have_one_text_whatever_their_unit(of_type, numbers, texts):
    for unit, units in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        kind = of_type(unit)
        whole = pa.array([each and each * units for each in numbers], pa.int64())
        cells = whole.cast(pa.int32()).cast(kind) if kind.bit_width == 32 else whole.cast(kind)
        assert cells_as_text(cells, "string", b"\t").to_pylist() == texts
        assert is_readable(kind, "float") == is_readable(kind, "integer") == (of_type is pa.duration)
    parts = pa.array([1_500_000, -1, 10], pa.int64())
    assert cells_as_text(parts.cast(pa.duration("us")), "string", b"\t").to_pylist() == [
        b"1.5",
        b"-0.000001",
        b"0.00001",
    ]


def test_mixed_files_give_the_rows_of_text(tmp_path, make_log, small_options):
    """Missing cells and numbers are those of the text, and a bad row is named by its file and its number there."""
    options = dataclasses.replace(small_options, data=dataclasses.replace(small_options.data, header=True))
    kinds, lines = options.data.columns, make_log(1500).splitlines(keepends=True)
    header = "\t".join(kinds) + "\n"
    (tmp_path / "whole.txt").write_text(header + "".join(lines) + "bad\n")
    paths = [tmp_path / name for name in ("part-1.txt", "part-2.parquet", "part-10.parquet")]
    paths[0].write_text(header + "".join(lines[:500]))
    read_as = [int if kind in ("integer", "label") else str for kind in kinds.values()]
    rows = [
        [read(cell) if cell else None for read, cell in zip(read_as, line[:-1].split("\t"), strict=True)]
        for line in lines[500:]
    ]
    rows.append([*rows[-1][:-1], "0123\n567"])
    table = pa.table(dict(zip(kinds, map(list, zip(*rows, strict=True)), strict=True)))
    pq.write_table(table.slice(0, 600), paths[1])
    pq.write_table(table.slice(600), paths[2])
    prepare(tmp_path / "whole.txt", tmp_path / "expected", options)
    schema = prepare(paths, tmp_path / "out", dataclasses.replace(options, workers=2), chunk_bytes=20_000)
    found, expected = contents(tmp_path / "out"), contents(tmp_path / "expected")
    assert found.pop("rejects.tsv").startswith(b"part-10.parquet:401\tcolumns\t")
    assert expected.pop("rejects.tsv") == b"1502\tcolumns\tbad\n"
    assert found.pop("schema.json") != expected.pop("schema.json")  # They name the files.
    assert found == expected
    assert [file["lines"] for file in schema.source["files"]] == [500, 600, 401]
