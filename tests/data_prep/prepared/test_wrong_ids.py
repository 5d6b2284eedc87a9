"""Folders of earlier releases whose cells were mixed up are refused; all others are used as before."""

import dataclasses
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import app.__main__ as app_command
from app import device
from app.cli import checkpoint as checkpoint_command
from app.cli import evaluate as evaluate_command
from app.config.config import Config
from app.run.identity import data_identity
from app.training.warm_start import source as warm_start_source
from data_prep.__main__ import main
from data_prep.encoding.encoder import open_encoder
from data_prep.kernels.rows import LogRows
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import FORMAT_VERSION, Schema, read_schema, wrong_bins, wrong_ids
from data_prep.report.page import write_report
from tests.data_prep.kernels.generated_logs import criteo_log_between


def make_schema(folder, options=None, version=2, **rejected):
    """schema.json's content of a folder that an earlier release made."""
    source = {"name": "log.csv", "lines": 1000, "rejected_by_reason": rejected}
    decisive = json.loads(json.dumps((options or PrepareOptions()).decisive()))
    return Schema(version, (), (), 9, "int32", 10, {}, sum(rejected.values()), decisive, source, ())


def options_of(num_integer, num_hex, integer_buckets=False, separator=","):
    kinds = ["label", *["integer"] * num_integer, *["hex32"] * num_hex, "string"]
    columns = {f"{kind}-{place}": kind for place, kind in enumerate(kinds)}
    return PrepareOptions(data=LogFormat(columns, separator), integer_buckets=integer_buckets)


def rows_as_they_were_taken(num_integer, num_hex):
    """Rows in the layout that `LogRows.take` gave up to format version 2."""
    chosen = np.array([True, False, True, True])
    integers, values = np.zeros((num_integer, 4), np.int64), np.zeros((num_hex, 4), np.uint32)
    present = (integers == 0)[:, chosen], (values == 0)[:, chosen]
    return LogRows(np.arange(3), np.ones(3, bool), integers[:, chosen], present[0], values[:, chosen], present[1])


@pytest.mark.parametrize("integer_buckets", [False, True])
@pytest.mark.parametrize("num_hex", range(4))
@pytest.mark.parametrize("num_integer", range(4))
def test_a_format_is_suspect_where_its_columns_were_laid_out_row_by_row(
    tmp_path, num_integer, num_hex, integer_buckets
):
    rows = rows_as_they_were_taken(num_integer, num_hex)
    schema = make_schema(tmp_path, options_of(num_integer, num_hex, integer_buckets), label=1)
    values, present = rows.number_columns(integer_buckets)
    assert values.flags.c_contiguous == present.flags.c_contiguous
    assert bool(wrong_ids(schema, tmp_path)) == (not values.flags.c_contiguous)
    assert bool(wrong_bins(schema, tmp_path)) == (not rows.integers.flags.c_contiguous)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("reason", ["label", "integer", "categorical"])
def test_a_bad_cell_makes_a_folder_suspect(tmp_path, reason, version):
    schema = make_schema(tmp_path, options_of(0, 2), version, **{reason: 1_200, "columns": 5})
    found = wrong_ids(schema, tmp_path)
    assert re.search(r"has wrong ids: .*version \d.* \(1,200 of log\.csv\)\. .* prepare LOG ", found)
    assert str(tmp_path) in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("options", "version", "rejected"),
    [
        (options_of(2, 2), 2, {}),
        (options_of(2, 2), 2, {"columns": 7, "quotes": 3, "too long": 1}),
        (options_of(2, 2), FORMAT_VERSION, {"label": 1}),
        (PrepareOptions(), 2, {"label": 7, "integer": 1}),
        (PrepareOptions(), 1, {"label": 7}),
        (PrepareOptions(integer_buckets=True), 2, {"label": 7}),
        (PrepareOptions(data=LogFormat(header=True)), 2, {"categorical": 7}),
    ],
)
def test_other_folders_are_not_suspect(tmp_path, options, version, rejected):
    schema = make_schema(tmp_path, options, version, **rejected)
    assert not wrong_ids(schema, tmp_path)
    assert not wrong_bins(schema, tmp_path)


