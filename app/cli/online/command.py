"""`python -m app online`: train on the parts of a log as they come, and publish a bundle after each."""

from __future__ import annotations

import argparse
import json
import logging
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from app.checkpoint.retention import best_or_newest
from app.cli.online.candidate import MOST_WORSE
from app.cli.online.expiry import IN_ROWS, IN_SECONDS, ExpiryOptions
from app.cli.online.log_parts import Bounds
from app.cli.online.online_settings import ADMISSION_MIB, CHECKPOINTS, KEPT, is_begun, online_config
from app.cli.online.state import release, status_of
from app.config.config import Config
from app.run.decision import make_plan
from app.run.older import read_config
from app.training.start import plan_launch
from app.training.warm_start.source import find_source
from common.files import room_for
from common.packages import require
from common.text import show
from common.yaml_settings import override
from data_prep.prepared.schema import SCHEMA_FILE, read_schema

if TYPE_CHECKING:
    from app.training.context import RunContext
    from app.training.loop import Trainer  # Import only the type, because the module imports MindSpore.

log = logging.getLogger("app")

# Options of the guard, each with the condition for holding a part aside. X stands for the option's value.
BOUNDS = {
    "change": "its click rate differs from that of the last parts by more than factor X",
    "miscalibration": "its calibration (expected clicks per click) differs from the last parts' by more than factor X",
    "missing": "the share of missing cells in a column exceeds the maximum of the last parts by more than X",
    "unknown": "the share of values without ids in a column exceeds the maximum of the last parts by more than X",
}


ANOTHER_WORK = "copy its folder again from a backup, or begin another run with another --work"


