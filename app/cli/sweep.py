"""`python -m app sweep`: train one run for each combination of settings in a file, and print the results, the best
first.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from pathlib import Path
from typing import Any

from app.run.report import REPORT_FILE
from app.run.stop_signals import Stopped
from app.training.auto.sweep_runs import SweepOptions, sweep
from common import settings, yaml_settings
from common.text import show

log = logging.getLogger("app")


def add_parser(commands: Any) -> None:
    """Add the command `sweep` with its arguments to the parser of `python -m app`."""
    parser = commands.add_parser("sweep", help="train one run for each of many settings, and compare them")
    parser.add_argument("sweep", type=Path, metavar="SWEEP.yaml", help="the values to try (docs/recipes.md)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for the runs (name of SWEEP without .yaml)")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command: train a run for each combination of settings, print the results (best first), and return the
    exit status.
    """
    content = yaml_settings.read_yaml(arguments.sweep)
    values = content.pop("settings", None)
    options = settings.merge(SweepOptions(), content, where=str(arguments.sweep))
    output = arguments.output or Path(arguments.sweep.stem)
    try:
        metric, results = sweep(values, options, output, str(arguments.sweep))
    except Stopped as stopped:
        log.info("stopped: %s; the same command resumes", stopped)
        return stopped.exit_status
    for result in results:
        words = " ".join(f"{name}={json.dumps(result[name])}" for name in values)
        value = math.nan if result[metric] is None else result[metric]
        show(f"{metric} {value:.6f} in {result['epochs']} epoch(s)  {words}")
    show(output.absolute() / REPORT_FILE)
    return 0
