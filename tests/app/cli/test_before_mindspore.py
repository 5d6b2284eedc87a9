"""Errors that need no MindSpore are found before it is imported, which takes 6 to 14 seconds."""

import dataclasses
import sys

import pytest

from app.checkpoint.manifest import read_manifest, write_manifest
from app.checkpoint.write import ModelState, write_checkpoint
from app.run.claim import open_run
from app.run.identity import data_identity
from common.files import lock_folder
from tests.checkpoints import run_manifest


@pytest.fixture(autouse=True)
def _without_mindspore(monkeypatch):
    """MindSpore cannot be imported."""
    monkeypatch.setitem(sys.modules, "mindspore", None)


@pytest.fixture
def checkpoint_of(tmp_path, tiny_config, tiny_schema, tiny_dataset):
    """Save a checkpoint without a model; `evaluate` has not opened its files when it looks at the data."""

    def save(**changed):
        config = tiny_config("model.first_layer=direct")  # as auto was resolved
        manifest = run_manifest(2, config, tiny_schema, tiny_dataset, epoch=2, epoch_step=0)
        path = write_checkpoint(tmp_path / "checkpoints", ModelState({}, {}), manifest)
        write_manifest(path, dataclasses.replace(read_manifest(path), **changed))
        return path

    return save


def test_the_fixture_keeps_mindspore_out(command):
    with pytest.raises(ImportError, match="mindspore"):
        command("train", "model.batch_norm=true")


def test_the_name_of_the_run_s_folder(command, tmp_path):
    with lock_folder(tmp_path / "wide"):
        status, log = command("train", "--name", "wide", "train.seed=3", "train.epochs=2")
    assert (status, "another process trains in" in log, "wide;" in log) == (2, True, True)
    status, log = command("train", "--name", "device_7")
    assert status == 2 and "--name 'device_7': expected" in log
    assert [path.name for path in tmp_path.iterdir()] == ["wide"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train.init_from=nowhere",), "train.init_from=nowhere: expected a checkpoint"),
        (("--ranks", "2", "train.init_from=nowhere"), "train.init_from=nowhere: expected a checkpoint"),
        (("train.resume=require",), "train.resume=require, but"),
        (("tables.backend=stock", "deep_optimizer.name=sgd"), "stock has lazy_adam only"),
        (("tables.backend=stock", "train.ema_decay=0.5"), "stock has none"),
        (("tables.backend=stock", "tower_optimizer.name=sgd"), "stock has adam and adamw only"),
    ],
)
def test_a_training_that_cannot_begin_leaves_nothing(command, tmp_path, words, message):
    status, log = command("train", *words)
    assert status == 2
    assert message in log
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [(), ("--ranks", "2")])
def test_a_source_whose_prepared_folder_was_removed(command, checkpoint_of, tmp_path, tiny_schema, words):
    path = checkpoint_of(data={**data_identity(tiny_schema), "vocabulary_size": 7}, dataset="moved")
    status, log = command("train", *words, f"train.init_from={path}")
    assert status == 2
    assert "no prepared data in moved" in log
    assert "if it was moved, link it: ln -s NEW_PLACE moved" in log
    assert not (tmp_path / "device_0").exists()


def test_a_finished_run(command, checkpoint_of, tmp_path, tiny_config, tiny_schema):
    run, lock = open_run(tmp_path / "device_0", tiny_config("model.first_layer=direct"), tiny_schema)
    run.set_status("finished")
    lock.close()
    path = checkpoint_of()
    path.rename(run.path / "checkpoints" / path.name)
    status, log = command("train")
    assert status == 0
    assert "is finished: all 1 epochs are done" in log


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--split", "tset"), "has no rows in split 'tset'; the splits with rows: train, valid, test"),
        (("--dataset", "nowhere"), "no prepared data in nowhere"),
        (("eval.group_field=C99",), "eval.group_field=C99 is no categorical field of the data"),
        (("--by", "C9", "eval.group_field=C99"), "eval.group_field=C99 is no categorical field of the data"),
    ],
)
def test_an_evaluation_of_what_is_not_there(command, checkpoint_of, words, message):
    status, log = command("evaluate", "--checkpoint", checkpoint_of(), *words)
    assert status == 2
    assert message in log


@pytest.mark.parametrize(
    "words", [("evaluate", "--checkpoint"), ("checkpoint", "show"), ("checkpoint", "verify"), ("export", "--overwrite")]
)
def test_a_checkpoint_that_is_not_there_is_answered_by_those_that_are(command, checkpoint_of, words):
    path = checkpoint_of()
    for asked in (path.with_name("step-00000009"), path.parent):
        status, log = command(*words, asked, *(("bundle",) if words[0] == "export" else ()))
        assert status == 2
        assert f"{asked} is no whole checkpoint: it has no manifest.json; whole ones nearby: {path}" in log


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--checkpoint", "{}"),
        ("export", "{}", "bundle"),
        ("checkpoint", "export-rows", "{}", "rows.parquet"),
    ],
)
def test_a_prepared_folder_that_was_moved_is_asked_for(command, checkpoint_of, tmp_path, words):
    path = checkpoint_of(dataset=str(tmp_path / "Über prepared"))
    status, log = command(*(word.format(path) for word in words))
    assert status == 2
    assert f"{path} was trained on {tmp_path / 'Über prepared'}, and no prepared folder is there" in log
    assert "name its new place: --dataset DIR" in log
    assert not (tmp_path / "bundle").exists() and not (tmp_path / "rows.parquet").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("predict", "no bundle", "log.txt", "scores.csv"), "no bundle is no bundle: it has no manifest.json; make"),
        (("bundle", "verify", "no bundle"), "no bundle is no bundle: it has no manifest.json; make one"),
        (("serve", "no bundle"), "no bundle is not there; give a bundle of `export`, or a folder of bundles"),
    ],
)
def test_a_bundle_that_is_not_there_is_named_as_such(command, words, message):
    status, log = command(*words)
    assert status == 2 and message in log, log


def test_a_training_on_no_prepared_folder_advises_a_command_that_can_be_pasted(command, tmp_path):
    status, log = command("train", dataset=tmp_path / "mit Leer zeichen")
    assert status == 2
    assert "no prepared data in" in log
    assert f"-m data_prep prepare LOG '{tmp_path / 'mit Leer zeichen'}' --config configs/auto.yaml" in log
