"""benchmarks/accuracy/recipes.py: rows whose values were all seen often, and runs that are remembered."""

import numpy as np
import pytest

from benchmarks.accuracy import recipes
from benchmarks.accuracy.recipes import seen_often, training_counts
from benchmarks.harness.commands import read_rows
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.sources.synthetic import synthesize


def test_figures_are_remembered_by_the_recipes_text_and_its_changes(tmp_path, monkeypatch):
    recipe = tmp_path / "many_rows.yaml"
    monkeypatch.setattr(recipes, "recipe_file", lambda name: recipe)
    recipe.write_text("train: {epochs: 3}\n", "utf-8")
    many = tuple(f"section.a_setting_with_a_long_name_{number}=[256, 128]" for number in range(20))
    first = recipes.memory(tmp_path, "500k", "many_rows", many)
    assert recipes.remembered(first, lambda: {"auc": 0.75}) == {"auc": 0.75}
    assert recipes.remembered(first, lambda: pytest.fail("what was run is run again")) == {"auc": 0.75}
    assert recipes.memory(tmp_path, "500k", "many_rows", many[1:]) != first
    recipe.write_text("train: {epochs: 4}\n", "utf-8")
    assert recipes.memory(tmp_path, "500k", "many_rows", many) != first


def test_counts_are_those_of_the_training_rows(tmp_path):
    log = synthesize(tmp_path / "log.txt", 2000, seed=1, workers=1).log_path
    schema = prepare(log, tmp_path / "prepared", PrepareOptions(min_count=2, workers=1))
    counts = training_counts(tmp_path / "prepared", schema)

    ids = read_rows(tmp_path / "prepared", schema, "train").ids
    own = ids.ravel()[
        ids.ravel() >= schema.num_numeric + schema.num_categorical
    ]  # neither numeric nor out of vocabulary
    assert np.array_equal(np.bincount(own, minlength=schema.vocabulary_size), counts)


def test_one_rare_value_makes_a_row_rare():
    counts = np.array([0, 19, 20, 500])
    assert seen_often(np.array([[2, 3], [3, 1], [0, 3]]), counts, least=20).tolist() == [True, False, False]


def test_a_test_set_without_rows_leaves_the_others_their_spread():
    figures = {"all": {"auc": 0.75, "log_loss": 0.5}, "seen often": dict.fromkeys(("auc", "log_loss"), float("nan"))}
    assert "all auc 0.7500 ± 0.0000" in recipes.spread("two seeds", [figures, figures])
