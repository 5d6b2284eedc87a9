"""Native kernels, NumPy's and the plain reader take every line for the same row, or reject it for the same reason."""

import dataclasses
import gzip
import math
import pickle
import random
import re
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.checks.pre_check import pre_check
from data_prep.kernels import native, numpy_kernels
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parsed import MAX_LINE_BYTES, ONLY_FILE, Chunk, FileOfLog, bucket_of
from data_prep.kernels.strings import Strings
from data_prep.options.log_format import LogFormat
from data_prep.pipeline.prepare import prepare
from tests.data_prep.kernels.generated_logs import generate_log
from tests.data_prep.kernels.slow_reader import parse_line

KERNELS = ("native", "numpy") if native.is_available() else ("numpy",)
FIRST = 5  # the first line's number in the log
# Bytes next to the accepted ones in ASCII, and some that other readers take for something.
DIRT = [b"%c" % byte for byte in b"09af/:`gAF-+ .,;|\t\"'\r\0\x1f\x80\xff"] + [b"\r\r", b"\xef\xbb\xbf", b""]


def cells_of(rows, log_format):
    """The cells of each field of parsed rows as the plain reader has them, None where they are missing."""
    cells = {}
    for name, kind in log_format.fields:
        values, present = rows.columns[name]
        assert present.flags.c_contiguous and (isinstance(values, Strings) or values.flags.c_contiguous)
        values = values.tolist()
        if kind != "list":  # A list without values keeps its text, such as "|", which nobody reads.
            absent = [value for value, there in zip(values, present, strict=True) if not there]
            assert not any(any(value) if kind == "vector" else value for value in absent)
        if kind in ("string", "list"):
            values = [value.decode() for value in values]
        elif kind == "hex32":
            values = [f"{value:08x}" for value in values]
        cells[name] = [value if there else None for value, there in zip(values, present, strict=True)]
    return cells


def check(lines, log_format, file=ONLY_FILE):
    """Compare the readers; the reasons of the lines."""
    kinds = {name: log_format.columns.get(name, "ignored") for name in file.columns or log_format.columns}
    expected = [parse_line(line, log_format, kinds) for line in lines]
    reasons = [reason for reason, *_ in expected]
    good = [(label, cells) for reason, label, cells in expected if not reason]
    rejects = [(number, reason) for number, reason in enumerate(reasons) if reason]
    for kernels in KERNELS:
        chunk = Chunk(FIRST, len(lines), b"".join(line + b"\n" for line in lines), file)
        parsed = choose_kernels(kernels).parse_chunk(chunk, log_format)
        assert parsed.rejects_tsv == b"".join(
            b"%d\t%s\t%s\n" % (FIRST + number + 1, reason.encode(), lines[number][:MAX_LINE_BYTES])
            for number, reason in rejects
        )
        assert sorted(parsed.rejects_by_reason.elements()) == sorted(reason for _, reason in rejects)
        rows = parsed.rows
        assert rows.row_numbers.tolist() == [FIRST + i for i, reason in enumerate(reasons) if not reason]
        assert rows.labels.tolist() == [label == 1 for label, _ in good]
        found = cells_of(rows, log_format)
        for name in found:
            assert found[name] == [cells[name] for _, cells in good], (kernels, name)
        weights = [1.0] * len(good)
        if log_format.weight:
            weights = np.float32([cells[log_format.weight] for _, cells in good]).tolist()
        weights = [0.0 if label is None else weight for weight, (label, _) in zip(weights, good, strict=True)]
        assert (rows.weights is None) == (not log_format.weight and log_format.label == "required")
        assert rows.weights is None or rows.weights.tolist() == weights
        for name, keys in rows.keys.items():
            assert np.array_equal(keys, Strings.of([cells[name] for _, cells in good]).keys().view(np.int64))
    return reasons


def dirty(lines, random_):
    """The lines, now and then with a few bytes put in, taken away or replaced, and another end."""
    for line in lines:
        for _ in range(random_.choice([0, 0, 0, 1, 3])):
            place = random_.randint(0, len(line))
            line = line[:place] + random_.choice(DIRT) + line[place + random_.randint(0, 2) :]
        yield line.replace(b"\n", b"") + random_.choice([b"", b"", b"\r"])


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_all_readers_agree_on_lines_of_any_format(seed):
    log = generate_log(seed, 30)
    file = FileOfLog(columns=log.columns) if log.log_format.others == "ignored" else ONLY_FILE
    assert check(log.lines, log.log_format, file) == log.reasons
    check([*dirty(log.lines, random.Random(seed))], log.log_format, file)


