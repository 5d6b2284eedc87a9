"""Logs of other columns, prepared. `kernels/test_third_voice.py` compares their rows with a plain reader's."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from data_prep.options.log_format import LogFormat
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import read_schema
from tests.prepared_folders import vocabulary_of

NUM_ROWS = 2_000
FIELDS = 22


@pytest.fixture(scope="module")
def options(pytestconfig):
    words = ["min_count=3", "shuffle_window_rows=500", "workers=1", "max_reject_fraction=0.5"]
    words = [f"prepare.{word}" for word in words]
    return read_options(None, words, pytestconfig.rootpath / "configs" / "data" / "avazu.yaml")


@pytest.fixture(scope="module")
def log_path(tmp_path_factory, make_avazu):
    path = tmp_path_factory.mktemp("avazu") / "train.csv"
    path.write_text(make_avazu(NUM_ROWS))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory, log_path, options):
    folder = tmp_path_factory.mktemp("prepared") / "avazu"
    prepare(log_path, folder, options)
    return folder


def ids_of(folder, schema, split="test"):
    return np.concatenate([block.ids for block in read_blocks(folder, schema, split)])


def test_a_vocabulary_of_text_is_given_to_other_rows(tmp_path, folder, log_path, options, make_avazu):
    (tmp_path / "next.csv").write_text(make_avazu(500, seed=2).replace("é/ü", "new"))
    everything = dataclasses.replace(options, train_fraction=0, valid_fraction=0, test_fraction=1)
    schema = prepare(tmp_path / "next.csv", tmp_path / "next", everything, vocabulary_of=folder)
    known = vocabulary_of(folder)
    lines = [line.split(",")[2:] for line in (tmp_path / "next.csv").read_text().splitlines()[1:]]
    names = [column.name for column in options.categorical_columns]
    expected = [[known.get((name, line[f]), (0, f))[1] for f, name in enumerate(names)] for line in lines]
    assert np.array_equal(ids_of(tmp_path / "next", schema), expected)
    assert FIELDS - 1 in {row[-1] for row in expected}  # "new" is out of vocabulary

    columns = {name: kind for name, kind in options.data.columns.items() if name != "C21"}
    other = dataclasses.replace(options, data=dataclasses.replace(options.data, columns={**columns, "C22": "string"}))
    with pytest.raises(ValueError, match=r"other fields: only there C21 \(string\); only here C22 \(string\)\. Give"):
        prepare(tmp_path / "next.csv", tmp_path / "x", other, vocabulary_of=folder)


def test_a_header_and_bad_lines(tmp_path, log_path, options):
    lines = log_path.read_text().splitlines()
    bad_label = ",".join(["9", "2", *lines[1].split(",")[2:]])
    everything = dataclasses.replace(options, train_fraction=1, valid_fraction=0, test_fraction=0)
    (tmp_path / "good.csv").write_text("\n".join(lines[:1200]))
    prepare(tmp_path / "good.csv", tmp_path / "good", everything)
    (tmp_path / "good.csv").unlink()
    (tmp_path / "part-0.csv").write_text("\n".join([lines[0], "bad", *lines[1:600], bad_label]))
    (tmp_path / "part-1.csv").write_text("\n".join([lines[0], *lines[600:1200], "worse", ""]))
    schema = prepare(sorted(tmp_path.glob("part-*.csv")), tmp_path / "out", everything, chunk_bytes=10_000)
    assert (tmp_path / "out" / "rejects.tsv").read_text() == (
        f"part-0.csv:2\tcolumns\tbad\npart-0.csv:602\tlabel\t{bad_label}\npart-1.csv:602\tcolumns\tworse\n"
    )
    assert schema.source["lines"] == 1202
    assert vocabulary_of(tmp_path / "out") == vocabulary_of(tmp_path / "good")

    for first_line, message in (
        (lines[0].replace("hour", "Hour"), "not found: hour; not expected: Hour;"),
        (",".join(reversed(lines[0].split(","))), "with others: ignored in that file columns are taken by name"),
        (lines[600], "each file of the log needs the line of names"),
    ):
        (tmp_path / "part-1.csv").write_text("\n".join([first_line, *lines[600:1200]]))
        with pytest.raises(ValueError, match=rf"part-1.csv: its first line names .*{message}"):
            prepare(sorted(tmp_path.glob("part-*.csv")), tmp_path / "new", options)


def test_a_log_of_another_form_says_which(tmp_path, log_path, options, small_options):
    with pytest.raises(
        ValueError, match=r"(?s)2,001 of 2,001 lines .*24 columns between ',', expected 40 columns .*--data my.yaml"
    ):
        prepare(log_path, tmp_path / "out", small_options)


def test_the_zoos_layout_takes_a_log_without_numeric_fields(tmp_path, folder, log_path, options):
    words = {"layout": "zoo"}
    schema = prepare(log_path, tmp_path / "zoo", dataclasses.replace(options, **words))
    blocks = list(read_blocks(tmp_path / "zoo", schema, "test"))
    assert {block.numeric.shape[1] for block in blocks} == {0}
    expected = ids_of(folder, read_schema(folder))
    assert np.array_equal(np.concatenate([block.ids for block in blocks]), expected)


MIXED = LogFormat(
    columns={"a": "string", "count": "integer", "clicked": "label", "b": "hex32", "junk": "ignored", "c": "string"},
    separator=";",
    quotes=True,
    missing=("-",),
    clicked=("yes",),
    not_clicked=("no",),
)


def test_all_kinds_of_columns_in_any_order(tmp_path):
    options = PrepareOptions(
        data=MIXED, integer_buckets=True, min_count=1, train_fraction=1, valid_fraction=0, test_fraction=0, workers=1
    )
    lines = ['"x;y";100;yes;0000000a;?;z', "-;-;no;-;?;", 'x;7;no;0000000a;?;"say ""hi"""']
    (tmp_path / "log.csv").write_text("\n".join(lines))
    schema = prepare(tmp_path / "log.csv", tmp_path / "out", options)
    assert [field.name for field in schema.numeric] == ["count", "count_missing"]
    assert [field.name for field in schema.categorical] == ["a", "b", "c", "count_bucket"]
    values = {found: value for (_, value), (_, found) in vocabulary_of(tmp_path / "out").items()}
    rows = [
        ([values[int(found)] for found in ids], round(float(np.expm1(numeric[0]))), int(numeric[1]), int(label))
        for block in read_blocks(tmp_path / "out", schema, "train")
        for ids, numeric, label in zip(block.ids, block.numeric, block.labels, strict=True)
    ]
    assert sorted(rows) == [
        (["", "", "", ""], 0, 1, 0),
        (["x", "0000000a", 'say "hi"', "3"], 7, 0, 0),
        (["x;y", "0000000a", "z", "21"], 100, 0, 1),
    ]


def test_no_pandas_is_imported(tmp_path, log_path, pytestconfig):
    """Importing it takes a fifth of a second and 60 MB wherever it is installed."""
    script = (
        "import sys; from data_prep.__main__ import main; "
        f"status = main(['prepare', {str(log_path)!r}, {str(tmp_path / 'out')!r}, '--data', 'configs/data/avazu.yaml', "
        "'prepare.min_count=1', 'prepare.workers=1']); assert (status, 'pandas' in sys.modules) == (0, False)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=pytestconfig.rootpath, check=True)
