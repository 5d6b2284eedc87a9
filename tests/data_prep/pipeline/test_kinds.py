"""Floats, timestamps, columns by name: from raw text to rows, on examples whose results are written down."""

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.checks.inspect import inspect
from data_prep.checks.pre_check import pre_check
from data_prep.options.format_checks import checked_format
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.reader import read_blocks
from data_prep.report.data_report import write_report

COLUMNS = {"click": "label", "price": "float", "seen": "timestamp", "site": "string"}
ALL = {"seen": ("hour", "weekday", "age")}
FORMAT = LogFormat(COLUMNS, ",", timestamps={"seen": "%Y-%m-%d %H:%M"}, features=ALL)
LINES = ["1,0.5,2024-02-29 23:59,a", "0,-1e2,2024-02-27 00:00,b", "0,,,a", "1,.25,2024-02-28 11:59,a"]


def all_train(log_format, **settings):
    return PrepareOptions(
        data=log_format,
        min_count=1,
        workers=1,
        shuffle_window_rows=1,
        max_reject_fraction=1,
        **{"train_fraction": 1, "valid_fraction": 0, "test_fraction": 0, **settings},
    )


def prepared_rows(tmp_path, text, options, name="log.csv"):
    (tmp_path / name).write_text(text)
    schema = prepare(tmp_path / name, tmp_path / "out", options, report=True)
    return schema, {split: list(read_blocks(tmp_path / "out", schema, split)) for split in schema.splits}


def test_floats_and_times_become_numbers_and_fields(tmp_path, capsys):
    bad = ["0,nan,,a", "0,inf,,a", "0,1e39,,a", "0,1,2024-02-30 00:00,a", "0,1,2024-02-29,a"]
    options = all_train(FORMAT)
    schema, rows = prepared_rows(tmp_path, "\n".join([*LINES, *bad]) + "\n", options)
    assert schema.source["rejected_by_reason"] == {"float": 3, "timestamp": 2}
    assert [field.name for field in schema.numeric] == ["price", "seen_age_days", "price_missing", "seen_missing"]
    assert [field.name for field in schema.categorical] == ["site", "seen_hour", "seen_weekday"]
    (block,) = rows["train"]
    ages = [0, 2 + 1439 / 1440, 0, 1.5]
    expected = [[math.log1p(0.5), -math.log1p(100), 0, math.log1p(0.25)], list(map(math.log1p, ages)), [0, 0, 1, 0]]
    assert np.allclose(block.numeric.T[:3], expected)
    assert block.numeric[:, 3].tolist() == [0, 0, 1, 0]
    table = pq.read_table(tmp_path / "out" / "vocabulary.parquet").to_pylist()
    values = {row["id"]: row["value"] for row in table}
    assert [values[i] for i in block.ids[:, 1]] == ["23", "0", "", "11"]
    assert [values[i] for i in block.ids[:, 2]] == ["3", "1", "", "2"]  # Thursday, Tuesday, Wednesday
    inspect(tmp_path / "out")
    assert "seen_age_days" in capsys.readouterr().out
    write_report(tmp_path / "out")
    findings = pre_check(tmp_path / "log.csv", log_format=FORMAT)
    assert "2024-02-27T00:00:00 … 2024-02-29T23:59:00" in capsys.readouterr().out
    assert any(each.is_wrong for each in findings)


@pytest.mark.parametrize("transform", ["log1p", "max", "standardize", "quantile"])
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
    again = dataclasses.replace(options, split="hash", train_fraction=1, valid_fraction=0, test_fraction=0)
    found = prepare(tmp_path / "later.csv", tmp_path / "more", again, vocabulary_of=tmp_path / "out")
    (block,) = read_blocks(tmp_path / "more", found, "train")
    assert block.numeric[:, 1].tolist() == [newest, 0]


FEATURES = [tuple(part for part, bit in (("hour", 1), ("weekday", 2), ("age", 4)) if n & bit) for n in range(8)]


@pytest.mark.parametrize("features", [None, *FEATURES, ("age", "hour")])
def test_a_timestamp_becomes_the_features_that_it_names(tmp_path, features):
    chosen = {} if features is None else {"seen": features}
    options = all_train(dataclasses.replace(FORMAT, features=chosen), integer_buckets=True)
    schema, rows = prepared_rows(tmp_path, "\n".join(LINES) + "\n", options)
    features = ("hour", "weekday") if features is None else features
    has_age = ["seen"] * ("age" in features)
    assert [field.source for field in schema.numeric] == ["price", *has_age] * 2
    parts = [part for part in ("hour", "weekday") if part in features]
    assert [field.name for field in schema.categorical] == ["site", *(f"seen_{part}" for part in parts)]
    values = {row["id"]: row["value"] for row in pq.read_table(tmp_path / "out" / "vocabulary.parquet").to_pylist()}
    expected = {"hour": ["23", "0", "", "11"], "weekday": ["3", "1", "", "2"]}
    (block,) = rows["train"]
    for place, part in enumerate(parts, start=1):
        assert [values[i] for i in block.ids[:, place]] == expected[part]
    others = all_train(dataclasses.replace(FORMAT, features={"seen": ("weekday",)}), integer_buckets=True)
    if features != ("weekday",):
        with pytest.raises(ValueError, match="for other features"):
            prepare(tmp_path / "log.csv", tmp_path / "more", others, vocabulary_of=tmp_path / "out")


