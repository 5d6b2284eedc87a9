"""`python -m app predict`: score a log with a bundle. `python -m app.cli.predict` does the same where MindSpore is not
installed.
"""

from __future__ import annotations

from common.signals import StopSignal, die_quietly, stop_by_signals

# From here on, Ctrl-C ends the process silently. During the imports below, which take a moment, it would otherwise
# print a traceback.
if __name__ == "__main__":
    die_quietly()

import argparse
import logging
import sys
from collections.abc import Callable
from typing import Any

from common.packages import require
from common.process import cpu_quota, num_cores

require("isal", "numpy", "pyarrow", "tqdm", "xxhash")

from app.scoring.batch_prediction import STDIN, predict
from app.scoring.bundle_folder import read_manifest
from common.arguments import CommandParser, add_shared
from common.console import STOPPED_BY_READER, has_no_reader, log_to_console
from common.files import message_of
from common.text import show
from data_prep.options.executor import EXECUTORS, ExecutorChoice
from data_prep.prepared.schema import read_schema

log = logging.getLogger("app")


def add_parser(commands: Any) -> None:
    """Add the command `predict` with its arguments to the parser of `python -m app`."""
    add_arguments(commands.add_parser("predict", help="score a log with a bundle"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command `predict` to `parser`."""
    add_shared(parser, "bundle", "inputs")
    parser.add_argument("output", metavar="OUTPUT", help="a new .csv or .parquet file, or - for CSV on standard output")
    parser.add_argument(
        "--keep", action="extend", nargs="+", default=[], metavar="COLUMN", help="columns to copy into the output"
    )
    add_shared(parser, "--executor", choices=EXECUTORS, default=EXECUTORS[0])
    add_shared(parser, "--scheduler", "--workers", "--overwrite", "--restart", "--version")
    parser.add_argument(
        "--max-reject-fraction",
        type=float,
        metavar="SHARE",
        help="share of bad lines above which the exit status is 2 (prepare.max_reject_fraction of the bundle)",
    )
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command: score the log, print a summary, and return the exit status. Raise ValueError if more lines are
    bad than --max-reject-fraction allows.
    """
    require("onnxruntime")
    workers = arguments.workers or num_cores()
    if not arguments.workers and (quota := cpu_quota()[1]):
        log.info("workers: %d%s", workers, quota)
    if workers < 1:
        raise ValueError(f"--workers must be 1 or more, found {workers}")
    bound = _max_reject_fraction(arguments)
    try:
        with stop_by_signals():
            summary = predict(
                arguments.bundle,
                arguments.inputs,
                arguments.output,
                arguments.keep,
                ExecutorChoice(arguments.executor, arguments.scheduler),
                workers,
                arguments.overwrite,
                arguments.restart,
                version=arguments.version,
            )
    except StopSignal as stopped:
        advice = "" if STDIN in (arguments.output, *arguments.inputs) else "; the same command resumes"
        log.error("stopped by %s%s", stopped.name, advice)
        return stopped.exit_status
    show(describe(summary, arguments.output), file=sys.stderr if arguments.output == STDIN else sys.stdout)
    for name, found in summary.get("unknown_values", {}).items():
        log.warning(
            "column %s: %s of %s rows have values that the model does not know, as had %.1f %% of its held-out rows. "
            "Are they written as there (7, not 07)?",
            *(name, f"{found['unknown']:,}", f"{found['rows']:,}", 100 * found["held_out_share"]),
        )
    if names := summary.get("trained_on"):
        log.warning(
            "warning: the model was prepared from %s and trained on most of these rows, so the metrics flatter it; "
            "evaluate its run on the split test, whose rows it was not trained on",
            ", ".join(names),
        )
    if summary["bad_lines"] > bound * summary["rows"]:
        raise ValueError(
            f"{summary['bad_lines']:,} of {summary['rows']:,} lines are bad and have no score, more than "
            f"--max-reject-fraction {bound:g}; the output has the reason of each. Is it a log of the model's columns?"
        )
    return 0


def _max_reject_fraction(arguments: argparse.Namespace) -> float:
    bound = arguments.max_reject_fraction
    if bound is None:
        # Raise an error if the folder is not a bundle, before its schema is read.
        read_manifest(arguments.bundle)
        bound = float(read_schema(arguments.bundle).options["max_reject_fraction"])
    if not 0 <= bound <= 1:
        raise ValueError(f"--max-reject-fraction must be between 0 and 1, found {bound}")
    return bound


def describe(summary: dict[str, Any], output: str) -> str:
    """Return the result of a prediction as text: numbers of rows and bad lines, and metrics if the log has labels.
    `summary` is the result of `predict`.
    """
    where = "standard output" if output == STDIN else output
    lines = [f"{where}: {summary['rows']:,} rows, {summary['bad_lines']:,} of them bad lines without a score"]
    lines += [f"  ({name} is taken to be {value} in all rows)" for name, value in summary.get("served_as", {}).items()]
    for name, value in summary.get("metrics", {}).items():
        low, high = summary.get("intervals", {}).get(name, (None, None))
        text = "undefined" if value != value else f"{value:.6f}"
        between = "" if low is None else f"   95 % within {low:.6f} … {high:.6f}"
        lines.append(f"  {name.replace('_', ' '):18} {text}{between}")
    if summary.get("weighted"):
        lines.append("  (each row counts by its weight)")
    return "\n".join(lines)


def main(add: Callable[[argparse.ArgumentParser], None], module: str, words: list[str] | None = None) -> int:
    """Run a command as a program of its own, without `python -m app`, and return its exit status. Errors that a user's
    input causes are logged without a traceback.

    `add` adds the command's arguments to a parser, `module` is the module's name for the help text, and `words` are the
    arguments (those of the process by default).
    """
    parser = CommandParser(prog=f"python -m {module}")
    add(parser)
    arguments = parser.parse_args(words)
    log_to_console()
    try:
        with stop_by_signals(at_once=True):
            status = int(arguments.command(arguments))
            sys.stdout.flush()
        return status
    except StopSignal as stopped:
        log.error("stopped by %s", stopped.name)
        return stopped.exit_status
    except (ValueError, TypeError, OSError, MemoryError) as error:
        if has_no_reader(error):
            return STOPPED_BY_READER
        log.error("error: %s", message_of(error))
        return 2


if __name__ == "__main__":
    sys.exit(main(add_arguments, __spec__.name))
