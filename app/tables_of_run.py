"""From a run's settings to what its tables have to know; no MindSpore, as servers of rows need it too."""

from __future__ import annotations

from collections.abc import Callable

from app.checkpoint.manifest import Manifest
from app.config.config import Config
from app.config.optimizers import AdamOptions, DeepOptimizer, LazyAdamOptions
from app.run.older import read_config
from app.schedules import LearningRate, LearningRates
from app.tables.interface import DEEP, WIDE, TablesSpec
from app.tables.whole_table_adam import StepHistory
from data_prep.prepared.schema import Schema


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


def table_learning_rates(rates: LearningRates, deep_optimizer: DeepOptimizer) -> dict[str, Callable[[int], float]]:
    """What the tables need of them; `rates` may change later.

    Tables correct the bias of moments that were 0 before step 1. Where moments were taken over, the deep table's rate
    is such that the product is what Adam has after the steps before and these. (`adam`'s epsilon stays that of these
    steps alone: smaller at first, which shows in rows whose gradients are about as small.)
    """

    def deep_rate(step: int) -> float:
        rate, before = rates.groups[DEEP](step), rates.steps_before
        if before and isinstance(deep_optimizer, LazyAdamOptions | AdamOptions):
            rate *= deep_optimizer.correction(before + step) / deep_optimizer.correction(step)
        return rate

    return {WIDE: rates.groups[WIDE], DEEP: deep_rate}


def step_history(manifest: Manifest) -> StepHistory | None:
    """The steps that deep rows of a checkpoint may have missed; None where its optimizer lets rows miss none."""
    config = read_config(manifest.config, where="the checkpoint")
    optimizer = config.deep_optimizer
    if not isinstance(optimizer, AdamOptions):
        return None
    rates = learning_rates(config)
    rates.load_state(manifest.schedules)
    rate = table_learning_rates(rates, optimizer)[DEEP]
    return StepHistory.of_steps(optimizer, config.loss.l2_coef, rate, manifest.step)
