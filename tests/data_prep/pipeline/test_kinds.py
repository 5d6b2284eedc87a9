"""Each kind of column, lists, weights and keys, besides what `kernels/test_third_voice.py` compares."""

import dataclasses
import json
from fractions import Fraction

import numpy as np
import pyarrow.parquet as pq
import pytest

from data_prep.checks.inspect import inspect
from data_prep.checks.pre_check import pre_check
from data_prep.encoding.from_values import mappings_to_chunk
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.data_files import whole_log
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import VOCABULARY_FILE, Split, read_schema
from data_prep.report import _over_time, write_report
from data_prep.statistics.statistics import read_statistics
from tests.prepared_folders import ALL_TRAINED, vocabulary_of

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


OPTIONS = PrepareOptions(
    data=LogFormat(
        columns={"click": "label", "item": "string", "genres": "list", "history": "list"},
        separator=",",
        lists={"genres": ListForm(max_length=3, pool="sum"), "history": ListForm(separator=" ", max_length=2)},
        shares={"history": "item"},
    ),
    min_count=1,
    workers=1,
    **ALL_TRAINED,
)


@pytest.fixture(name="folder")
def folder_fixture(tmp_path):
    (tmp_path / "log.csv").write_text("1,a,x|y,b a\n0,b,x|x|y|z,\n1,,|,a a a\n0,c,||z|,d\n")
    prepare(tmp_path / "log.csv", tmp_path / "out", OPTIONS)
    return tmp_path / "out"


def test_what_is_cut_is_counted_and_shown(folder, capsys):
    profile = json.loads((folder / "statistics.json").read_text())["categorical"]
    assert [profile[name].get("cut") for name in ("item", "genres", "history")] == [None, 1, 1]
    assert [profile[name]["missing"] for name in ("item", "genres", "history")] == [1, 1, 1]
    inspect(folder)
    expected = "genres: 1 of 4 training rows have more than 3 values; the others were left out"
    assert expected in capsys.readouterr().out
    assert expected in write_report(folder).read_text()


def test_a_value_with_the_separator_in_it_is_an_error():
    message = r"row 0, column 'genres' of kind list: 'x\|y' has the separator '\|' of the list's values in it"
    with pytest.raises(TypeError, match=message):
        mappings_to_chunk([{"item": "a", "genres": ["x|y"], "history": []}], OPTIONS.data)


def test_a_shared_vocabulary_is_extended_once(tmp_path, folder):
    (tmp_path / "next.csv").write_text("1,new,x,a old\n0,old,w,new\n")
    schema = prepare(tmp_path / "next.csv", tmp_path / "next", OPTIONS, vocabulary_of=folder, extend=True)
    old, new = vocabulary_of(folder), vocabulary_of(tmp_path / "next")
    assert old.items() <= new.items()
    added = {key: count for key, (count, _) in new.items() if key not in old}
    assert added == {("item", "new"): 2, ("item", "old"): 2, ("genres", "w"): 1}
    assert schema.categorical[0].id_ranges == schema.categorical[2].id_ranges

    other = dataclasses.replace(OPTIONS.data, lists={**OPTIONS.data.lists, "genres": ListForm(max_length=4)})
    with pytest.raises(ValueError, match=r"other lists: {'genres': \(3, 'sum'\), .* there, {'genres': \(4, 'mean'\)"):
        prepare(tmp_path / "next.csv", tmp_path / "x", dataclasses.replace(OPTIONS, data=other), vocabulary_of=folder)


BESIDE = {"click": "label", "user": "id", "w": "weight", "site": "string"}
BESIDE_OPTIONS = PrepareOptions(
    data=LogFormat(BESIDE, ","), min_count=1, workers=1, shuffle_window_rows=5, max_reject_fraction=1, **ALL_TRAINED
)


def test_a_label_by_rule_and_rows_without_one(tmp_path, caplog):
    caplog.set_level("INFO")
    log_format = LogFormat({"site": "string", "rating": "label"}, ",", clicked=">= 4", label="optional")
    (tmp_path / "log.csv").write_text("a,5\nb,4.0\nc,3.99\nd,\ne,4e0\nf,five\ng,nan\n")
    options = dataclasses.replace(BESIDE_OPTIONS, data=log_format, vocabulary="hash", shuffle_window_rows=1)
    schema = prepare(tmp_path / "log.csv", tmp_path / "out", options)
    assert schema.source["rejected_by_reason"] == {"label": 2}
    (block,) = read_blocks(tmp_path / "out", read_schema(tmp_path / "out"), "train")
    assert (schema.weight, schema.splits["train"].clicks) == ("rating", 3)
    assert block.labels.tolist() == [1, 1, 0, 0, 1]
    assert block.weights.tolist() == [1, 1, 1, 0, 1]
    assert whole_log(read_schema(tmp_path / "out")) == Split(5, 3, (), unlabelled=1)
    assert "click rate 75.00 % of 4 rows, 1 more have no label" in caplog.text
    profile = read_statistics(tmp_path / "out")
    assert (profile.rows, profile.labelled, profile.clicks) == ((5,), (4,), (3,))
    (rate, *_) = _over_time(read_schema(tmp_path / "out"), profile)
    assert 0.75 in rate.drawing["lines"][0]["y"]


