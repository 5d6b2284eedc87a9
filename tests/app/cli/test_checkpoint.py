"""`python -m app checkpoint`, on checkpoints that were made by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.__main__ import main
from app.checkpoint.manifest import Manifest
from app.checkpoint.write import ModelState, write_checkpoint
from app.run.folder import best_of_run
from app.run.identity import data_identity
from app.tables.interface import DEEP, STATE_ARRAYS, WIDE, TableState
from data_prep.prepared.schema import VOCABULARY_FILE
from tests.checkpoints import load
from tests.programs import close_output_at_once

WIDTHS = {WIDE: 1, DEEP: 3}


def make_state(row_ids, seed=0):
    """Any bits are possible values, NaN among them."""
    rng = np.random.default_rng(seed)
    row_ids = np.array(sorted(row_ids), np.int64)
    tables = {
        table: TableState(row_ids, {name: random_bits(rng, (len(row_ids), WIDTHS[table])) for name in names})
        for table, names in STATE_ARRAYS.items()
    }
    return ModelState({"tower.matrix_0": random_bits(rng, (4, 2)), "adam.beta1_power": np.float32([0.9])}, tables)


def random_bits(rng, shape):
    return rng.integers(0, 2**32, shape, np.uint32).view(np.float32)


def make_manifest(step, schema=None, dataset=Path(), metrics=None, vocabulary_size=1000):
    data = {"vocabulary_size": vocabulary_size} if schema is None else data_identity(schema)
    return Manifest(step, 2, 4, {"train": {"seed": 7}}, str(dataset), data, metrics or {})


def test_one_four_three_one(tmp_path, assert_same_bits):
    state = make_state(range(0, 500, 3))
    path = write_checkpoint(tmp_path, state, make_manifest(5))
    for shards in ("4", "3", "1"):
        target = tmp_path / shards
        assert main(["checkpoint", "reshard", str(path), str(target), "--shards", shards]) == 0
        path = target / "step-00000005"
    assert_same_bits(load(path)[1], state)
    names = sorted(path.name for path in (tmp_path / "4" / "step-00000005").glob("deep*"))
    assert names == [f"deep-{shard}-of-4.safetensors" for shard in range(4)]


@pytest.fixture
def saved(tmp_path):
    metrics = {"auc": 0.75, "log_loss": 0.5}
    return write_checkpoint(tmp_path / "kept", make_state(range(40)), make_manifest(9, metrics=metrics), num_shards=2)


def test_list_prints_a_line_each_and_the_reason_if_one_is_not_whole(saved, capsys):
    (saved.parent / "step-00000010").mkdir()
    (saved.parent / "step-00000011.partial").mkdir()
    assert main(["checkpoint", "list", "--folder", str(saved.parent)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    shown = "step-00000009 epoch 2 0.0 MiB 2 files a table AUC 0.750000 full"
    assert first.split() == shown.split()
    assert second.startswith("step-00000010  not whole: ")
    (saved / "deep-1-of-2.safetensors").unlink()
    assert main(["checkpoint", "list", "--folder", str(saved.parent)]) == 0
    assert "step-00000009  not whole: " in (first := capsys.readouterr().out.splitlines()[0])
    assert f"{saved / 'deep-1-of-2.safetensors'} is missing" in first


def test_the_checkpoint_that_make_eval_takes_is_marked_and_is_the_default(tmp_path, monkeypatch, capsys):
    """The best by the run's own metric; with none evaluated, the newest whole one."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "wide"
    run.mkdir()
    (run / "config.yaml").write_text("eval: {metric: log_loss}\n")
    for step, log_loss in ((1, 0.5), (2, 0.4), (3, 0.6)):
        write_checkpoint(run / "checkpoints", make_state({1, 2}), make_manifest(step, metrics={"log_loss": log_loss}))

    def marked(*words):
        assert main(["checkpoint", "list", *words]) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines() if "evaluate takes" in line]

    assert marked("wide") == marked("--run", "wide") == ["step-00000002"] == [best_of_run(run).path.name]
    for action, text in (("show", "step-00000002: "), ("verify", "step-00000002: whole")):
        for words in (["--run", "wide"], ["wide"]):
            assert main(["checkpoint", action, *words]) == 0
            assert text in capsys.readouterr().out
    next((run / "checkpoints" / "step-00000002").glob("wide-*")).unlink()
    assert marked("wide") == ["step-00000002"] == [best_of_run(run).path.name]  # which then names the file
    assert main(["checkpoint", "verify", "wide"]) == 2
    (run / "checkpoints" / "step-00000002" / "manifest.json").unlink()
    assert marked("wide") == ["step-00000001"] == [best_of_run(run).path.name]


def test_list_of_nothing(tmp_path, capsys, caplog):
    assert main(["checkpoint", "list", "--folder", str(tmp_path)]) == 2
    assert "no checkpoint in" in caplog.text


def test_a_reader_that_has_had_enough_is_no_error(saved, command_environment):
    close_output_at_once("-P", "-m", "app", "checkpoint", "show", saved, env=command_environment)


