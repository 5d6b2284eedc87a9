"""Logs as they come: each bad line is rejected and counted, or the preparation ends with a clear error."""

import dataclasses
import gzip
import re

import pandas as pd
import pytest

from data_prep.checks.pre_check import pre_check
from data_prep.options.log_format import LogFormat
from data_prep.pipeline.prepare import prepare

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
