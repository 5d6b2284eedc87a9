"""Logs of other columns, prepared. `kernels/test_third_voice.py` compares their rows with a plain reader's."""

import dataclasses

import numpy as np
import pytest

from data_prep.options.options_file import read_options
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import read_schema
from tests.programs import run_python

NUM_ROWS = 2_000


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


def test_a_vocabulary_of_other_fields_is_refused(tmp_path, folder, log_path, options):
    columns = {name: kind for name, kind in options.data.columns.items() if name != "C21"}
    other = dataclasses.replace(options, data=dataclasses.replace(options.data, columns={**columns, "C22": "string"}))
    with pytest.raises(ValueError, match=r"other fields: only there C21 \(string\); only here C22 \(string\)\. Give"):
        prepare(log_path, tmp_path / "x", other, vocabulary_of=folder)


def test_each_file_needs_the_same_header(tmp_path, log_path, options):
    lines = log_path.read_text().splitlines()
    (tmp_path / "part-0.csv").write_text("\n".join(lines[:600]))
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


def test_no_pandas_is_imported(tmp_path, log_path, pytestconfig):
    """Importing it takes a fifth of a second and 60 MB wherever it is installed."""
    script = (
        "import sys; from data_prep.__main__ import main; "
        f"status = main(['prepare', {str(log_path)!r}, {str(tmp_path / 'out')!r}, '--data', 'configs/data/avazu.yaml', "
        "'prepare.min_count=1', 'prepare.workers=1']); assert (status, 'pandas' in sys.modules) == (0, False)"
    )
    run_python("-c", script, cwd=pytestconfig.rootpath)