def test_show_prints_position_tables_metrics_and_files(saved, capsys):
    assert main(["checkpoint", "show", str(saved)]) == 0
    out = capsys.readouterr().out
    for part in (
        "the next batch is number 5 of epoch 2, after 9 steps",
        "seed 7",
        "deep table: 40 touched rows of 1,000, float32, in 2 files",
        "auc on valid: 0.75",
        "wide-1-of-2.safetensors",
    ):
        assert part in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shards", "0"), "a table has 1 file or more, found --shards 0"),
        (("--shards", "2"), "step-00000009 is there already; give another folder"),
    ],
)
def test_what_reshard_refuses(saved, caplog, words, message):
    before = {path: path.read_bytes() for path in saved.iterdir()}
    assert main(["checkpoint", "reshard", str(saved), str(saved.parent), *words]) == 2
    assert message in caplog.text
    assert before == {path: path.read_bytes() for path in saved.iterdir()}


def test_an_error_of_the_system_is_reported_without_its_number(saved, tmp_path, caplog):
    folder = tmp_path / "file" / "folder"
    folder.parent.write_text("")
    assert main(["checkpoint", "reshard", "--shards", "1", str(saved), str(folder)]) == 2
    reason = f"File exists: {folder.parent}; give a place that this user may write to"
    assert caplog.messages[-1] == f"error: nothing can be written to {folder}: {reason}"


@pytest.fixture
def trained(tmp_path, tiny_schema, tiny_dataset):
    """Every third row is touched, out-of-vocabulary ones among them."""
    first = tiny_schema.categorical[0].oov_ids[0]
    state = make_state(range(first, tiny_schema.vocabulary_size, 3))
    return write_checkpoint(tmp_path, state, make_manifest(1, tiny_schema, tiny_dataset), num_shards=3)


@pytest.mark.parametrize("table", [DEEP, WIDE])
def test_exported_rows_have_the_vocabulary_s_names_and_the_checkpoint_s_bits(trained, tiny_dataset, tmp_path, table):
    output = tmp_path / "rows.parquet"
    assert main(["checkpoint", "export-rows", str(trained), str(output), "--table", table]) == 0
    exported = pq.read_table(output)
    assert exported.column_names == ["field", "value", "row", "vector"]
    saved = load(trained)[1].tables[table]
    order = np.argsort(exported["row"].to_numpy())
    np.testing.assert_array_equal(exported["row"].to_numpy()[order], saved.row_ids)
    vectors = exported["vector"].combine_chunks().flatten().to_numpy().reshape(-1, WIDTHS[table])[order]
    np.testing.assert_array_equal(vectors.view(np.int32), saved.arrays["rows"].view(np.int32))
    vocabulary = pq.read_table(tiny_dataset / VOCABULARY_FILE).to_pylist()
    names = {line["id"]: (line["field"], line["value"]) for line in vocabulary}
    found = {line["row"]: (line["field"], line["value"]) for line in exported.to_pylist()}
    assert {row: name for row, name in found.items() if row in names} == {
        row: names[row] for row in found.keys() & names
    }
    assert all(value is None for row, (_, value) in found.items() if row not in names)
    assert found[min(found)][0] == "C1"  # the first out-of-vocabulary id


def test_rows_of_adam_on_the_table_are_exported_as_they_are_after_the_newest_step(tmp_path, tiny_schema, tiny_dataset):
    first = tiny_schema.categorical[0].oov_ids[0]
    row_ids = np.arange(first, first + 4)
    zeros = np.zeros((4, WIDTHS[DEEP]), np.float32)
    arrays = {"rows": zeros + 1, "first_moment": zeros, "second_moment": zeros, "last_step": zeros[:, :1].astype("i4")}
    state = make_state(row_ids)
    state.tables[DEEP] = TableState(row_ids, arrays)
    config = {"deep_optimizer": {"name": "adam", "learning_rate": 0.5}, "loss": {"l2_coef": 0.1}}
    manifest = replace(make_manifest(1, tiny_schema, tiny_dataset), config=config)
    path = write_checkpoint(tmp_path, state, manifest)
    assert main(["checkpoint", "export-rows", str(path), str(tmp_path / "rows.parquet")]) == 0
    vectors = pq.read_table(tmp_path / "rows.parquet")["vector"].combine_chunks().flatten().to_numpy()
    np.testing.assert_allclose(vectors, 0.5, rtol=1e-5)  # Adam's first step is one learning rate


def test_rows_are_not_exported_through_another_vocabulary(trained, tmp_path, tiny_schema, tiny_dataset, caplog):
    manifest, state = load(trained)
    manifest = Manifest(2, 1, 2, {}, str(tiny_dataset), {**manifest.data, "vocabulary": ["xxh3:0"]}, {})
    other = write_checkpoint(tmp_path, state, manifest)
    assert main(["checkpoint", "export-rows", str(other), str(tmp_path / "rows.parquet")]) == 2
    assert "does not fit the checkpoint, whose inputs mean something else: vocabulary was ['xxh3:0']" in caplog.text
    assert not (tmp_path / "rows.parquet").exists()