SMALL = LogFormat({"label": "label", "I1": "integer", "C1": "hex32"})
FLAGS = LogFormat({"label": "label", "flag": "boolean"}, missing=("NULL",))
TIMES = LogFormat({"label": "label", "seen": "timestamp"}, timestamps={"seen": "seconds"})
QUOTED = LogFormat(
    {"count": "integer", "site": "string", "click": "label", "hash": "hex32", "city": "string"}, ",", quotes=True
)
WITH_BLANKS = LogFormat({"label": "label", "I1": "integer", "C1": "string"}, " ")
LAST_OF_INT64 = ["9223372036854775807", "-9223372036854775808"]
LONG = b"x" * MAX_LINE_BYTES
EXAMPLES = [
    *((SMALL, f"1\t{cell}\t", "") for cell in ["0", "-0", "007", "12345678", "123456789", "0" * 19, *LAST_OF_INT64]),
    *(
        (SMALL, f"1\t{cell}\t", "integer")
        for cell in ["9223372036854775808", "-9223372036854775809", "0" * 20, "9" * 40]
    ),
    *((SMALL, f"1\t{cell}\t", "integer") for cell in ["-", "--1", "1-", "+1", " 1", "1.5", "0x1f", "1\r", "ÿ", "1ÿ"]),
    *((SMALL, f"1\t\t{cell}", "") for cell in ["", "00000000", "ffffffff", "9a9f0a0f", "0123abcd\r"]),
    *((SMALL, f"1\t\t{cell}", "categorical") for cell in ["FFFFFFFF", "0123456", "012345678", "`1234567", "g1234567"]),
    *((SMALL, f"1\t\t{cell}", "categorical") for cell in ["/1234567", ":1234567", "1234567 ", '"123456"', "ÿ234567"]),
    *((SMALL, f"{cell}\t\t", "label") for cell in ["", "2", "-", "01", "1 ", "-1", "0.0", "1\0", "\ufeff1"]),
    *((SMALL, line, "columns") for line in ["", "1", "1\t", "1\t\t\t", "\r"]),
    *(
        (FLAGS, f"1\t{word}", "")
        for word in ["", "TRUE", "False", "yes", "nO", "On", "off", "t", "F", "Y", "n", "1", "0"]
    ),
    *((FLAGS, f"1\t{word}", "") for word in ["NULL", "1.0", "0.0"]),
    *((FLAGS, f"1\t{word}", "categorical") for word in ["2", "-1", "01", "10", "truee", "fals", "yes ", "ja"]),
    *((FLAGS, f"1\t{word}", "categorical") for word in ["null", "\0", "ï", "TRUE\0", "T\x1f"]),
    *((TIMES, f"1\t{time}", "") for time in ["253402300799", "-62135596800"]),  # of the years 1 to 9999
    *((TIMES, f"1\t{time}", "timestamp") for time in ["253402300800", "-62135596801"]),
    (SMALL, "2\tx\tx", "label"),  # the first reason counts
    (SMALL, "1\tx\tx", "integer"),
    (SMALL, "1\t\t\r\r", "categorical"),  # a line end of two characters is taken off once
    (SMALL, LONG, "columns"),
    (SMALL, LONG + b"x", "too long"),
    (QUOTED, '2,"a,b",1,0123abcd,"say ""hi"""', ""),
    (QUOTED, '"2","x","1","0123abcd","y"\r', ""),
    (QUOTED, 'x,a"b,1,0123abcd,c', "integer"),
    (QUOTED, '2,a"b,1,0123abcd,c', ""),
    (QUOTED, '2,"",1,0123abcd,"', "quotes"),
    (QUOTED, '2,"a"b,1,0123abcd,c', "quotes"),
    (QUOTED, "2,a\x1fb,1,0123abcd,c", "quotes"),
    (QUOTED, '2,"a,b",1,0123abcd', "columns"),
    (QUOTED, b'2,"' + LONG + b'",1,0123abcd,c', "too long"),
    (QUOTED, b'2,"' + b'""' * (MAX_LINE_BYTES // 2) + b'",1,0123abcd,c', "too long"),  # not without its quotes
    (QUOTED, b'2,"a\xff",1,0123abcd,c', "categorical"),
    (WITH_BLANKS, "1 2 \0", ""),
    (LogFormat({"label": "label", "I1": "integer", "C1": "string"}, "0", not_clicked=("no",)), "no0405", ""),
    (LogFormat({"label": "label", "I1": "integer", "C1": "string"}, "a"), "1a23ax", ""),
    (LogFormat({"label": "label", "C1": "string"}, clicked=">= 1e0"), "0x1\tx", "label"),
]


@pytest.mark.parametrize(
    "log_format", [SMALL, FLAGS, TIMES, QUOTED, WITH_BLANKS, *(each for each, *_ in EXAMPLES[-3:])]
)
def test_examples(log_format):
    of_format = [(line, reason) for each, line, reason in EXAMPLES if each is log_format]
    lines = [line if isinstance(line, bytes) else line.encode() for line, _ in of_format]
    assert dict(zip(lines, check(lines, log_format), strict=True)) == dict(
        zip(lines, (reason for _, reason in of_format), strict=True)
    )
    for line in lines:  # which is the same row whatever stands beside it
        check([line], log_format)


def test_every_byte_in_every_cell():
    good = b"1\t12\t0123abcd"
    lines = [good[:i] + bytes([byte]) + good[i + 1 :] for i in range(len(good)) for byte in range(256) if byte != 10]
    assert 0 < check(lines, SMALL).count("") < len(lines)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("counted", "found"), [(2, "(3|more)"), (4, "3")])
def test_other_lines_than_were_counted_are_an_error(make_line, kernels, counted, found):
    lines = (make_line() + "\n").encode() * 3
    with pytest.raises(ValueError, match=f"{counted} lines were counted from line 11 on, now there are {found};"):
        choose_kernels(kernels).parse_chunk(Chunk(10, counted, lines), LogFormat())


@pytest.mark.parametrize("kernels", KERNELS)
def test_rows_are_taken_and_pickled_whole(make_log, kernels):
    lines = make_log(50).encode().splitlines(keepends=True)
    parse_chunk = choose_kernels(kernels).parse_chunk
    taken = parse_chunk(Chunk(0, 50, b"".join(lines)), LogFormat()).rows.take(np.arange(50) % 3 == 0)
    alone = parse_chunk(Chunk(0, 17, b"".join(lines[::3])), LogFormat()).rows
    assert cells_of(pickle.loads(pickle.dumps(taken)), LogFormat()) == cells_of(alone, LogFormat())
    assert (taken.row_numbers.tolist(), taken.labels.tolist()) == ([*range(0, 50, 3)], alone.labels.tolist())


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    ("log_format", "good", "bad"),
    [
        *((SMALL, b"1\t\t", bad) for bad in (b"", b"1\t", b"x\t\t", b"1\tx\t", b"1\t\tx")),
        *((QUOTED, b',"",0,,', bad) for bad in (b'"', b'"x",,0,,', b'"",",,0,,', b",\x1f,0,,")),
    ],
)
def test_rejected_lines_take_the_memory_of_good_ones(kernels, log_format, good, bad):
    parse, num_lines = choose_kernels(kernels).parse_chunk, 20_000
    parse(Chunk(0, 2, good + b"\n" + bad + b"\n"), log_format)  # what is made once
    usual, peaks = pa.default_memory_pool(), []
    pa.set_memory_pool(pool := pa.proxy_memory_pool(usual))
    for line in (good, bad):
        chunk = Chunk(0, num_lines, num_lines * (line + b"\n"))
        tracemalloc.start()
        parsed = parse(chunk, log_format)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert parsed.rejects_by_reason.total() == num_lines * (line == bad)
    pa.set_memory_pool(usual)
    assert peaks[1] < peaks[0] + 2 * len(parsed.rejects_tsv)
    assert pool.max_memory() < 1 << 19  # however many lines are rejected


