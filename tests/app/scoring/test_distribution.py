"""Counts of rows, and how far apart two are."""

import dataclasses
import math

import numpy as np
import pytest

from app.scoring.bundle_model import BundleModel
from app.scoring.distribution import (
    _MOST_BY_CHANCE,
    CHANGE,
    NUMBER_BINS,
    VALUE_BINS,
    Distribution,
    held_out_rows,
    stability_index,
)
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import VectorField


@pytest.fixture
def rows(tiny_schema):
    """Draws rows by the vocabulary's ranks, some unknown; `unknown` is that share."""

    def draw(count, unknown, seed):
        generator = np.random.default_rng(seed)
        ids = np.empty((count, tiny_schema.num_categorical), np.int32)
        for place, field in enumerate(tiny_schema.categorical):
            first, end = field.id_ranges[0]
            ids[:, place] = first + (generator.random(count) ** 2 * (end - first)).astype(np.int32)
            ids[generator.random(count) < unknown, place] = field.oov_ids[0]
        numeric = generator.standard_normal((count, tiny_schema.num_numeric)).astype(np.float32)
        return Examples(ids, numeric, np.zeros(count)), generator.standard_normal(count).astype(np.float32)

    return draw


@pytest.fixture
def bundle(tmp_path):
    """Makes a bundle in `tmp_path` of a schema and what is counted of its held-out rows, without a model."""

    def make(schema):
        model = BundleModel.__new__(BundleModel)
        model.folder, model.schema = tmp_path, schema
        return model

    return make


def test_equal_rows_do_not_drift_and_unseen_values_do(tiny_schema, rows, bundle, tmp_path):
    held_out, like, other = (Distribution(tiny_schema) for _ in range(3))
    held_out.add(*rows(20_000, 0.1, seed=1))
    like.add(*rows(20_000, 0.1, seed=2))
    other.add(*rows(20_000, 0.5, seed=3))
    held_out.write(tmp_path)
    read = held_out_rows(bundle(tiny_schema))
    assert (read.num_rows, len(held_out.names)) == (20_000, tiny_schema.num_categorical + tiny_schema.num_numeric)
    assert max(field["psi"] for field in like.drift_from(read)) < 0.02
    first, *_, last = other.drift_from(read)
    assert first["psi"] > 0.25
    assert (first["unseen"], first["unseen_there"]) == (pytest.approx(0.5, abs=0.02), pytest.approx(0.1, abs=0.02))
    assert (last["psi"] < 0.02, last["unseen"]) == (True, None)


@pytest.mark.parametrize("bins", [2, 5, 20, VALUE_BINS])
@pytest.mark.parametrize("num_held_out", [1_320, 10**6])
def test_chance_alone_stays_below_a_change(tiny_schema, bins, num_held_out):
    """Draw both sides from one distribution, with as few rows as have a PSI, and count how often it is an alert."""
    here, there = Distribution(tiny_schema), Distribution(tiny_schema)
    num_rows = math.ceil((VALUE_BINS - 1) / (_MOST_BY_CHANCE - (VALUE_BINS - 1) / num_held_out))
    for count, has_psi in ((1, False), (num_rows - 1, False), (num_rows, True)):
        here.values[:, 0] = here.numbers[:, 0] = count
        there.values[:, 0] = there.numbers[:, 0] = num_held_out
        fields = [field for field in here.drift_from(there) if field["unseen"] is not None]
        assert {field["psi"] is not None for field in fields} == {has_psi}
    generator = np.random.default_rng(bins)
    for shares in (np.ones(bins), 0.7 ** np.arange(bins), 1.0 / np.arange(1, bins + 1) ** 2, [50, *[1] * (bins - 1)]):
        drawn = [
            generator.multinomial(count, np.divide(shares, np.sum(shares)), 4_000) for count in (num_rows, num_held_out)
        ]
        assert np.quantile(stability_index(*drawn), 0.999) < CHANGE
        assert np.mean(stability_index(*drawn)) < 2 * _MOST_BY_CHANCE


def test_empty_places_of_lists_are_not_counted(tiny_schema):
    first, *others = tiny_schema.categorical
    schema = dataclasses.replace(tiny_schema, categorical=(dataclasses.replace(first, max_length=3), *others))
    counts = Distribution(schema)
    ids = np.array([[first.id_ranges[0][0], first.oov_ids[0], -1, *(field.oov_ids[0] for field in others)]])
    counts.add(Examples(ids, np.zeros((1, schema.num_numeric)), np.zeros(1)), np.zeros(1))
    assert counts.values[0].sum() == 2
    assert counts.values[0][0] == 1


def test_vectors_have_a_distance_and_a_share_missing(tiny_schema, bundle, tmp_path):
    """Two vectors; of the second, every fourth row has none, and its last component is constant."""
    fields = (VectorField("a", 2, "standardize", (5, 6), (2, 3)), VectorField("b", 3, "none", (1, 2, 0), (1, 0.5, 0)))
    schema = dataclasses.replace(tiny_schema, vectors=fields)
    held_out, served = Distribution(schema), Distribution(schema)
    for counts, shift in ((held_out, 0), (served, 3)):
        a = np.tile(np.float32([[1 + shift, -1 - shift, 0]]), (8, 1))
        b = np.tile(np.float32([[1, 2 + shift, 0, 0]]), (8, 1))
        b[::4] = [0, 0, 0, 1]
        zeros = np.zeros((8, schema.num_positions), np.int32), np.zeros((8, schema.num_numeric)), np.zeros(8)
        for part in (slice(3), slice(3, None)):
            rows = Examples(*zeros, vectors=np.concatenate([a, b], axis=1)).take(part)
            counts.add(rows, np.zeros(len(rows)))
    held_out.write(tmp_path)
    found = {each["field"]: each for each in served.drift_from(held_out_rows(bundle(schema))) if "distance" in each}
    names = ("distance", "missing", "distance_there", "missing_there")
    assert [found["a"][name] for name in names] == [4, 0, 1, 0]
    assert [found["b"][name] for name in names] == pytest.approx([math.sqrt(6**2 / 2), 0.25, 0, 0.25])
    assert [*found] == ["b", "a"]  # the one that changed most comes first


def test_a_bundle_without_counts_or_with_other_fields_has_none(tiny_schema, bundle, tmp_path):
    assert held_out_rows(bundle(tiny_schema)) is None
    Distribution(dataclasses.replace(tiny_schema, categorical=tiny_schema.categorical[1:])).write(tmp_path)
    assert held_out_rows(bundle(tiny_schema)) is None


def test_counts_without_numeric_columns_are_found(tiny_schema, bundle, tmp_path):
    schema = dataclasses.replace(tiny_schema, numeric=())
    Distribution(schema).write(tmp_path)
    assert held_out_rows(bundle(schema)).numbers.shape == (0, NUMBER_BINS)
