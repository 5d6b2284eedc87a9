"""Trainings on rows of different weights against a NumPy model of the same loss, and what the logs say of them."""

import dataclasses
import json
import re

import numpy as np
import pytest

from app.__main__ import main
from app.config.device import GRAPH
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.batches import mean_training_weight, read_batches, training_order
from data_prep.prepared.schema import read_schema

# The wide part alone learns: a logistic regression by gradient descent.
WIDE_ALONE = (
    "model.deep_fields=[]",
    "tower_optimizer={name: sgd, learning_rate: 1e-12}",
    "wide_optimizer={name: sgd, learning_rate: 0.5}",
    "train.epochs=3",
    "train.batch_size=7",
    "train.log_every_steps=1",
)


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    """Clicks of weight 1, others of weights around 20, some of weight 0, and some rows without a label."""
    rng, folder = np.random.default_rng(2), tmp_path_factory.mktemp("weighted")
    clicks, sites = rng.random(300) < 0.5, rng.integers(0, 6, 300)
    weights = np.where(clicks, 1, rng.choice([0, 10, 30], 300)).tolist()
    labels = np.where(rng.random(300) < 0.1, "", clicks.astype(int)).tolist()
    lines = (f"{label},{weight},s{site}" for label, weight, site in zip(labels, weights, sites, strict=True))
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    log_format = LogFormat({"click": "label", "w": "weight", "site": "string"}, ",", label="optional")
    prepare(folder / "log.csv", folder / "prepared", PrepareOptions(data=log_format, min_count=1, workers=1))
    return folder / "prepared"


def losses_in_numpy(folder, schema, rate=0.5, epochs=3, batch_size=7, seed=1):
    """Return the loss of each step of the logistic regression.

    Gradient descent on Σ weight · loss / (rows · mean weight) over the rows of a batch that have a weight.
    """
    of_id, bias, losses = np.zeros(schema.vocabulary_size), 0.0, []
    weights = np.concatenate(
        [batch.weights for batch in read_batches(folder, schema, "train", training_order(schema, 1, 1), 7)]
    )
    mean = weights[weights > 0].mean()
    for epoch in range(1, epochs + 1):
        for batch in read_batches(folder, schema, "train", training_order(schema, seed, epoch), batch_size):
            counts = batch.weights > 0
            ids, labels = batch.ids[counts, 0], batch.labels[counts]
            factors = batch.weights[counts] / max(counts.sum(), 1) / mean
            logits = of_id[ids] + bias
            losses.append(factors @ (np.logaddexp(0, logits) - labels * logits))
            gradients = factors * (1 / (1 + np.exp(-logits)) - labels)
            np.subtract.at(of_id, ids, rate * gradients)
            bias -= rate * gradients.sum()
    return losses


@pytest.mark.parametrize("tower", ["native", "graph"])
def test_a_weighted_training_descends_as_the_numpy_model(run_here, project, weighted, tmp_path, tower, monkeypatch):
    if tower == "graph":
        monkeypatch.setenv(GRAPH, "1")
    words = ["train", "--config", project / "configs" / "tiny.yaml", "--dataset", weighted, *WIDE_ALONE]
    run_here(main, *words)
    lines = (tmp_path / "device_0" / "loss.log").read_text()
    found = [float(loss) for loss in re.findall(r"wide_loss is ([^,]+)", lines)]
    np.testing.assert_allclose(found, losses_in_numpy(weighted, read_schema(weighted)), rtol=1e-4, atol=1e-6)
    assert min([line.get("samples_per_second", 1) for line in metrics_of(tmp_path / "device_0")]) > 0


def metrics_of(run):
    return list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines()))


def test_a_folder_of_an_earlier_release_has_its_weights_counted(weighted, tmp_path, caplog):
    caplog.set_level("INFO")
    schema = read_schema(weighted)
    train = schema.splits["train"]
    assert (mean_training_weight(weighted, schema), caplog.text) == (train.mean_weight, "")
    older = dataclasses.replace(train, mean_weight=0.0, weightless=0)
    schema = dataclasses.replace(schema, splits={**schema.splits, "train": older})
    assert mean_training_weight(weighted, schema) == pytest.approx(train.mean_weight)
    assert "was prepared by an earlier release" in caplog.text


def test_an_interval_without_weight_spoils_no_report(run_here, project, tmp_path):
    """The first rows have weight 0, and each is an interval. A run of an earlier release noted a speed of 0 there."""
    lines = (f"{row % 2},{int(row % 40 == 0)},s{row % 3}" for row in range(400))
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    log_format = LogFormat({"click": "label", "w": "weight", "site": "string"}, ",")
    prepare(tmp_path / "log.csv", tmp_path / "prepared", PrepareOptions(data=log_format, min_count=1, workers=1))
    words = ["--config", project / "configs" / "tiny.yaml", "--dataset", "prepared", "eval.metric=log_loss"]
    run_here(main, "train", *words, "train.log_every_steps=1", "train.batch_size=4", "train.steps=80")
    steps = [line for line in metrics_of(tmp_path / "device_0") if "samples_per_second" in line]
    assert min(line["samples_per_second"] for line in steps) > 0
    text = (tmp_path / "device_0" / "metrics.jsonl").read_text()
    (tmp_path / "device_0" / "metrics.jsonl").write_text(
        re.sub(r'("samples_per_second": )[^,]+', r"\g<1>0.0", text, count=20)
    )
    run_here(main, "report", "device_0")
    run_here(main, "evaluate", "--split", "valid")
