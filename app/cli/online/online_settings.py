"""Derive the settings of an online run from those of the run that it continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import PARTIAL
from app.config.config import Config
from app.config.optimizer_settings import AdamOptions, LazyAdamOptions
from app.config.run_settings import CheckpointOptions
from app.config.schedules import ConstantSchedule
from app.run.older import read_config
from app.training.learning_rates import learning_rates
from common.yaml_settings import override

# Minimum learning rate as a share of the rate that the run began with. A schedule that ends near 0 suits the end of a
# training, but an online run has no end. On a drifting log, 0.3 gained twice as much AUC as 0.1 (docs/online.md).
RATE_FLOOR = 0.3
KEPT, FULL_EVERY = 14, 24  # Number of kept checkpoints, and number of checkpoints between full ones.
ADMISSION_MIB = 64
CHECKPOINTS = "checkpoints"  # Folder of the checkpoints within the run's folder.


def online_config(source: Checkpoint, words: Sequence[str] = ()) -> tuple[Config, list[str]]:
    """Return the settings of an online run that continues from a checkpoint, changed by `words`.

    Return also lines that explain the settings. Raise ValueError if the run cannot be continued online.
    """
    manifest = source.manifest
    trained = read_config(manifest.config, where=str(source.path))
    if not trained.model.fold_numeric:
        raise ValueError(
            "the run has model.fold_numeric=false, whose numeric fields are rows of MindSpore's own tables; train one "
            "with model.fold_numeric=true to go on online"
        )
    optimizers, lines = _constant_optimizers(trained, manifest)
    has_means = trained.train.ema_decay > 0
    if has_means:
        lines.append(
            "it goes on from the running means, without them and without the optimizers' state, of other weights"
        )
    train = replace(
        trained.train,
        auto=False,
        epochs=1,
        steps=0,
        ema_decay=0.0,
        resume="auto",
        profile=False,
        time_limit=0.0,
        init_from=str(source.path.resolve()),
        init_take="all",
        init_optimizer=not has_means,
        init_dataset="",
    )
    config = replace(
        trained,
        **optimizers,
        train=train,
        eval=replace(trained.eval, batch_size=0, every_steps=0, patience=0),
        checkpoint=CheckpointOptions(keep_last=KEPT, keep_best=0, background=False, delta=True, full_every=FULL_EVERY),
    )
    return override(config, words), lines


def _constant_optimizers(trained: Config, manifest: Manifest) -> tuple[dict[str, Any], list[str]]:
    """Return the optimizers by section with constant rates, those that the run ended with, and lines that
    explain them.
    """
    lines = []
    rates = learning_rates(trained)
    rates.load_state(manifest.schedules)
    at_end = rates.at(max(manifest.step, 1))
    optimizers: dict[str, Any] = {}
    for group, options in trained.optimizers.items():
        rate = max(at_end[group], RATE_FLOOR * options.learning_rate)
        why = (
            "as the run ended"
            if rate == at_end[group]
            else f"{RATE_FLOOR:g} of its first: it ended at {at_end[group]:g}"
        )
        lines.append(f"{group} learning rate {rate:g}, constant ({why})")
        optimizers[f"{group}_optimizer"] = replace(options, learning_rate=rate, schedule=ConstantSchedule())
    deep = optimizers["deep_optimizer"]
    if isinstance(deep, AdamOptions):
        alike = {name: getattr(deep, name) for name in ("learning_rate", "schedule", "beta1", "beta2", "epsilon")}
        optimizers["deep_optimizer"] = LazyAdamOptions(**alike)
        lines.append(
            "the deep table's adam goes on as lazy_adam with its moments: a step changes the rows of its batch alone, "
            "and L2 pulls those"
        )
    return optimizers, lines


def is_begun(work: Path) -> bool:
    """Return True if the online run in `work` has a checkpoint, even a damaged one. Unfinished checkpoints do not
    count.
    """
    return any(path.suffix != PARTIAL for path in (work / CHECKPOINTS).glob("step-*"))
