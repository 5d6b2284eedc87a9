"""Evaluation from a checkpoint's folder alone."""

import dataclasses
import shutil

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import write_checkpoint
from app.run.identity import data_identity
from app.scoring.trained import trained_model
from app.scoring.trained.trained_model import evaluate, open_trained
from app.training.assemble import rows_for_device
from common import settings
from data_prep.prepared.batches import read_batches, written_order
from data_prep.prepared.data_files import write_schema
from data_prep.prepared.truth import best_possible


@pytest.fixture(scope="module", params=["reference", "stock, numeric fields looked up"])
def saved(request, make_parts, tiny_config, tiny_dataset, tiny_schema, tmp_path_factory):
    """A checkpoint after two steps, the parts it was made from, and their logits on the test rows."""
    backend, *unfolded = request.param.split(", ")
    overrides = (f"tables.backend={backend}", "train.batch_size=200", *(["model.fold_numeric=false"] * len(unfolded)))
    config = tiny_config(*overrides)
    parts = make_parts(backend, tiny_schema, *overrides)
    batches = list(read_batches(tiny_dataset, tiny_schema, "test", written_order(tiny_schema, "test"), 200))
    for batch in batches:
        parts.step(batch, parts.step.prepare(batch))
    manifest = Manifest(2, 1, 2, settings.as_dict(config), str(tiny_dataset), data_identity(tiny_schema), {})
    path = write_checkpoint(tmp_path_factory.mktemp("saved"), parts.state(), manifest)
    logits = np.concatenate([parts.step.score(batch, parts.step.prepare(batch)) for batch in batches])
    return path, logits, np.concatenate([batch.labels for batch in batches])


def evaluate_on(path, split, *words, dataset=None):
    return evaluate(open_trained(Checkpoint.open(path), dataset, words), split)


def test_a_checkpoint_is_evaluated_as_the_model_it_was_saved_from(saved):
    """Over every row, whatever backend trained it: scikit-learn on the model's own logits."""
    path, logits, labels = saved
    metrics = evaluate_on(path, "test").metrics
    assert metrics.rows == len(labels)
    assert metrics.auc == pytest.approx(roc_auc_score(labels, logits), abs=1e-4)  # a near tie may fall either way
    assert metrics.log_loss == pytest.approx(log_loss(labels, 1 / (1 + np.exp(-logits.astype(np.float64)))), abs=1e-6)


def test_rows_are_loaded_without_state_that_scores_do_not_need(saved, monkeypatch):
    path, loaded = saved[0], []

    def note(config, spec, *others):
        loaded.append(spec)
        return rows_for_device(config, spec, *others)

    monkeypatch.setattr(trained_model, "rows_for_device", note)
    evaluate_on(path, "test")
    assert loaded[0].row_bytes() == 4 * (1 + loaded[0].embedding_dim)


@pytest.fixture(scope="module")
def one_saved(make_parts, tiny_config, tiny_dataset, tiny_schema, tmp_path_factory):
    config = tiny_config("tables.backend=reference")
    manifest = Manifest(0, 1, 0, settings.as_dict(config), str(tiny_dataset), data_identity(tiny_schema), {})
    state = make_parts("reference", tiny_schema).state()
    return write_checkpoint(tmp_path_factory.mktemp("one"), state, manifest)


def test_the_best_possible_is_shown_beside(one_saved, tiny_dataset, tiny_log):
    evaluation = evaluate_on(one_saved, "valid")
    truth = tiny_log.with_name("log.txt.truth.parquet")
    assert evaluation.best == best_possible(truth, np.load(tiny_dataset / "row_numbers-valid.npy"))
    assert evaluate_on(one_saved, "train").best is None  # its rows were shuffled


def test_the_confidence_interval_is_around_the_value(one_saved):
    evaluation = evaluate_on(one_saved, "valid")
    low, high = evaluation.intervals["auc"]
    assert low < evaluation.metrics.auc < high
    assert evaluate_on(one_saved, "valid", "eval.bootstrap=0").intervals == {}


@pytest.fixture
def folder_with(tiny_dataset, tiny_schema, tmp_path):
    """A prepared folder whose schema says something else."""

    def make(**changes):
        folder = tmp_path / "prepared"
        shutil.copytree(tiny_dataset, folder)
        write_schema(dataclasses.replace(tiny_schema, **changes), folder)
        return folder

    return make


def test_a_moved_folder_is_accepted(one_saved, folder_with):
    assert evaluate_on(one_saved, "valid", dataset=folder_with()).metrics.rows > 0


def test_another_vocabulary_is_refused(one_saved, folder_with, tiny_schema):
    folder = folder_with(vocabulary_size=tiny_schema.vocabulary_size + 1)
    with pytest.raises(ValueError, match=r"inputs mean something else: vocabulary_size was \d+, is \d+; .*--dataset"):
        evaluate_on(one_saved, "valid", dataset=folder)


def test_numbers_transformed_in_another_way_are_refused(one_saved, folder_with, tiny_schema):
    """The ids would fit; the model would take x / max for log(1 + x)."""
    first = dataclasses.replace(tiny_schema.numeric[0], transform="max", parameters={"max": 9.0})
    folder = folder_with(numeric=(first, *tiny_schema.numeric[1:]))
    with pytest.raises(ValueError, match=r"inputs mean something else: numeric\.I1\.parameters\.max was None, is 9\.0"):
        evaluate_on(one_saved, "valid", dataset=folder)


def test_a_damaged_checkpoint_is_refused(one_saved, tmp_path):
    copy = tmp_path / one_saved.name
    shutil.copytree(one_saved, copy)
    (copy / "dense.safetensors").unlink()
    with pytest.raises(ValueError, match=r"dense\.safetensors is missing"):
        evaluate_on(copy, "valid")


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ("[32, 8]", r"another model: tower\.matrix_1 has shape \[32, 16\], expected \[32, 8\]"),
        ("[32, 16, 4]", r"another model: it lacks tower\.bias_2, tower\.matrix_3"),
    ],
)
def test_a_checkpoint_of_another_shape_names_the_array(one_saved, widths, message):
    with pytest.raises(ValueError, match=message):
        evaluate_on(one_saved, "valid", f"model.hidden_widths={widths}")
