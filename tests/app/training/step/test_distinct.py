"""The first layer by distinct rows: whole steps are those of the direct layer, up to the order of sums."""

import dataclasses
import logging

import numpy as np
import pytest

from app.tables.interface import DEEP, WIDE
from tests.app.tables.tables_of_spec import load_model

WIDTHS = "model.hidden_widths=[20, 8]"  # no multiple of a vector's width


def ids_of(kind, schema, num_rows, rng):
    """Ids [B, C], each within any field, as of a shared vocabulary."""
    size = (num_rows, schema.num_categorical)
    if kind == "all the same":
        return np.full(size, 7)
    if kind == "none twice":
        return rng.permutation(np.arange(3, 3 + num_rows * schema.num_categorical)).reshape(size)
    return 3 + (rng.random(size) ** 3 * (schema.vocabulary_size - 3)).astype(np.int64)


def take_step(parts, batch):
    return dataclasses.astuple(parts.step(batch, parts.step.prepare(batch)))


def set_most_distinct(parts, share):
    """Share of distinct rows up to which a field is multiplied by distinct rows: -1 for none of them."""
    parts.step.rows._most_distinct = share


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("native", ("model.dropout=0.5",)),
        ("reference", ("model.activation=tanh", "model.batch_norm=true")),  # of MindSpore's operators
    ],
)
def test_a_step_is_the_direct_layer_s(backend, options, make_parts, make_schema, random_batch):
    """Losses to 1e-6; all that a step changes, to 1e-5 of the largest change of its array."""
    schema = make_schema(vocabulary_size=200)
    settings = ("train.batch_size=48", "model.embedding_dim=5", "model.initial_row_scale=0.3", WIDTHS, *options)
    plain = ("tower_optimizer.name=sgd", "deep_optimizer.name=sgd", "wide_optimizer.name=sgd")  # changes are gradients
    settings += (*plain, "train.ema_decay=0.8")
    direct, distinct = (
        make_parts(backend, schema, f"model.first_layer={way}", *settings) for way in ("direct", "distinct")
    )
    rng = np.random.default_rng(2)
    for num_rows, kind, share in [(48, "some", 1), (31, "some", 0.4), (48, "none twice", 1), (48, "all the same", 1),
                                  (20, "all the same", -1), (1, "some", 1)]:  # fmt: skip
        batch = random_batch(schema, num_rows, rng)
        batch = dataclasses.replace(batch, ids=ids_of(kind, schema, num_rows, rng).astype(schema.ids_dtype))
        before = direct.state()
        load_model(distinct, before, 0)
        load_model(direct, before, 0)
        set_most_distinct(distinct, share)
        scores = [parts.step.score(batch, parts.step.prepare(batch)) for parts in (direct, distinct)]
        np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=1e-6 * max(1, np.abs(scores[0]).max()))
        losses = [take_step(parts, batch) for parts in (direct, distinct)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-6)
        assert_same_changes(before, direct.state(), distinct.state())
    for _ in range(3):
        batch = random_batch(schema, 48, rng)
        losses = [take_step(parts, batch) for parts in (direct, distinct)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    scores = []
    for parts in (direct, distinct):
        with parts.optimizers.means_as_weights():
            scores.append(parts.step.score(batch, parts.step.prepare(batch)))
    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=1e-5 * max(1, np.abs(scores[0]).max()))


def assert_same_changes(before, expected, found):
    pairs = {name: (found.dense[name], array, before.dense[name]) for name, array in expected.dense.items()}
    for table in (WIDE, DEEP):
        np.testing.assert_array_equal(found.tables[table].row_ids, expected.tables[table].row_ids)
        pairs[table] = (*(s.tables[table].arrays["rows"] for s in (found, expected)), 0)
    for name, (array, wanted, old) in pairs.items():
        tolerance = 1e-5 * np.abs(wanted - old).max(initial=0) + 1e-7 * np.abs(wanted).max(initial=0)
        np.testing.assert_allclose(array, wanted, rtol=0, atol=tolerance, err_msg=name)


def test_a_run_compiles_three_graphs_at_most(make_parts, make_schema, random_batch, caplog):
    schema, rng = make_schema(vocabulary_size=5000), np.random.default_rng(3)
    parts = make_parts("reference", schema, "model.first_layer=distinct", "train.batch_size=600")
    rows, capacities = parts.step.rows, []
    with caplog.at_level(logging.INFO):
        for num_rows, kind in [(600, "all the same"), (200, "some"), (600, "none twice"), (300, "some"), (9, "some")]:
            batch = random_batch(schema, num_rows, rng)
            batch = dataclasses.replace(batch, ids=ids_of(kind, schema, num_rows, rng))
            unique = rows.prepare(batch)
            capacities.append(len(rows.inputs(unique, rows.lookup(unique))[0]))
    assert capacities == [*sorted(set(capacities[:3])), capacities[1], capacities[0]]
    assert capacities[2] == 600 * schema.num_categorical
    assert sum("is compiled" in record.message for record in caplog.records) == 3


def test_a_bad_id_is_named(make_parts, make_schema, random_batch, changed):
    schema, rng = make_schema(), np.random.default_rng(1)
    parts = make_parts("reference", schema, "model.first_layer=distinct", "train.batch_size=16")
    batch = changed(random_batch(schema, 16, rng), "ids", (3, 2), 60)
    with pytest.raises(ValueError, match=r"batch row 3, field C3: id 60 is outside 0 … 59"):
        parts.step.prepare(batch)