def test_a_folder_from_before_logs_were_described_is_criteos(tmp_path):
    schema = make_schema(tmp_path, version=1, label=1)
    old = {key: value for key, value in schema.options.items() if key != "data"}
    assert not wrong_ids(dataclasses.replace(schema, options=old), tmp_path)


def as_of_version(folder, version):
    path = folder / "schema.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": version}))


@pytest.fixture(scope="module")
def suspect(tmp_path_factory):
    """A folder as an earlier release described it: Criteo's columns between commas, with two bad cells."""
    parent = tmp_path_factory.mktemp("suspect")
    log = criteo_log_between(",", seed=1, num_lines=600, num_bad=2)
    (parent / "log.csv").write_bytes(log.text)
    prepare(parent / "log.csv", parent / "old", PrepareOptions(data=log.log_format, min_count=2, workers=1))
    read_schema(parent / "old")
    as_of_version(parent / "old", 2)
    return parent / "old"


def test_inspect_shows_the_folder_and_then_what_is_wrong(suspect, capsys):
    assert main(["inspect", str(suspect)]) == 2
    printed = capsys.readouterr()
    assert "Categorical columns: values with an id" in printed.out
    assert "have wrong counts of integers by size" in printed.out
    assert printed.err.startswith(f"error: {suspect} has wrong ids: ")
    assert "(2 of log.csv)" in printed.err
    assert "Traceback" not in printed.err


def test_the_report_says_it_too(suspect):
    assert "has wrong ids" in write_report(suspect).read_text()


def test_its_vocabulary_is_not_given_to_other_rows(suspect, tmp_path, capsys):
    log, options = suspect.parent / "log.csv", ["prepare.data.separator=','", "prepare.min_count=2"]
    assert main(["prepare", str(log), str(tmp_path / "new"), "--vocabulary", str(suspect), *options]) == 2
    assert "has wrong ids" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_neither_train_nor_evaluate_use_it_and_say_so_before_mindspore_is_loaded(
    suspect, tmp_path, monkeypatch, caplog
):
    def fail(_):
        raise AssertionError("MindSpore would be loaded")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device, "prepare_environment", fail)
    monkeypatch.setattr(device, "select_device", fail)
    monkeypatch.setattr(evaluate_command.Checkpoint, "open", lambda path: None)
    monkeypatch.setattr(evaluate_command, "saved_config", lambda checkpoint: Config())
    for words in (["train"], ["evaluate", "--checkpoint", "one"]):
        assert app_command.main([*words, "--dataset", str(suspect)]) == 2
        assert f"{suspect} has wrong ids" in caplog.text
        caplog.clear()
    assert not list(tmp_path.iterdir())


def test_rows_are_not_exported_by_its_vocabulary(suspect, tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.setattr(checkpoint_command.Checkpoint, "open", lambda path: SimpleNamespace(manifest=None))
    words = ["checkpoint", "export-rows", "one", str(tmp_path / "rows.parquet"), "--dataset", str(suspect)]
    assert app_command.main(words) == 2
    assert f"{suspect} has wrong ids" in caplog.text + capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_its_lines_are_not_encoded(suspect):
    with pytest.raises(ValueError, match=f"{suspect} has wrong ids"):
        open_encoder(suspect)


def test_a_warm_start_from_a_model_of_it_warns(suspect, monkeypatch, caplog):
    schema = read_schema(suspect, allow_wrong_ids=True)
    manifest = SimpleNamespace(dataset=str(suspect), data=data_identity(schema))
    monkeypatch.setattr(warm_start_source, "row_moves", lambda *folders: folders)
    assert warm_start_source._moves(manifest, Config(), schema, suspect) == (suspect, schema, suspect, schema)
    assert f"that this run starts from was trained on wrong ids: {suspect} has wrong ids" in caplog.text


def test_the_version_is_no_part_of_what_a_run_is(prepared):
    schema = read_schema(prepared)
    assert schema.format_version == FORMAT_VERSION
    assert data_identity(schema) == data_identity(dataclasses.replace(schema, format_version=2))


def test_a_folder_of_an_earlier_release_is_used_as_before(prepared, tmp_path, capsys):
    folder = shutil.copytree(prepared, tmp_path / "old")
    as_of_version(folder, 2)
    assert main(["inspect", str(folder)]) == 0
    assert "wrong" not in capsys.readouterr().out
