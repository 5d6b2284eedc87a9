"""Determine the settings of a training: the given ones and, with `train.auto`, those that follow from the prepared
folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from app.config.config import Config
from app.training.auto.by_rows import CrossEffects, describe_given, resolve_by_rows
from app.training.auto.crosses import CrossesChoice, find_cross_effects
from app.training.warm_start.source import source_settings
from data_prep.prepared.schema import read_schema


def settle(
    resolve: Callable[[Config], Config], dataset: Path, path: Path, dry: bool = False
) -> tuple[Config, CrossesChoice]:
    """Return the settings of a training in the run folder `path` on the prepared folder `dataset`. Return also the
    effects of crosses, which are fields that combine other fields.

    `resolve` is a function that takes default settings and returns them with the user's settings applied. The second
    value says how strong the effects of crosses on clicks are. It is measured only with `train.auto`, for data with
    crosses, if the run does not start from a trained model; otherwise it is the default. With `dry`, it is not measured
    either. The second value also has lines for the log about the choice. Raise ValueError for wrong settings, and
    ValueError or FileNotFoundError if the folder or the model to start from cannot be read.
    """
    config, choice = resolve(Config()), CrossesChoice()
    if not config.train.auto:
        return config, choice
    schema, source = read_schema(dataset), source_settings(config, path)

    def by_effects(effects: CrossEffects) -> Config:
        return resolve_by_rows(resolve, schema, source, effects)

    if source is None and any(field.cross for field in schema.categorical):
        choice = find_cross_effects(dataset, path, schema, by_effects, dry)
    config = by_effects(choice.effects)
    return config, replace(choice, given="" if source else describe_given(config, schema, choice.effects))
