"""Layers recomputed in the backward pass: the same bits as layers whose values are kept."""

import numpy as np
import pytest

from app.config.device import GRAPH
from app.config.parallel import recomputed_runs

pytestmark = pytest.mark.slow
LAYERS = "model.hidden_widths=[8, 8, 4, 4]"
MODELS = {
    "native kernels": (),
    "dropout": ("model.dropout=0.3",),
    "operators": ("model.activation=gelu", "model.dropout=0.3"),
}


def train(make_parts, make_schema, random_batch, *settings):
    schema, rng = make_schema(), np.random.default_rng(2)
    parts = make_parts("reference", schema, "train.batch_size=16", LAYERS, *settings)
    batches = [random_batch(schema, 16, rng) for _ in range(3)]
    losses = [parts.step(batch, parts.step.prepare(batch)) for batch in batches]
    return losses, parts.state(), parts.step.score(batches[0], parts.step.prepare(batches[0]))


@pytest.mark.parametrize("model", MODELS)
def test_the_same_bits(make_parts, make_schema, random_batch, model, monkeypatch):
    monkeypatch.setenv(GRAPH, "1")
    expected = train(make_parts, make_schema, random_batch, *MODELS[model])
    recompute = "parallel.recompute=[matrix_3, 'matrix_0:matrix_1']"
    found = train(make_parts, make_schema, random_batch, *MODELS[model], recompute)
    assert found[0] == expected[0]
    for name, array in expected[1].dense.items():
        np.testing.assert_array_equal(found[1].dense[name], array, err_msg=name)
    for table, rows in expected[1].tables.items():
        np.testing.assert_array_equal(found[1].tables[table].arrays["rows"], rows.arrays["rows"])
    np.testing.assert_array_equal(found[2], expected[2])


@pytest.mark.parametrize(
    ("entries", "num_hidden", "runs"),
    [
        ((), 4, ()),
        (("all",), 4, ((0, 2), (2, 4))),
        (("all",), 5, ((0, 3), (3, 5))),
        (("all",), 1, ((0, 1),)),
        (("matrix_2", "matrix_0:matrix_1"), 4, ((0, 2), (2, 3))),
    ],
)
def test_runs_of_layers(entries, num_hidden, runs):
    assert recomputed_runs(entries, num_hidden) == runs


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (("matrix_2",), "no hidden layer 'matrix_2'; they are matrix_0, matrix_1"),
        (("matrix_0:matrix_5",), "no hidden layer 'matrix_5'"),
        (("matrix_1:matrix_0",), "ends before it begins"),
        (("matrix_0:matrix_1", "matrix_1"), "matrix_1 is named twice"),
        (("all", "matrix_0"), "all stands alone"),
    ],
)
def test_what_is_no_run_is_refused(entries, message):
    with pytest.raises(ValueError, match=message):
        recomputed_runs(entries, 2)
