"""The command line: `python -m data_prep {download,pre-check,prepare,inspect,report,synthesize}`."""

from __future__ import annotations

import argparse
import dataclasses
import io
import re
import sys
from pathlib import Path
from typing import TypeAlias

from common.packages import explain_missing, require

require("isal", "numpy", "pyarrow", "tqdm", "xxhash", "yaml")  # the others only where they are needed

from data_prep.execution.pools import KINDS, ExecutorChoice
from data_prep.execution.stopping import Stopped, stop_by_signals
from data_prep.options.prepare_options import PREPARE_SECTION, PrepareOptions, read_options

CRITEO_DATA = Path(__file__).parents[1] / "configs" / "data" / "criteo.yaml"
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_SETTING = re.compile(r"\w+(\.\w+)+=")  # section.key=value
_SETTING_NAMES = [field.name for field in dataclasses.fields(PrepareOptions)]
_SETTINGS_HELP = (
    "Any number of prepare.key=value changes a setting, such as prepare.min_count=101 prepare.split=chronological; "
    "data_prep/options/prepare_options.py lists them all."
)
# What a layout for others needs of the options; a setting that is given beside it counts.
_LAYOUTS = {
    "blocks": (),
    "zoo": (
        "prepare.layout=zoo",
        "prepare.missing_indicator=false",
        "prepare.integer_buckets=false",
        "prepare.block_rows=1000",
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status is 2 where input or settings are wrong, 130 after Ctrl-C, 143 after SIGTERM."""
    parser = _parser()
    words = sys.argv[1:] if arguments is None else arguments
    # Settings may stand before and after everything else, which argparse does not allow.
    settings = [word for word in words if _SETTING.match(word)]
    command = parser.parse_args([word for word in words if not _SETTING.match(word)])
    if settings and command.run is not _prepare:
        parser.error(f"unexpected arguments: {' '.join(settings)}")
    for word in words:
        if word.partition("=")[0] in _SETTING_NAMES and "=" in word:
            parser.error(f"{word}: a setting needs its section before it: {PREPARE_SECTION}.{word}")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that is not UTF-8 gets ? for …
        sys.stdout.reconfigure(errors="replace")
    from common.console import STOPPED_BY_READER, has_no_reader, log_to_console  # what workers need not import

    log_to_console()
    try:
        with stop_by_signals():
            command.run(command, settings)
            sys.stdout.flush()
        return 0
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "data_prep":  # a flaw of this program
            raise
        print(f"error: {explain_missing(error.name.partition('.')[0])}", file=sys.stderr)
        return 2
    except (ValueError, OSError, MemoryError) as error:
        if has_no_reader(error):
            return STOPPED_BY_READER
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as stop:
        print(f"stopped by {stop.name}{command.after_stop}", file=sys.stderr)
        return stop.exit_status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_prep", description="Prepare click logs for training.")
    parser.set_defaults(after_stop="")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_pre_check, _add_download, _add_prepare, _add_inspect, _add_report, _add_synthesize):
        add(commands)
    return parser


def _add_pre_check(commands: Commands) -> None:
    pre_check = commands.add_parser("pre-check", help="judge the first rows of a log, in seconds")
    pre_check.add_argument("input", nargs="+", help="as of prepare; of several files the first rows of each")
    pre_check.add_argument("--rows", type=int, default=100_000, help="lines to look at, in all (%(default)s)")
    pre_check.add_argument("--data", type=Path, metavar="FILE", help="as of prepare")
    pre_check.set_defaults(run=_pre_check)


def _add_download(commands: Commands) -> None:
    get = commands.add_parser("download", help="get a data set's log, and go on where a download broke off")
    get.add_argument("output", type=Path, nargs="?", default=Path(), help="a file or a folder; default: this folder")
    get.add_argument(
        "--data", type=Path, metavar="FILE", default=CRITEO_DATA, help="YAML file that says where it is (%(default)s)"
    )
    get.add_argument("--accept-terms", action="store_true", help="accept the terms that are shown, without a question")
    get.set_defaults(run=_download, after_stop="; the same command goes on")


def _add_prepare(commands: Commands) -> None:
    prepare = commands.add_parser("prepare", help="raw log to a prepared folder", epilog=_SETTINGS_HELP)
    prepare.add_argument(
        "input",
        nargs="+",
        help="the log: text, .gz, .zst, .tar.gz; several files, a folder or a quoted glob of part files; paths or URIs "
        "(s3://bucket/day_*.gz)",
    )
    prepare.add_argument("output", type=Path, help="the prepared folder to make")
    prepare.add_argument("--config", type=Path, metavar="FILE", help="YAML file; its section prepare: is used")
    prepare.add_argument(
        "--data", type=Path, metavar="FILE", help="YAML file that says how the log is written; default: as Criteo's"
    )
    prepare.add_argument(
        "--vocabulary", type=Path, metavar="DIR", help="a prepared folder: give these rows its ids, fit nothing to them"
    )
    prepare.add_argument(
        "--extend",
        action="store_true",
        help="with --vocabulary: values that are new in this log get ids after all others",
    )
    prepare.add_argument(
        "--layout",
        choices=tuple(_LAYOUTS),
        default="blocks",
        help="zoo: MindRecord as the MindSpore model zoo's Wide&Deep reads it; short for: " + " ".join(_LAYOUTS["zoo"]),
    )
    prepare.add_argument("--overwrite", action="store_true", help="replace a prepared folder that is there")
    prepare.add_argument("--restart", action="store_true", help="begin anew where an ended run could be gone on with")
    _add_executor(prepare)
    prepare.set_defaults(run=_prepare, after_stop="; the same command goes on where it was")


def _add_executor(prepare: argparse.ArgumentParser) -> None:
    prepare.add_argument(
        "--executor",
        choices=KINDS,
        default=KINDS[0],
        help="what runs the chunks: processes here (default), dask or mpi",
    )
    prepare.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of a Dask cluster (tcp://...); without it one is started on this machine",
    )


def _add_inspect(commands: Commands) -> None:
    inspect = commands.add_parser("inspect", help="check a prepared folder and print what it holds")
    inspect.add_argument("folder", type=Path)
    inspect.set_defaults(run=_inspect)


def _add_report(commands: Commands) -> None:
    report = commands.add_parser("report", help="draw the report of a prepared folder again, FOLDER/report.html")
    report.add_argument("folder", type=Path)
    report.set_defaults(run=_report)


def _add_synthesize(commands: Commands) -> None:
    synthesize = commands.add_parser("synthesize", help="make a synthetic log of the raw form")
    synthesize.add_argument("output", type=Path, help="the log to write")
    synthesize.add_argument("--rows", type=int, required=True)
    synthesize.add_argument("--seed", type=int, default=1)
    synthesize.add_argument("--workers", type=int, help="processes; default: one a core")
    synthesize.set_defaults(run=_synthesize)


def _pre_check(command: argparse.Namespace, _: list[str]) -> None:
    from data_prep.checks.pre_check import pre_check, print_findings

    findings = pre_check(command.input, command.rows, read_options(data_path=command.data).data)
    print_findings(findings)
    if findings.wrong:
        raise ValueError(
            f"{len(findings.wrong)} thing{'s' * (len(findings.wrong) > 1)} wrong with {command.input[0]}, see above"
        )


def _download(command: argparse.Namespace, _: list[str]) -> None:
    from data_prep.sources.download import accept_terms, download, read_download_options

    options = read_download_options(command.data)
    accept_terms(options.terms, command.accept_terms)
    print(download(options, command.output))


def _prepare(command: argparse.Namespace, settings: list[str]) -> None:
    from data_prep.pipeline.prepare import prepare

    options = read_options(command.config, [*_LAYOUTS[command.layout], *settings], command.data)
    prepare(
        command.input,
        command.output,
        options,
        overwrite=command.overwrite,
        restart=command.restart,
        vocabulary_of=command.vocabulary,
        extend=command.extend,
        executor=ExecutorChoice(command.executor, command.scheduler),
        report=True,
    )


def _inspect(command: argparse.Namespace, _: list[str]) -> None:
    from data_prep.checks.inspect import inspect

    inspect(command.folder)


def _report(command: argparse.Namespace, _: list[str]) -> None:
    from data_prep.report.page import write_report

    print(write_report(command.folder))


def _synthesize(command: argparse.Namespace, _: list[str]) -> None:
    from data_prep.sources.synthetic import synthesize

    made = synthesize(command.output, command.rows, command.seed, command.workers, show_progress=True)
    print(f"{made.log_path}: {made.rows:,} rows, {made.clicks / made.rows:.2%} clicks")
    print(f"{made.truth_path}: the true click probability of each row")


if __name__ == "__main__":
    sys.exit(main())