NUM_ROWS = 300


@pytest.fixture(scope="module")
def lines(make_log):
    return make_log(NUM_ROWS).encode().splitlines(keepends=True)


def write(folder, content, name="train.txt"):
    (folder / name).write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    return folder / name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(b"\n", b"\r"), r"(?s)bad \(columns 1\).*has .r within; .*change the line ends"),
        (lambda text: text.upper(), r"lines .* are bad \(categorical \d+\)"),
        (lambda text: text.replace(b"\t", b";"), r"(?s)columns 300.*separated by a semicolon, expected a tab"),
        (lambda text: text.decode().encode("utf-16"), r"is UTF-16, by its first bytes; convert it to UTF-8: iconv"),
        (lambda text: text.decode().encode("utf-16-le"), r"(?s)are bad.*\\x00.*convert it to UTF-8"),
    ],
)
def test_a_log_of_bad_lines_is_an_error(tmp_path, lines, small_options, change, message):
    with pytest.raises(ValueError, match=message) as error:
        prepare(write(tmp_path, change(b"".join(lines))), tmp_path / "out", small_options)
    assert all(char.isprintable() or char in "\t\n" for char in str(error.value))
    assert [path.name for path in tmp_path.iterdir()] == ["train.txt"]


def test_a_log_of_another_encoding_is_named_as_such(tmp_path, small_options):
    log_format = LogFormat(columns={"click": "label", "city": "string"}, separator=",", header=True)
    log = write(tmp_path, "\n".join(["click,city", *["0,Köln", "1,Bonn"] * 50]).encode("cp1252"))
    with pytest.raises(ValueError, match=r"categorical 50\)[^$]*\nThe first one is not UTF-8.*: iconv -f CP1252"):
        prepare(log, tmp_path / "out", dataclasses.replace(small_options, data=log_format))
    assert any("text is not UTF-8" in each.what for each in pre_check([str(log)], 100, log_format))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_cells_with_line_ends_are_named_as_the_cause_of_rejected_lines(tmp_path, small_options, form):
    log_format = LogFormat(
        columns={"label": "label", "text": "string", "shop": "string"}, separator=",", header=True, quotes=form == "csv"
    )
    frame = pd.DataFrame({"label": ["0", "1"] * 50, "text": ["two\nlines", "one", "a", "b"] * 25, "shop": "s"})
    log = tmp_path / f"log.{form}"
    frame.to_csv(log, index=False) if form == "csv" else frame.to_parquet(log)
    options = dataclasses.replace(small_options, data=log_format)
    advice = r"cells with a line end( or ',')? inside.* frame\.replace\(r'\\s\+', ' ', regex=True\)"
    with pytest.raises(ValueError, match=advice):
        prepare(log, tmp_path / "out", options)
    if form == "csv":
        assert any(re.search(advice, str(each)) for each in pre_check(log, log_format=log_format))
    frame = frame.replace(r"\s+", " ", regex=True)  # as is advised
    frame.to_csv(log, index=False) if form == "csv" else frame.to_parquet(log)
    assert sum(split.rows for split in prepare(log, tmp_path / "out", options).splits.values()) == len(frame)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, lines, small_options):
    log = write(tmp_path, b"".join(lines))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/out.partial.*give an output elsewhere"):
        prepare(log, tmp_path / "file" / "out", small_options)


