"""Floats, timestamps and columns by name besides what `kernels/test_third_voice.py` compares."""

import dataclasses

import numpy as np
import pytest

from data_prep.checks.inspect import inspect
from data_prep.checks.pre_check import pre_check
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.reader import read_blocks
from data_prep.report import write_report
from tests.prepared_folders import ALL_TRAINED

COLUMNS = {"click": "label", "price": "float", "seen": "timestamp", "site": "string"}
ALL = {"seen": ("hour", "weekday", "age")}
FORMAT = LogFormat(COLUMNS, ",", timestamps={"seen": "%Y-%m-%d %H:%M"}, features=ALL)


def all_train(log_format, **settings):
    return PrepareOptions(
        data=log_format,
        min_count=1,
        workers=1,
        shuffle_window_rows=1,
        max_reject_fraction=1,
        **{**ALL_TRAINED, **settings},
    )


def prepared_rows(tmp_path, text, options, name="log.csv"):
    (tmp_path / name).write_text(text)
    schema = prepare(tmp_path / name, tmp_path / "out", options, report=True)
    return schema, {split: list(read_blocks(tmp_path / "out", schema, split)) for split in schema.splits}


def test_float_and_time_columns_are_named_and_shown(tmp_path, capsys):
    lines = ["1,0.5,2024-02-29 23:59,a", "0,-1e2,2024-02-27 00:00,b", "0,,,a", "1,.25,2024-02-28 11:59,a"]
    schema, _ = prepared_rows(tmp_path, "\n".join([*lines, "0,nan,,a"]) + "\n", all_train(FORMAT))
    assert [field.name for field in schema.numeric] == ["price", "seen_age_days", "price_missing", "seen_missing"]
    assert [field.name for field in schema.categorical] == ["site", "seen_hour", "seen_weekday"]
    inspect(tmp_path / "out")
    assert "seen_age_days" in capsys.readouterr().out
    assert "price before" in write_report(tmp_path / "out").read_text()
    assert any(each.is_wrong for each in pre_check(tmp_path / "log.csv", log_format=FORMAT))
    assert "2024-02-27T00:00:00 … 2024-02-29T23:59:00" in capsys.readouterr().out


@pytest.mark.parametrize("transform", ["log1p", "max", "standardize", "log1p_standardize", "quantile", "piecewise"])
def test_later_rows_are_as_old_as_the_newest_training_row(tmp_path, transform):
    """With a chronological split all of valid and test is later: their numbers stay in the range of training."""
    lines = [f"{n % 2},{n},2024-02-{1 + n // 10:02} {n % 10}:0{n % 7},a\n".replace(" ", " 0") for n in range(200)]
    fractions = {"train_fraction": 0.6, "valid_fraction": 0.2, "test_fraction": 0.2}
    options = all_train(FORMAT, split="chronological", numeric_transform=transform, **fractions)
    _, rows = prepared_rows(tmp_path, "".join(lines), options)
    train, *later = (np.concatenate([block.numeric[:, 1] for block in rows[split]]) for split in rows)
    assert [len(train), *map(len, later)] == [120, 40, 40]
    assert len(np.unique(train)) > 100
    newest = train.min()  # all transforms rise with the age
    assert {float(number) for numbers in later for number in numbers} == {float(newest)}
    (tmp_path / "later.csv").write_text("0,0.5,2031-03-02 23:59,a\n0,0.5,,a\n")
    again = dataclasses.replace(options, split="hash", **ALL_TRAINED)
    found = prepare(tmp_path / "later.csv", tmp_path / "more", again, vocabulary_of=tmp_path / "out")
    (block,) = read_blocks(tmp_path / "more", found, "train")
    assert block.numeric[:, 1].tolist() == [newest, 0]
    others = dataclasses.replace(again, data=dataclasses.replace(FORMAT, features={"seen": ("weekday",)}))
    with pytest.raises(ValueError, match="for other features"):
        prepare(tmp_path / "later.csv", tmp_path / "none", others, vocabulary_of=tmp_path / "out")


@pytest.mark.parametrize(
    ("header", "message"),
    [("seen,price,site", "not found: click;"), ("seen,click,site,price,site", "site .there twice")],
)
def test_columns_are_found_by_name_once(tmp_path, header, message):
    log_format = LogFormat(COLUMNS, ",", header=True, others="ignored", timestamps={"seen": "seconds"})
    (tmp_path / "log.csv").write_text(f"{header}\n0,0.5,a\n")
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "log.csv", tmp_path / "none", all_train(log_format))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [("n_missing", "integer", "'n_missing' is a column, and"), ("n_bucket", "string", "'n_bucket' is a column, and")],
)
def test_a_column_named_as_a_field_of_another_is_refused(tmp_path, name, kind, message):
    """The string was an internal error, the number a second field of one name, whose weights a warm start mixes up."""
    (tmp_path / "log.txt").write_text("1\t2\t3\ta\n" * 20)
    with pytest.raises(ValueError, match=message):
        log_format = LogFormat({"click": "label", "n": "integer", name: kind, "s": "string"})
        prepare(tmp_path / "log.txt", tmp_path / "p", PrepareOptions(data=log_format, integer_buckets=True, workers=1))
