"""benchmarks/accuracy/recipes.py: what it remembers of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy import recipes


def test_figures_are_remembered_by_the_recipes_text_and_its_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
