"""From a run's settings to what its tables have to know; no MindSpore, as servers of rows need it too."""

from __future__ import annotations

from collections.abc import Callable

from app.config import Config
from app.schedules import LearningRate, LearningRates
from app.tables.interface import DEEP, WIDE, TablesSpec
from data_prep.schema import Schema


def table_spec(config: Config, schema: Schema, field_names: tuple[str, ...]) -> TablesSpec:
    """The tables' spec for the looked-up fields `field_names`."""
    return TablesSpec(
        vocabulary_size=schema.vocabulary_size,
        embedding_dim=config.model.embedding_dim,
        field_names=field_names,
        seed=config.train.seed,
        initial_scale=config.model.initial_scale,
        l2_coef=config.loss.l2_coef,
        wide_optimizer=config.wide_optimizer,
        deep_optimizer=config.deep_optimizer,
        wide_l2_coef=config.loss.wide_l2_coef,
        clip_value=config.loss.row_clip_value,
    )


def learning_rates(config: Config) -> LearningRates:
    """The three groups' learning rates as the settings have them."""
    options = {"wide": config.wide_optimizer, "deep": config.deep_optimizer, "tower": config.tower_optimizer}
    return LearningRates({group: LearningRate(o.learning_rate, o.schedule) for group, o in options.items()})


def table_learning_rates(rates: LearningRates) -> dict[str, Callable[[int], float]]:
    """What the tables need of them."""
    return {table: rates.groups[table] for table in (WIDE, DEEP)}
