"""Run a command: `python -m app COMMAND`. `python -m app --help` lists the commands.

Exit status:

- 0: done, or stopped at train.time_limit.
- 1: training stopped at NaN or infinity.
- 2: wrong input or settings.
- 3: a file of the result could not be written, for example because the disk is full.
- 4: training ended with a loss above that of predicting the click rate.
- 5: an online run has parts of its log (files) that it refuses to train on, or a model that it does not publish.
- 6: an online run whose status was asked for ended with an error.
- 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

# Signals are blocked before libraries start threads during their import, see app/run/stop_signals.py.
if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))

from common.packages import keep_pandas_out, require
from common.process import raise_again, started_by_mpi
from common.signals import die_quietly

require(
    "bokeh",
    "jinja2",
    "mindspore",
    "ml_dtypes",
    "numpy",
    "pyarrow",
    "scipy",
    "sklearn",
    "tensorboardX",
    "xxhash",
    "yaml",
)

from app.run import rank
from common.arguments import CommandParser
from common.console import STOPPED_BY_READER, has_no_reader, log_to_console
from common.text import show

# Arguments of a typical call of each command, in the order of the help. They are shown at the end of its --help.
EXAMPLES = {
    "train": "--config configs/criteo.yaml --dataset prepared train.epochs=2",
    "plan": "prepared --config configs/criteo.yaml --ranks 2",
    "online": "parts --from device_0 --serve bundles --once",
    "sweep": "rates.yaml --output rates",
    "evaluate": "--run device_0 --split test",
    "baseline": "prepared --run device_0",
    "report": "device_0 device_0.1 --output both.html",
    "checkpoint list": "device_0",
    "checkpoint show": "--run device_0",
    "checkpoint verify": "device_0/checkpoints/step-00001000",
    "checkpoint reshard": "device_0/checkpoints/step-00001000 resharded --shards 4",
    "checkpoint compact": "device_0/checkpoints/step-00001000",
    "checkpoint export-rows": "device_0/checkpoints/step-00001000 rows.parquet --table deep",
    "export": "device_0 bundle rows=float16",
    "predict": "bundle log.csv scores.csv --keep user",
    "serve": "bundle --port 8000 --workers 2",
    "bundle verify": "bundle",
    "bundle explain": "bundle -",
    "bundle effects": "bundle log.csv --output device_0/effects.parquet",
    "bundle fold": "delta whole",
}
COMMANDS = tuple(dict.fromkeys(name.split()[0] for name in EXAMPLES))


def main(arguments: list[str] | None = None) -> int:
    """Run a command of `python -m app`, and return its exit status. `arguments` are the words of the command line, by
    default those with which this process was started.
    """
    words = sys.argv[1:] if arguments is None else arguments
    parser = _parser(words)
    _refuse_foreign_flags(parser, words)
    options = parser.parse_args(words)
    options.words = words
    log_to_console()
    # Number of the first rank that trains. The servers, ranks that only store rows of the tables, have lower numbers.
    console_rank = getattr(options, "servers", 0)
    return rank.run_as_rank(lambda: _run(options), console_rank) if started_by_mpi() else _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        status = options.command(options) or 0
        sys.stdout.flush()
        return status
    except FloatingPointError as error:
        return rank.fail(error, 1)
    except (ValueError, OSError, MemoryError) as error:
        return STOPPED_BY_READER if has_no_reader(error) else rank.fail(error, 2)
    except KeyboardInterrupt:
        advice = "; run the same command to resume from the last checkpoint" if options.words[0] == "train" else ""
        return rank.fail(KeyboardInterrupt(f"stopped by Ctrl-C{advice}"), 130)


def _refuse_foreign_flags(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Exit with a usage error if the command is `train` and one of the `words` of the command line is a flag that
    `train` does not have: the name of a setting (`--epochs=3`) or a flag of the MindSpore model zoo
    (`--deep_layer_dim=64`).

    The error says what to give instead, such as `train.epochs=3`. argparse would only call the flag unrecognized.
    """
    if words[:1] != ["train"]:
        return
    from app.config.flags import advice_on_flag

    known = vars(parser.parse_args(["train", "--dataset", ""]))
    for place, word in enumerate(words):
        flag, equals, value = word.removeprefix("--").partition("=")
        name = flag.replace("-", "_")
        if not word.startswith("--") or any(of_train.startswith(name) for of_train in known):
            continue
        after = itertools.takewhile(lambda other: not other.startswith("-") and "=" not in other, words[place + 1 :])
        if advice := advice_on_flag(name, [value] if equals else list(after)):
            parser.error(f"--{flag} is no flag of train: {advice}")


def _parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command that `words` name, or of all commands if they name none.

    The modules of the other commands are not imported, because the imports of all take longer than most commands.
    """
    parser: argparse.ArgumentParser = CommandParser(
        prog="python -m app", description="Train and evaluate Wide&Deep models. --version prints the version."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        if name == "report":
            _add_report(commands)
        else:
            # The module `fold` adds all subcommands of the command `bundle`.
            module = "fold" if name == "bundle" else name
            importlib.import_module(f"app.cli.{module}").add_parser(commands)
    _add_examples(commands)
    return parser


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser("report", help="draw the report of one run, or of several for comparison")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders such as device_0")
    report.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write (RUN/report.html, or ./report.html for several runs)"
    )
    report.set_defaults(command=_report)


def _add_examples(commands: argparse._SubParsersAction[argparse.ArgumentParser], before: str = "") -> None:
    for name, parser in commands.choices.items():
        # This class of argparse does not break the line of an example.
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.description = textwrap.fill(parser.description or "", 100)
        if example := EXAMPLES.get(f"{before}{name}"):
            parser.epilog = f"example:\n  {parser.prog} {example}"
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                _add_examples(action, f"{name} ")


def _report(arguments: argparse.Namespace) -> None:
    from app.run.report import REPORT_FILE, write_report

    output = arguments.output or (arguments.runs[0] / REPORT_FILE if len(arguments.runs) == 1 else Path(REPORT_FILE))
    if arguments.output and not output.parent.is_dir():
        raise FileNotFoundError(f"--output {output}: there is no folder {output.parent}; make it, or give another file")
    write_report(arguments.runs, output)
    show(output)


if __name__ == "__main__":
    # From here on, Ctrl-C and SIGTERM end the process. If one of these signals arrived during the imports, it was
    # blocked until now, and the next two lines let it end the process.
    die_quietly()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    raise_again()
    keep_pandas_out()
    sys.exit(main())
