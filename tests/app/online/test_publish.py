"""Candidates that are not published, and the rows by which they are compared."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from app.online.publish import LAST_PARTS, SAMPLE_ROWS, Samples, served_logits, why_worse
from data_prep.options.log_format import LogFormat
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import CategoricalField, NumericField, VectorField


def rows_of(num_rows, weights=None, first=0):
    rng = np.random.default_rng(num_rows)
    ids = np.arange(first, first + num_rows, dtype=np.int32)[:, None]
    labels = (rng.random(num_rows) < 0.3).astype(np.float32)
    return Examples(ids, rng.normal(size=(num_rows, 2)).astype(np.float32), labels, weights)


@pytest.mark.parametrize(
    ("shift", "num_rows", "is_worse"), [(0.0, 5000, False), (0.05, 5000, False), (2.0, 5000, True), (0.6, 20, False)]
)
def test_a_candidate_is_withheld_that_is_worse_beyond_bound_and_chance(shift, num_rows, is_worse):
    rows = rows_of(num_rows)
    rng = np.random.default_rng(1)
    served = np.where(rows.labels == 1, 0.5, -1.5).astype(np.float32) + rng.normal(0, 1, num_rows).astype(np.float32)
    reason = why_worse(served + shift * rng.choice([-1, 1], num_rows).astype(np.float32), served, rows, 0.02)
    assert bool(reason) == is_worse
    assert not why_worse(served, served + np.float32(shift), rows, 0.02)
    losses = [np.mean(np.log1p(np.exp(each)) - rows.labels * each) for each in (served + np.float32(4), served)]
    reason = why_worse(served + np.float32(4), served, rows, 0.02)
    assert f"is {losses[0]:.4f}, that of the served model {losses[1]:.4f}: worse by more than 2%" in reason


def test_the_loss_of_a_single_row_may_be_chance():
    assert not why_worse(np.float32([3]), np.float32([-3]), rows_of(1), 0.02)


def test_rows_of_no_weight_judge_nothing():
    rows = rows_of(100, np.r_[np.ones(50), np.zeros(50)].astype(np.float32))
    good = np.where(rows.labels == 1, 3.0, -3.0).astype(np.float32)
    bad_behind = np.r_[good[:50], -good[50:]]
    assert not why_worse(bad_behind, good, rows, 0.02)
    assert why_worse(bad_behind, good, rows_of(100), 0.02)


def test_the_field_that_changed_most_is_found_in_the_rows_of_files_that_are_there(tmp_path):
    schema = SimpleNamespace(
        categorical=[CategoricalField("C1", (2, 3), ((3, 600),))],
        numeric=[NumericField(name, name, "log1p", {}) for name in ("I1", "I2")],
        num_numeric=2,
        vectors=(),
        log_format=LogFormat(),
    )
    samples, before = Samples(tmp_path), rows_of(2_000)
    without_time, with_time = LogFormat(), LogFormat(columns={"label": "label", "I2": "integer", "at": "timestamp"})
    assert samples.shift(["gone.npz"], before, schema, without_time) == {}
    names = [samples.add(1, before, 0), "gone.npz"]
    assert samples.shift(names, before, schema, without_time)["fields_psi"] == 0
    numeric = before.numeric.copy()
    numeric[:, 1] *= 50
    changed = Examples(before.ids, numeric, before.labels)
    assert samples.shift(names, changed, schema, without_time)["shifted_field"] == "I2"
    changed = replace(changed, ids=np.full_like(before.ids, 3))
    assert samples.shift(names, changed, schema, without_time)["shifted_field"] == "C1"
    for name in ("at_weekday", "C2*at_hour"):
        schema.categorical = [replace(schema.categorical[0], name=name)]
        assert samples.shift(names, changed, schema, with_time)["shifted_field"] == "I2"
    schema.numeric, schema.num_numeric = [], 0
    only_time = replace(changed, numeric=numeric[:, :0])
    assert samples.shift([samples.add(2, only_time, 0)], only_time, schema, with_time) == {}


def test_samples_are_rows_of_the_last_parts(tmp_path):
    samples = Samples(tmp_path / "samples")
    large, weighted = rows_of(2 * SAMPLE_ROWS + 1), rows_of(10, np.r_[np.zeros(3), np.ones(7)].astype(np.float32), 7)
    names = [samples.add(step, rows, keep=2) for step, rows in ((3, large), (6, weighted))]
    found = Samples(tmp_path / "samples").read(names)
    assert found.ids[:, 0].tolist() == [*range(0, 2 * SAMPLE_ROWS + 1, 3), *range(10, 17)]
    np.testing.assert_array_equal(found.numeric[-7:], weighted.numeric[3:])
    np.testing.assert_array_equal(found.labels[-7:], weighted.labels[3:])
    assert samples.add(6, weighted, keep=2) == names[1]  # after a kill
    for step in range(7, 20):
        samples.add(step, weighted, keep=2)
    assert len(list((tmp_path / "samples").iterdir())) == 2 + LAST_PARTS
    assert len(samples.read([names[0], "step-00000019.npz"])) == 7  # the other is gone


def test_ids_that_the_served_model_lacks_are_out_of_its_vocabulary():
    fields = (CategoricalField("a", (0, 2), ((4, 6),)), CategoricalField("b", (2, 3), ((6, 8),), max_length=2))
    number = NumericField("n", "n", "log1p", {})
    ours = SimpleNamespace(categorical=fields, numeric=(number,), vectors=())
    seen = []
    served = SimpleNamespace(
        schema=SimpleNamespace(categorical=fields, numeric=(number,), vectors=(), vocabulary_size=8),
        logits_of_encoded=lambda rows: seen.append(rows.ids.tolist()) or rows.ids[:, 0],
    )
    rows = Examples(np.array([[4, 6, -1], [9, 8, 7], [1, 2, 12]], np.int32), np.zeros((3, 1)), np.zeros(3))
    assert served_logits(served, rows, ours) is not None
    assert seen == [[[4, 6, -1], [0, 2, 7], [1, 2, 2]]]
    served.schema.numeric = ()
    assert served_logits(served, rows, ours) is None
    served.schema.numeric, served.schema.vectors = (number,), (VectorField("v", 1, "none", (0,), (1,)),)
    assert served_logits(served, rows, ours) is None