@pytest.mark.parametrize("label", [b"0", b"1"])
def test_a_log_of_one_class_is_reported(tmp_path, lines, small_options, caplog, label):
    prepare(write(tmp_path, b"".join(label + line[1:] for line in lines)), tmp_path / "out", small_options)
    assert "training rows are clicks: a model learns nothing from them" in caplog.text


def test_a_log_of_one_line_loses_nothing(tmp_path, lines, small_options, caplog):
    schema = prepare(write(tmp_path, lines[0]), tmp_path / "out", small_options)
    assert {name: split.rows for name, split in schema.splits.items()} == {"train": 1, "valid": 0, "test": 0}


@given(st.integers(3, 2**63 - 1) | st.integers(3, 10_000))
def test_large_integers_go_by_the_square_of_their_logarithm(integer):
    assert bucket_of(np.array([integer])).tolist() == [math.floor(math.log(integer) ** 2)]


@pytest.mark.parametrize("seed", range(20))
def test_a_blanked_field_is_missing_and_the_others_are_not_touched(seed):
    log = generate_log(seed, num_lines=60)
    (chunk,) = log.chunks(60)
    rows = numpy_kernels.parse_chunk(chunk, log.log_format).rows.with_lists(log.log_format, numpy_kernels)
    before = cells_of(rows, log.log_format)
    for name, _ in log.log_format.fields:
        expected = {**before, name: [None] * len(rows.labels)}
        blank = rows.blanked(name)
        assert not blank.lists.get(name) or not blank.lists[name].lengths.any()
        assert cells_of(blank, log.log_format) == expected
        assert cells_of(rows, log.log_format) == before
    names = ["", *(name for name, _ in log.log_format.fields), ""]
    for name, cells in cells_of(rows.blanked(*names), log.log_format).items():
        assert cells == [
            value for each in names for value in ([None] * len(before[name]) if each == name else before[name])
        ]
