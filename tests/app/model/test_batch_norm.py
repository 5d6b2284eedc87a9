"""Batch normalization: the batch's statistics in training, the running ones in scoring, filling rows left out."""

import dataclasses

import numpy as np
import pytest

from app.model.dense_layer import EPSILON
from app.model.wide_deep import hidden_layers
from data_prep.prepared.schema import Split
from tests.app.model.tensors import take_step
from tests.app.tables.tables_of_spec import load_model

SIZES = ("train.batch_size=16", "model.hidden_widths=[6, 5]", "model.batch_norm=true", "model.initial_row_scale=0.5")


@pytest.fixture(scope="module")
def trained(make_parts, make_schema, random_batch):
    """Parts after two steps, with a short batch and the state to go back to."""
    schema, rng = make_schema(), np.random.default_rng(1)
    parts = make_parts("reference", schema, *SIZES)
    for _ in range(2):
        take_step(parts, random_batch(schema, 16, rng))
    return parts, random_batch(schema, 11, rng), parts.state()


@pytest.fixture
def ready(trained):
    parts, batch, state = trained
    load_model(parts, state, 2)
    return parts, batch


def towers_in_numpy(parts, batch, statistics):
    """Logits [n] in float64, and each layer's mean and variance; `statistics` gives those to normalize with."""
    p = {name: array.astype(np.float64) for name, array in parts.state().dense.items()}
    rows = parts.step.tables.lookup(parts.step.prepare(batch))
    inputs = (batch.numeric[:, :, None] * p["tower.numeric_rows"]).reshape(batch.num_rows, -1)
    hidden = np.concatenate([inputs, rows.deep], axis=1)
    matrices = [np.concatenate([p["tower.numeric_matrix"].reshape(inputs.shape[1], -1), p["tower.matrix_0"]])]
    matrices += [p["tower.matrix_1"], p["tower.matrix_2"]]
    found = []
    for i in range(2):
        sums = hidden @ matrices[i] + p[f"tower.bias_{i}"]
        sums += 0 if i else batch.vectors @ p["tower.vector_matrix"]
        found.append(of_the_batch(p, i, sums, batch.weights))
        mean, variance = statistics(p, i, sums, batch.weights)
        normal = (sums - mean) / np.sqrt(variance + EPSILON)
        hidden = np.maximum(normal * p[f"tower.norm_scale_{i}"] + p[f"tower.norm_shift_{i}"], 0)
    wide = rows.wide + batch.numeric @ p["wide.numeric_weight"][:, 0] + p["wide.bias"]
    return wide + (hidden @ matrices[2])[:, 0], found


def of_the_batch(p, i, sums, weights):
    mean = np.average(sums, 0, weights)
    return mean, np.average(np.square(sums - mean), 0, weights)


def running(p, i, sums, weights):
    return p[f"tower.running_mean_{i}"], p[f"tower.running_variance_{i}"]


@pytest.mark.parametrize("num_rows", [1, 3, 16])
@pytest.mark.parametrize("has_weights", [False, True])
def test_a_batch_normalizes_with_its_rows_and_counts_by_them(ready, make_schema, random_batch, num_rows, has_weights):
    """The running statistics move by 0.1 · rows / 16, so one row, which has no variance, hardly changes them."""
    parts, rng = ready[0], np.random.default_rng(num_rows)
    batch, weights = random_batch(make_schema(), num_rows, rng), np.ones(num_rows)
    if has_weights:
        weights = rng.choice(np.float32([0.5, 1, 20]), num_rows)
        batch = dataclasses.replace(batch, weights=weights, mean_weight=3.0)
    logits, found = towers_in_numpy(parts, batch, of_the_batch)
    expected = weights @ (np.logaddexp(0, logits) - batch.labels * logits) / num_rows / batch.mean_weight
    before = parts.state().dense
    assert take_step(parts, batch).wide_loss == pytest.approx(expected, rel=1e-4)
    after = parts.state().dense
    for i, statistics in enumerate(found):
        for name, value in zip((f"tower.running_mean_{i}", f"tower.running_variance_{i}"), statistics, strict=True):
            moved = before[name] + 0.1 * num_rows / 16 * (value - before[name])
            np.testing.assert_allclose(after[name], moved, rtol=1e-4, atol=1e-6)
        assert num_rows == 1 or (after[f"tower.norm_scale_{i}"] != before[f"tower.norm_scale_{i}"]).any()


def test_a_full_batch_is_one_of_the_data_s_share(tiny_config, make_schema):
    """Where half of the rows count, eight of sixteen are a full batch."""
    schema = dataclasses.replace(make_schema(), splits={"train": Split(100, 9, (), unlabelled=50)})
    assert [layer.norm.full_rows for layer in hidden_layers(tiny_config(*SIZES), schema)] == [8, 8]


def test_a_batch_without_weight_leaves_the_running_statistics(ready, make_schema, random_batch):
    parts, batch = ready
    before = parts.state().dense
    take_step(parts, random_batch(make_schema(), 0, np.random.default_rng(1)))
    after = parts.state().dense
    assert (after["tower.matrix_0"] != before["tower.matrix_0"]).any()  # Adam's momentum
    for name in parts.model.named_statistics():
        np.testing.assert_array_equal(after[name], before[name])
    take_step(parts, batch)
    assert (parts.state().dense["tower.running_mean_0"] != before["tower.running_mean_0"]).any()


def test_scoring_normalizes_with_the_running_statistics_and_changes_nothing(ready, assert_same_bits):
    parts, batch = ready
    before = parts.state()
    scores = parts.step.score(batch, parts.step.prepare(batch))
    np.testing.assert_allclose(scores, towers_in_numpy(parts, batch, running)[0], rtol=1e-4, atol=1e-5)
    assert_same_bits(parts.state(), before)


def test_a_refused_step_leaves_the_statistics(ready, changed, assert_same_bits):
    parts, batch = ready
    before = parts.state()
    with pytest.raises(FloatingPointError):
        take_step(parts, changed(batch, "numeric", (3, 1), np.nan))
    assert_same_bits(parts.state(), before)


def test_training_from_a_saved_state_is_as_without_a_stop(ready, make_parts, make_schema, assert_same_bits):
    parts, batch = ready
    resumed = make_parts("reference", make_schema(), *SIZES)
    load_model(resumed, parts.state(), 2)
    for _ in range(2):
        assert dataclasses.astuple(take_step(resumed, batch)) == dataclasses.astuple(take_step(parts, batch))
    assert_same_bits(resumed.state(), parts.state())