def add_parser(commands: Any) -> None:
    """Add the command to `python -m app`."""
    parser = commands.add_parser("online", help="train on the parts of a log as they come, and publish bundles")
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="folder into which complete parts of the log are renamed; or `status`, which prints the status of the run "
        "in --work as JSON (exit status 5: parts are held aside, 6: the run ended with an error); or `release PART`, "
        "which allows training on a part that is held aside",
    )
    parser.add_argument("--from", dest="run", type=Path, metavar="RUN", help="run or checkpoint to start from")
    parser.add_argument("--serve", type=Path, metavar="FOLDER", help="folder for the bundles, which `serve` watches")
    parser.add_argument("--once", action="store_true", help="exit when no part is left, for example in a cron job")
    parser.add_argument(
        "--work", type=Path, default=Path("online"), metavar="DIR", help="folder of the online run itself (%(default)s)"
    )
    parser.add_argument("--dataset", type=Path, metavar="DIR", help="prepared folder (the one RUN was trained on)")
    for bound, help_text in BOUNDS.items():
        text = f"hold a part aside if {help_text} (%(default)g)"
        parser.add_argument(f"--most-{bound}", type=float, default=getattr(Bounds, bound), metavar="X", help=text)
    parser.add_argument(
        "--label-delay",
        type=_seconds,
        default=0.0,
        metavar="TIME",
        help="wait this long (90s, 30m, 2h, 1d) after the last change of a part's file, until its labels are complete",
    )
    parser.add_argument(
        "--most-worse",
        type=float,
        default=MOST_WORSE,
        metavar="X",
        help="do not publish a model whose log loss on rows of the last parts exceeds that of the served model by more "
        "than the share X (%(default)g)",
    )
    parser.add_argument(
        "--keep",
        type=int,
        default=KEPT,
        metavar="N",
        help="number of checkpoints, bundles and records of removed parts to keep, in addition to what these need "
        "(%(default)s; 0: all)",
    )
    parser.add_argument(
        "--admission-mib",
        type=int,
        default=ADMISSION_MIB,
        metavar="N",
        help="memory for counting values without ids over all parts (%(default)s; 0: count in each part separately)",
    )
    parser.add_argument(
        "--expire-after",
        type=_age,
        default=(0.0, IN_ROWS),
        metavar="AGE",
        help="expire the id of a value whose embedding row was not touched for AGE: a number of rows (5000000), or a "
        "time (12h, 30d) measured by the times of the parts' files; a value that returns gets a new id (0: never)",
    )
    parser.add_argument(
        "--most-ids",
        type=int,
        default=0,
        metavar="N",
        help="keep at most N ids of values after a part; the least recently touched expire first (%(default)s: no "
        "limit)",
    )
    parser.add_argument(
        "--frozen", type=Path, metavar="BUNDLE", help="for comparison, score parts with this bundle, too"
    )
    parser.add_argument(
        "settings", nargs="*", default=(), metavar="section.key=value", help="settings (docs/configuration.md)"
    )
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command: train until no part is left or a signal arrives, or print or change the state of the run.

    Return the exit status.
    """
    work = arguments.work.absolute()
    if arguments.source == "status" and not arguments.settings:
        content, exit_status = status_of(work)
        show(json.dumps(content, indent=1))
        return exit_status
    if arguments.source == "release" and len(arguments.settings) == 1:
        (part,) = arguments.settings
        show(f"{part} is released; it was held aside because {release(work, part)}")
        return 0
    if missing := [flag for flag, given in (("--from", arguments.run), ("--serve", arguments.serve)) if given is None]:
        raise ValueError(
            f"online {arguments.source} lacks {' and '.join(missing)}; expected: online SOURCE --from RUN --serve "
            "FOLDER, online status, or online release PART"
        )
    require("onnx", "onnxruntime")
    for name, least in (("change", 1), ("miscalibration", 1), ("missing", 0), ("unknown", 0), ("worse", 0)):
        if not (found := getattr(arguments, f"most_{name}")) > least:
            raise ValueError(f"--most-{name} must be above {least}, found {found:g}")
    for name in ("keep", "admission_mib", "most_ids"):
        if (found := getattr(arguments, name)) < 0:
            raise ValueError(f"--{name.replace('_', '-')} must be 0 or more, found {found}")
    resumes = is_begun(work)
    config, dataset = _resumed(arguments, work) if resumes else _new(arguments)
    if not any(word.startswith("checkpoint.keep_last=") for word in arguments.settings):
        config = replace(config, checkpoint=replace(config.checkpoint, keep_last=arguments.keep))
    launch = plan_launch(config, arguments.dataset or dataset, work)
    if launch.backend == "stock":
        raise ValueError("online needs tables.backend=native or reference; build the native tables: make native")
    # Check every byte of the checkpoints. Without a usable one, the launch would rename this run and begin a new one.
    if resumes and config.train.resume == "auto":
        plan = make_plan(work, launch.config, launch.schema)
        if plan.kind == "new":
            reason = "; ".join([plan.reason, *plan.refused.values()])
            raise ValueError(f"the online run in {work} cannot be resumed: {reason}; {ANOTHER_WORK}")
    target = launch.select_device()
    with room_for(work):
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
    if not began_from.is_relative_to(arguments.run.resolve()):
        raise ValueError(
            f"the online run in {work} began from {began_from}, not from {arguments.run}; give that, or another --work"
        )
    with_settings = override(config, arguments.settings)
    resume: Literal["auto", "require"] = "auto" if "train.resume=auto" in arguments.settings else "require"
    # The prepared folder lies in the run's folder, which may have been moved.
    dataset = work / Path(newest.manifest.dataset).name
    try:
        read_schema(dataset)
    # The original error advises to prepare the data again, but the new ids would then be lost.
    except (OSError, ValueError):
        raise ValueError(f"{dataset / SCHEMA_FILE} is missing or damaged; {ANOTHER_WORK}") from None
    return replace(with_settings, train=replace(with_settings.train, resume=resume)), dataset


def _trainer(arguments: argparse.Namespace, context: RunContext, backend: str) -> Trainer:
    from app.cli.online.online_trainer import OnlineOptions, OnlineTrainer

    words = arguments
    most = {bound: getattr(words, f"most_{bound}") for bound in BOUNDS}
    after, ages_in = words.expire_after
    bounds = Bounds(context.config.prepare.max_reject_fraction, **most)
    options = OnlineOptions(
        words.source,
        words.serve,
        bounds,
        words.once,
        words.frozen,
        words.label_delay,
        words.most_worse,
        words.keep,
        words.admission_mib,
        ExpiryOptions(after, ages_in, words.most_ids),
    )
    return OnlineTrainer(context, backend, options)


def _age(text: str) -> tuple[float, str]:
    if text.isdecimal():
        return float(text), IN_ROWS
    try:
        return _seconds(text), IN_SECONDS
    except argparse.ArgumentTypeError:
        message = f"expected a number of rows, such as 5000000, or a time, such as 12h or 30d; found {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected a number and one of s, m, h, d, such as 2h; found {text!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
