"""The launch of an online run: a new one from the settings of a trained run, or one that resumes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from app.checkpoint.retention import best_or_newest
from app.config.config import Config
from app.online.online_settings import CHECKPOINTS, is_begun, online_config
from app.run.decision import make_plan
from app.run.older import read_config
from app.training.start import Launch, plan_launch
from app.training.warm_start.source import find_source
from common.yaml_settings import override
from data_prep.prepared.schema import SCHEMA_FILE, read_schema

log = logging.getLogger("app")

ANOTHER_WORK = "copy its folder again from a backup, or begin another run with another --work"


def plan_online(work: Path, source: Path, dataset: Path | None, keep: int, words: Sequence[str] = ()) -> Launch:
    """Check settings and data of the online run in the folder `work`, and set the environment of MindSpore.

    `source` is the run or checkpoint from which the online run begins, `dataset` a prepared folder in place of the one
    that it was trained on. `keep` checkpoints stay unless the settings `words` (`section.key=value`) say otherwise.
    Raise ValueError or FileNotFoundError, also if the online run has begun and cannot be resumed.
    """
    resumes = is_begun(work)
    config, own_dataset = _resumed(work, source, words) if resumes else _new(source, words)
    if not any(word.startswith("checkpoint.keep_last=") for word in words):
        config = replace(config, checkpoint=replace(config.checkpoint, keep_last=keep))
    launch = plan_launch(config, dataset or own_dataset, work)
    if launch.backend == "stock":
        raise ValueError("online needs tables.backend=native or reference; build the native tables: make native")
    # Check every byte of the checkpoints. Without a usable one, the launch would rename this run and begin a new one.
    if resumes and config.train.resume == "auto":
        plan = make_plan(work, launch.config, launch.schema)
        if plan.kind == "new":
            reason = "; ".join([plan.reason, *plan.refused.values()])
            raise ValueError(f"the online run in {work} cannot be resumed: {reason}; {ANOTHER_WORK}")
    return launch


def _new(run: Path, words: Sequence[str]) -> tuple[Config, Path]:
    """Return the settings and the prepared folder of an online run that begins from the model in `run`."""
    source = find_source(run)
    if isinstance(source, Path):
        raise ValueError(f"--from {source}: expected a run or a checkpoint of this program")
    config, lines = online_config(source, words)
    for line in lines:
        log.info("%s", line)
    return config, Path(source.manifest.dataset)


def _resumed(work: Path, run: Path, words: Sequence[str]) -> tuple[Config, Path]:
    """Return the settings and the prepared folder of the online run in `work`, which must be resumed.

    A new run would train on the same parts again. The settings come from the newest checkpoint, whose manifest has a
    checksum, so a missing or damaged config.yaml does not matter: a launch writes it again. Raise ValueError if the run
    started from another model, and FileNotFoundError if no checkpoint's manifest can be read.
    """
    # Checkpoints of an online run have no metrics.
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
    # The prepared folder lies in the run's folder, which may have been moved.
    dataset = work / Path(newest.manifest.dataset).name
    try:
        read_schema(dataset)
    # The original error advises to prepare the data again, but the new ids would then be lost.
    except (OSError, ValueError):
        raise ValueError(f"{dataset / SCHEMA_FILE} is missing or damaged; {ANOTHER_WORK}") from None
    return replace(with_settings, train=replace(with_settings.train, resume=resume)), dataset
