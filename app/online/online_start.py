"""Start an online run: determine its settings, and check that it can begin or resume.

An online run takes over the settings of the run whose model it starts from, except those that make no sense for a
training without end, such as schedules of the learning rate.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import best_or_newest
from app.checkpoint.write import PARTIAL
from app.config.config import CheckpointOptions, Config
from app.config.optimizer_settings import AdamOptions, ConstantSchedule, LazyAdamOptions
from app.online.online_options import KEPT, OnlineOptions
from app.run.decision import make_plan
from app.run.identity import read_config
from app.training.context import RunContext
from app.training.learning_rates import LearningRates
from app.training.loop import Trainer
from app.training.start import Launch, plan_launch
from app.training.warm_start.source import find_source
from common.packages import make_command
from common.yaml_settings import override
from data_prep.prepared.schema import SCHEMA_FILE, read_schema

log = logging.getLogger("app")

ANOTHER_WORK = "copy its folder again from a backup, or begin another run with another --work"
# Minimum learning rate of an online run, as a share of the rate with which the run that it starts from began. That
# run's schedule may have ended near 0, but an online run must go on learning. On a drifting log, 0.3 gained twice as
# much AUC as 0.1 (docs/online.md).
RATE_FLOOR = 0.3
CHECKPOINTS = "checkpoints"  # Name of the folder with the checkpoints in the run's folder.


def plan_online(
    work: Path, source: Path, dataset: Path | None, options: OnlineOptions, words: Sequence[str] = ()
) -> Launch:
    """Check the settings and data of the online run in the folder `work`, set MindSpore's environment variables, and
    return a `Launch`, which starts the training.

    `source` is the run or checkpoint whose model the online run begins with. `dataset` replaces the prepared folder
    that `source` was trained on. The settings `words` (`section.key=value`) replace those of `source`. Raise ValueError
    or FileNotFoundError for wrong input, or if the online run in `work` has begun and cannot be resumed.
    """
    resumes = is_begun(work)
    config, own_dataset = _resumed(work, source, words) if resumes else _new(source, words)
    if not any(word.startswith("checkpoint.keep_last=") for word in words):
        config = replace(config, checkpoint=replace(config.checkpoint, keep_last=options.keep))
    launch = plan_launch(config, dataset or own_dataset, work)
    if launch.backend == "stock":
        advice = f"build the native tables: {make_command('native')}"
        raise ValueError(f"online needs tables.backend=native or reference; {advice}")
    # `make_plan` checks every byte of the checkpoints. If no checkpoint is usable, a launch (start of the training)
    # would rename the run's folder and begin a new run. Raise an error instead.
    if resumes and config.train.resume == "auto":
        plan = make_plan(work, launch.config, launch.schema)
        if plan.kind == "new":
            reason = "; ".join([plan.reason, *plan.refused.values()])
            raise ValueError(f"the online run in {work} cannot be resumed: {reason}; {ANOTHER_WORK}")
    bounds = replace(options.bounds, rejected=launch.config.prepare.max_reject_fraction)
    return replace(launch, make_trainer=partial(_trainer, replace(options, bounds=bounds)))


def _trainer(options: OnlineOptions, context: RunContext, backend: str) -> Trainer:
    from app.online.online_trainer import OnlineTrainer

    return OnlineTrainer(context, backend, options)


def _new(run: Path, words: Sequence[str]) -> tuple[Config, Path]:
    """Return the settings of a new online run, and the prepared folder that it uses. `run` is the run or checkpoint
    whose model it begins with.
    """
    source = find_source(run)
    if isinstance(source, Path):
        raise ValueError(f"--from {source}: expected a run or a checkpoint of this program")
    config, lines = online_config(source, words)
    for line in lines:
        log.info("%s", line)
    return config, Path(source.manifest.dataset)


def _resumed(work: Path, run: Path, words: Sequence[str]) -> tuple[Config, Path]:
    """Return the settings and the prepared folder of the online run that has begun in `work`. The settings say that it
    must be resumed, because a new run would train on the same parts again.

    The settings come from the manifest of the newest checkpoint, which has a checksum, so a missing or damaged
    config.yaml does not matter. Raise ValueError if the run began from another model than `run`, and FileNotFoundError
    if no checkpoint's manifest can be read.
    """
    # `best_or_newest` returns the newest checkpoint here, because checkpoints of an online run store no metrics.
    newest = best_or_newest(work / CHECKPOINTS, "auc")
    if not newest.manifest.online:
        raise ValueError(f"{work} holds the run of a training, not an online run; give another --work")
    config = read_config(newest.manifest.config, where=str(newest.path))
    began_from = Path(config.train.init_from)
    if not began_from.is_relative_to(run.resolve()):
        raise ValueError(
            f"the online run in {work} began from {began_from}, not from {run}; give that, or another --work"
        )
    with_settings = override(config, words)
    resume: Literal["auto", "require"] = "auto" if "train.resume=auto" in words else "require"
    # The prepared folder of an online run lies in the run's folder. Use only its name, because the run's folder may
    # have been moved.
    dataset = work / Path(newest.manifest.dataset).name
    try:
        read_schema(dataset)
    # Replace the original error, whose message advises to prepare the data again: the ids that the online run has added
    # would be lost.
    except (OSError, ValueError):
        raise ValueError(f"{dataset / SCHEMA_FILE} is missing or damaged; {ANOTHER_WORK}") from None
    return replace(with_settings, train=replace(with_settings.train, resume=resume)), dataset


def online_config(source: Checkpoint, words: Sequence[str] = ()) -> tuple[Config, list[str]]:
    """Return the settings of an online run that begins with the model of the checkpoint `source`, and lines for the log
    that explain these settings. The words `section.key=value` in `words` change settings.

    Raise ValueError if the model cannot be trained online.
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
    )
    config = replace(
        trained,
        **optimizers,
        train=train,
        eval=replace(trained.eval, every_steps=0, patience=0),
        checkpoint=CheckpointOptions(keep_last=KEPT, keep_best=0, background=False, delta=True),
    )
    return override(config, words), lines


def _constant_optimizers(trained: Config, manifest: Manifest) -> tuple[dict[str, Any], list[str]]:
    """Return the optimizer settings of an online run by section, such as deep_optimizer, and lines of text that explain
    these settings.

    Learning rates are constant. Each rate is the one with which the trained run ended, but at least RATE_FLOOR times
    the rate with which that run began.
    """
    lines = []
    rates = LearningRates(trained.optimizers)
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
    """Return True if the folder `work` contains a checkpoint, even a damaged one. Checkpoints whose writing was
    interrupted do not count.
    """
    return any(path.suffix != PARTIAL for path in (work / CHECKPOINTS).glob("step-*"))