@pytest.mark.parametrize(("chunk_bytes", "label"), [(64, "optional"), (1 << 20, "optional"), (64, "required")])
def test_schema_names_the_mean_weight_of_rows_that_count(tmp_path, chunk_bytes, label):
    """Exactly, so that it does not depend on the chunks. Rows of weight 0 and without a label do not count."""
    rng = np.random.default_rng(1)
    weights = rng.choice(np.float32([0, 1e-12, 0.1, 3e9]), 300)
    labelled = (rng.random(300) < 0.9) | (label == "required")
    lines = [f"{'01'[i % 2] if labelled[i] else ''},u,{weight!r},s" for i, weight in enumerate(weights.tolist())]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    options = dataclasses.replace(BESIDE_OPTIONS, data=dataclasses.replace(BESIDE_OPTIONS.data, label=label))
    train = prepare(tmp_path / "log.csv", tmp_path / "out", options, chunk_bytes=chunk_bytes).splits["train"]
    counting = weights[labelled & (weights > 0)].tolist()
    assert (train.rows, train.num_counting) == (300, len(counting))
    assert train.mean_weight == float(sum(map(Fraction, counting)) / len(counting))
    if label == "required":  # rows of weight 0 have a label
        assert (train.unlabelled, train.click_rate) == (0, 0.5)


@pytest.mark.parametrize("vocabulary", ["counted", "hash"])
@pytest.mark.parametrize("transform", ["max", "standardize", "quantile"])
def test_rows_that_train_nothing_count_nowhere(tmp_path, vocabulary, transform):
    """The vocabulary and all statistics equal those of the log of the other rows alone."""
    rng = np.random.default_rng(1)
    columns = {"click": "label", "w": "weight", "n": "integer", "x": "float", "s": "string", "l": "list"}
    log_format = LogFormat(columns, ",", label="optional")
    options = dataclasses.replace(BESIDE_OPTIONS, data=log_format, vocabulary=vocabulary, numeric_transform=transform)
    options = dataclasses.replace(options, crosses=(("l", "s"),), shuffle_window_rows=100)
    mixed, counting = [], []
    for kind in rng.integers(4, size=300):  # 0: it counts, 1: no label, 2: weight 0, 3: weight 0 of a click
        label, weight = (rng.choice(["0", "1"]), "", "0", "1")[kind], "2" if kind < 2 else "0"
        integer, number = rng.choice(["", "1", "1000" * kind]), rng.normal() * (kind + 1)
        text, values = f"{rng.choice(['a', 'b'])}{kind}", "|".join(rng.choice(["p", f"r{kind}"], 1 + 29 * (kind == 1)))
        mixed.append(f"{label},{weight},{integer},{number},{text},{values}")
        counting += [] if kind else mixed[-1:]
    found = []
    for name, lines in {"mixed": mixed, "counting": counting}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([*lines, ""]))
        schema, profile = prepare(tmp_path / f"{name}.csv", tmp_path / name, options), read_statistics(tmp_path / name)
        counts = profile.training_rows, profile.numeric, profile.categorical
        found.append((schema.numeric, schema.categorical, pq.read_table(tmp_path / name / VOCABULARY_FILE), *counts))
    assert found[0] == found[1]
    assert (schema.splits["train"].num_labelled, len(counting)) == (profile.training_rows,) * 2
    assert whole_log(read_schema(tmp_path / "mixed")).num_labelled == sum(line[0] != "," for line in mixed)


def test_a_log_of_rows_that_train_nothing_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text(",u,1,s\n1,u,0,s\n")
    options = dataclasses.replace(BESIDE_OPTIONS, data=dataclasses.replace(BESIDE_OPTIONS.data, label="optional"))
    with pytest.raises(ValueError, match="none of 2 lines is a training row with a label and a weight above 0; give"):
        prepare(tmp_path / "log.csv", tmp_path / "out", options)


def test_a_log_whose_labels_are_all_clicks_is_reported(tmp_path, caplog):
    log_format = LogFormat({"site": "string", "click": "label"}, ",", label="optional")
    (tmp_path / "log.csv").write_text("a,1\nb,\nc,1\nd,\n")
    prepare(tmp_path / "log.csv", tmp_path / "out", dataclasses.replace(BESIDE_OPTIONS, data=log_format))
    assert "2 of 2 training rows with a label are clicks: a model learns nothing from them" in caplog.text