def test_quantiles_are_ranks_of_the_training_rows(tmp_path):
    numbers = np.random.default_rng(1).permutation(1000)
    text = "".join(f"0,{number / 8},,a\n" for number in numbers) + "0,1e9,,a\n0,-7,,a\n"
    options = all_train(FORMAT, numeric_transform="quantile", train_fraction=0.9, valid_fraction=0.1, split="hash")
    schema, rows = prepared_rows(tmp_path, text, options)
    ranks = {}
    for split, blocks in rows.items():
        lines = np.load(tmp_path / "out" / f"row_numbers-{split}.npy") if split != "train" else None
        if lines is not None and blocks:
            ranks |= dict(zip(lines.tolist(), np.concatenate([b.numeric[:, 0] for b in blocks]).tolist(), strict=True))
    assert len(ranks) > 60
    for line, rank in ranks.items():
        if line < 1000:
            assert abs(rank - numbers[line] / 1000) < 0.03
    every = np.concatenate([block.numeric[:, 0] for blocks in rows.values() for block in blocks])
    assert (every.min(), every.max()) == (0, 1)
    assert len(schema.numeric[0].quantiles) <= 257


@pytest.mark.parametrize("kernels", ["native", "numpy"])
def test_a_chronological_split_is_by_time_even_if_the_log_is_not(tmp_path, kernels):
    order = np.random.default_rng(3).permutation(1000)
    text = "".join(f"0,1,2024-02-{1 + n // 40:02} {n % 40 // 2:02}:00,a\n" for n in order)  # two rows of each time
    options = all_train(
        FORMAT, split="chronological", train_fraction=0.7, valid_fraction=0.2, test_fraction=0.1, kernels=kernels
    )
    schema, _ = prepared_rows(tmp_path, text, options)
    assert [schema.splits[split].rows for split in ("train", "valid", "test")] == [700, 200, 100]
    times = order // 2
    in_order = np.lexsort((np.arange(1000), times))
    for split, rows in (("valid", in_order[700:900]), ("test", in_order[900:])):
        assert np.load(tmp_path / "out" / f"row_numbers-{split}.npy").tolist() == sorted(rows.tolist())


def test_columns_are_found_by_name_and_others_ignored(tmp_path):
    log_format = LogFormat(COLUMNS, ",", header=True, others="ignored", timestamps={"seen": "seconds"}, features=ALL)
    (tmp_path / "a.csv").write_text("site,more,click,price,seen\na,?,1,0.5,0\nb,?,0,2,90000\nshort\n")
    (tmp_path / "b.csv").write_text("seen,price,click,site\n0,0.5,1,a\n")
    options = all_train(log_format)
    schema = prepare([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "out", options)
    assert schema.source["rejected_by_reason"] == {"columns": 1}
    (block,) = read_blocks(tmp_path / "out", schema, "train")
    assert block.labels.tolist() == [1, 0, 1]
    assert block.ids[0].tolist() == block.ids[2].tolist() != block.ids[1].tolist()
    assert block.numeric[0].tolist() == block.numeric[2].tolist()
    for header, message in (
        ("seen,price,site", "not found: click;"),
        ("seen,click,site,price,site", "site .there twice"),
    ):
        (tmp_path / "c.csv").write_text(f"{header}\n0,0.5,a\n")
        with pytest.raises(ValueError, match=message):
            prepare(tmp_path / "c.csv", tmp_path / "none", options)


def test_parquet_times_are_read_as_they_are(tmp_path):
    times = pa.array([86_400_000, None, 176_400_000], pa.timestamp("ms"))
    table = pa.table({"click": [1, 0, 1], "price": [0.5, None, 0.1], "seen": times, "site": ["a", "b", "a"]})
    pq.write_table(table, tmp_path / "log.parquet")
    for number, form in enumerate(("seconds", "milliseconds", "%Y-%m-%d %H:%M", "%y%m%d%H")):
        options = all_train(LogFormat(COLUMNS, ",", timestamps={"seen": form}, features=ALL))
        schema = prepare(tmp_path / "log.parquet", tmp_path / str(number), options)
        (block,) = read_blocks(tmp_path / str(number), schema, "train")
        assert np.allclose(block.numeric[:, 1], [math.log1p(90_000 / 86_400), 0, 0])
        assert np.allclose(block.numeric[:, 0], [math.log1p(0.5), 0, math.log1p(0.1)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timestamps": {"site": "seconds"}}, "'site' is no column of kind timestamp"),
        ({"features": {"site": ("hour",)}}, "features: 'site' is no column of kind timestamp"),
        ({"features": {"seen": ("hour", "hour")}}, "each once"),
        ({"features": {"seen": ("minute",)}}, "expected some of hour, weekday, age"),
        ({"timestamps": {"seen": "%H:%M"}}, "which must give year, month and day"),
        ({"timestamps": {"seen": "%Y%m%d%d"}}, "of which each may occur once"),
        (
            {"timestamps": {"seen": "%Y-%j"}},
            "expected seconds, milliseconds, microseconds, nanoseconds, iso, or a form of",
        ),
        (
            {"columns": {**COLUMNS, "seen_hour": "string"}},
            r"'seen_hour' is a field that the timestamp 'seen' gives, too; .* features: {seen: \[weekday\]}",
        ),
        (
            {"columns": {**COLUMNS, "seen_age_days": "float"}, "features": {"seen": ("age",)}},
            r"'seen_age_days' is a field .* features: {seen: \[\]}",
        ),
        ({"others": "ignored"}, "needs header: true"),
    ],
)
def test_a_description_that_cannot_be_read_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        checked_format(LogFormat(**{"columns": COLUMNS, **settings}))


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


def test_several_timestamps_need_a_name_to_split_by():
    log_format = LogFormat({**COLUMNS, "sold": "timestamp"})
    with pytest.raises(ValueError, match="seen, sold"):
        PrepareOptions(data=log_format, split="chronological")
    assert PrepareOptions(data=log_format, split="chronological", split_by="sold").split_time == "sold"
    with pytest.raises(ValueError, match="split_by is for split: chronological"):
        PrepareOptions(data=log_format, split_by="sold")
