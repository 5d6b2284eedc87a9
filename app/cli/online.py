"""`python -m app online`: train on the parts (files) of a growing log as they come, and publish the model as a bundle
after each part.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from app.online.expiry import IN_ROWS, IN_SECONDS, ExpiryOptions
from app.online.log_parts import GuardBounds
from app.online.online_options import ADMISSION_MIB, KEPT, OnlineOptions
from app.online.online_start import plan_online
from app.online.publish import MOST_WORSE
from app.online.state import release, status_of
from common.arguments import add_shared
from common.files import room_for
from common.packages import require
from common.text import show

# Fields of `GuardBounds` (limits that decide whether a part, which is a file of the log, is suspicious) for which the
# command has options --most-FIELD.
GUARDED = ("change", "miscalibration", "missing", "unknown")
# Options that take a number, and their default values. If the default is a float, the user's value must be above the
# option's lower bound (LEAST). If it is an integer, the value may be equal to the bound.
NUMBERS: dict[str, float] = {
    **{f"most_{bound}": getattr(GuardBounds, bound) for bound in GUARDED},
    "most_worse": MOST_WORSE,
    "keep": KEPT,
    "admission_mib": ADMISSION_MIB,
    "most_ids": ExpiryOptions.most_ids,
}
# Lower bounds of the options in NUMBERS. Options that are not listed have the lower bound 0.
LEAST = {"most_change": 1, "most_miscalibration": 1}
# Help texts of the options in NUMBERS. X and N stand for the value that the user gives.
HELP = {
    "most_change": "hold a part aside if its click rate differs from that of the last parts by more than factor X",
    "most_miscalibration": "hold a part aside if its calibration (expected clicks per click) differs from the last "
    "parts' by more than factor X",
    "most_missing": "hold a part aside if the share of missing cells in a column exceeds the maximum of the last parts "
    "by more than X",
    "most_unknown": "hold a part aside if the share of values without ids in a column exceeds the maximum of the last "
    "parts by more than X",
    "most_worse": "do not publish a model whose log loss on rows of the last parts exceeds that of the served model by "
    "more than the share X and by more than chance",
    "keep": "number of checkpoints, bundles and records of removed parts to keep, in addition to what these need; 0: "
    "all",
    "admission_mib": "memory for counting values without ids over all parts; 0: count in each part separately",
    "most_ids": "keep at most N ids of values after a part; the least recently touched expire first; 0: no limit",
}


def add_parser(commands: Any) -> None:
    """Add the command `online` with its arguments to the parser of `python -m app`."""
    parser = commands.add_parser("online", help="train on the parts of a log as they come, and publish bundles")
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="folder into which complete parts of the log are renamed, or a Delta table, whose versions are parts; or "
        "`status`, which prints the status of the run in --work as JSON (exit status 5: parts are held aside or the "
        "newest model is withheld, 6: the run ended with an error); or `release PART`, which allows training on a part "
        "that is held aside",
    )
    parser.add_argument("--from", dest="run", type=Path, metavar="RUN", help="run or checkpoint to start from")
    parser.add_argument("--serve", type=Path, metavar="FOLDER", help="folder for the bundles, which `serve` watches")
    parser.add_argument("--once", action="store_true", help="exit when no part is left, for example in a cron job")
    parser.add_argument(
        "--work", type=Path, default=Path("online"), metavar="DIR", help="folder of the online run itself (%(default)s)"
    )
    add_shared(parser, "--dataset", help="prepared folder (the one RUN was trained on)")
    for name, default in NUMBERS.items():
        kind, metavar = (float, "X") if isinstance(default, float) else (int, "N")
        text = f"{HELP[name]} ({default:g})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, metavar=metavar, help=text)
    parser.add_argument(
        "--label-delay",
        dest="delay_seconds",
        type=_seconds,
        default=0.0,
        metavar="TIME",
        help="wait this long (90s, 30m, 2h, 1d) after the last change of a part's file, until its labels are complete",
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
        "--frozen", type=Path, metavar="BUNDLE", help="for comparison, score parts with this bundle, too"
    )
    add_shared(parser, "settings")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command: train on the log's parts (files) until SIGINT or SIGTERM arrives or, with --once, until no part
    is left. `online status` prints the status of the run instead. `online release PART` allows training on a part that
    the run refused as suspicious.

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
    for name, default in NUMBERS.items():
        found, least, is_open = getattr(arguments, name), LEAST.get(name, 0), isinstance(default, float)
        if not (found > least or (found == least and not is_open)):
            expected = f"above {least}" if is_open else f"{least} or more"
            raise ValueError(f"--{name.replace('_', '-')} must be {expected}, found {found:g}")
    after, ages_in = arguments.expire_after
    same = ("source", "serve", "once", "frozen", "delay_seconds", "most_worse", "keep", "admission_mib")
    options = OnlineOptions(
        **{name: getattr(arguments, name) for name in same},
        bounds=GuardBounds(**{bound: getattr(arguments, f"most_{bound}") for bound in GUARDED}),
        expiry=ExpiryOptions(after, ages_in, arguments.most_ids),
    )
    launch = plan_online(work, arguments.run, arguments.dataset, options, arguments.settings)
    target = launch.select_device()
    with room_for(work):
        return launch.train(target)


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
