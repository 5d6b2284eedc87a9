"""`python -m app online`: train on the parts of a log as they come, and publish a bundle after each."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from app.checkpoint.retention import whole_checkpoints
from app.cli.online.log_parts import MOST_CHANGE
from app.cli.online.online_settings import is_begun, online_config
from app.config.config import Config
from app.run.folder import run_checkpoints, run_config
from app.training.start import plan_launch
from app.training.warm_start.source import find_source
from common.packages import require
from common.yaml_settings import override

if TYPE_CHECKING:
    from app.training.context import RunContext
    from app.training.loop import Trainer  # imports MindSpore

log = logging.getLogger("app")


def add_parser(commands: Any) -> None:
    """Add the command to those of `python -m app`."""
    parser = commands.add_parser("online", help="train on the parts of a log as they come, and publish bundles")
    parser.add_argument("source", metavar="SOURCE", help="folder into which whole parts of the log are renamed")
    parser.add_argument(
        "--from", dest="run", type=Path, required=True, metavar="RUN", help="the run (or a checkpoint) to go on from"
    )
    parser.add_argument("--serve", type=Path, required=True, metavar="FOLDER", help="folder of bundles, for `serve`")
    parser.add_argument("--once", action="store_true", help="end when no part is left, as for cron")
    parser.add_argument(
        "--work", type=Path, default=Path("online"), metavar="DIR", help="the online run's own folder (%(default)s)"
    )
    parser.add_argument("--dataset", type=Path, metavar="DIR", help="prepared folder (the one RUN was trained on)")
    parser.add_argument(
        "--most-change",
        type=float,
        default=MOST_CHANGE,
        metavar="X",
        help="hold a part aside if its click rate is so many times that of the last ones, or less (%(default)s)",
    )
    parser.add_argument("--frozen", type=Path, metavar="BUNDLE", help="score each part by this bundle, to compare")
    parser.add_argument(
        "settings", nargs="*", default=(), metavar="section.key=value", help="settings (docs/configuration.md)"
    )
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Train until no part is left or a signal comes. Return the exit status."""
    require("onnx", "onnxruntime")
    if not arguments.most_change > 1:
        raise ValueError(f"--most-change must be above 1, found {arguments.most_change:g}")
    work = arguments.work.absolute()
    config, dataset = _resumed(arguments, work) if is_begun(work) else _new(arguments)
    launch = plan_launch(config, arguments.dataset or dataset, work)
    if launch.backend == "stock":
        raise ValueError("online needs tables.backend=native or reference; build the native tables: make native")
    target = launch.select_device()
    return replace(launch, make_trainer=partial(_trainer, arguments)).train(target)


def _new(arguments: argparse.Namespace) -> tuple[Config, Path]:
    source = find_source(arguments.run)
    if isinstance(source, Path):
        raise ValueError(f"--from {source}: expected a run or a checkpoint of this program")
    config, lines = online_config(source, arguments.settings)
    for line in lines:
        log.info("%s", line)
    return config, Path(source.manifest.dataset)


def _resumed(arguments: argparse.Namespace, work: Path) -> tuple[Config, Path]:
    """Return the settings of the run that has begun in `work`, which must be resumed: another would train twice."""
    config = run_config(work)
    began_from = Path(config.train.init_from)
    if not began_from.is_relative_to(arguments.run.resolve()):
        raise ValueError(
            f"the online run in {work} began from {began_from}, not from {arguments.run}; give that, or another --work"
        )
    asked = override(config, arguments.settings)
    whole = whole_checkpoints(run_checkpoints(work))
    dataset = Path(whole[-1].manifest.dataset) if whole else Path()
    resume: Literal["auto", "require"] = "auto" if "train.resume=auto" in arguments.settings else "require"
    return replace(asked, train=replace(asked.train, resume=resume)), dataset


def _trainer(arguments: argparse.Namespace, context: RunContext, backend: str) -> Trainer:
    from app.cli.online.online_trainer import OnlineOptions, OnlineTrainer

    words = arguments
    options = OnlineOptions(words.source, words.serve, words.once, words.most_change, words.frozen)
    return OnlineTrainer(context, backend, options)
