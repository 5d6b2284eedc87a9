"""Define the command line `python -m data_prep` with its commands, such as describe and prepare."""

from __future__ import annotations

import os

from common.signals import StopSignal, die_quietly, stop_by_signals

# The imports below take a while, so Ctrl-C must not print a traceback during them.
if __name__ == "__main__":
    die_quietly()
    # The matrices of these commands are so small that more threads of NumPy's library only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import dataclasses
import io
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from common.packages import explain_missing, keep_pandas_out, require

# Each command that needs packages besides these checks for them itself.
require("bokeh", "isal", "jinja2", "numpy", "pyarrow", "tqdm", "xxhash", "yaml")

from common.arguments import CommandParser, add_shared
from common.text import show
from data_prep.options.columns import EncodingOptions
from data_prep.options.executor import EXECUTORS, ExecutorChoice
from data_prep.options.options_file import PREPARE_SECTION, RECIPE, read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import SCHEMA_FILE, read_schema

log = logging.getLogger("data_prep")

CRITEO_DATA = Path(__file__).parents[1] / "configs" / "data" / "criteo.yaml"
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run: TypeAlias = Callable[[argparse.Namespace, list[str]], None]
_SETTING = re.compile(r"\w+(\.\w+)+=")  # Matches the start of an argument such as section.key=value.
_SETTING_NAMES = [field.name for field in dataclasses.fields(PrepareOptions)]
# Earlier releases had these commands. They are now other names of the command describe, which does their work.
_ALIASES = _PRE_CHECK, _INSPECT = "pre-check", "inspect"
# Settings that each value of --layout stands for. Settings on the command line override them.
_LAYOUTS = {
    "blocks": (),
    "zoo": ("prepare.layout=zoo", "prepare.integer_buckets=false"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the command line `arguments` names, by default that of the process. Return the exit status.

    The status is 0 on success, 2 for wrong input or settings, 130 after Ctrl-C, and 143 after SIGTERM.
    """
    parser = _parser()
    argv = sys.argv[1:] if arguments is None else arguments
    # Settings may be anywhere among the other arguments. argparse does not support that, so they are taken out first.
    settings = [argument for argument in argv if _SETTING.match(argument)]
    command = parser.parse_args([argument for argument in argv if not _SETTING.match(argument)])
    if settings and command.run not in (_prepare, _describe):
        parser.error(f"unexpected arguments: {' '.join(settings)}")
    for argument in argv:
        if argument.partition("=")[0] in _SETTING_NAMES and "=" in argument:
            parser.error(f"{argument}: a setting needs its section before it: {PREPARE_SECTION}.{argument}")
    if isinstance(sys.stdout, io.TextIOWrapper):  # A terminal that is not UTF-8 shows ? for characters such as ….
        sys.stdout.reconfigure(errors="replace")
    # These modules are imported here, because worker processes import this file too and do not need the console.
    from common.console import STOPPED_BY_READER, has_no_reader, log_to_console
    from common.files import message_of

    log_to_console()
    try:
        with stop_by_signals(at_once=command.run is not _prepare):
            command.run(command, settings)
            sys.stdout.flush()
        return 0
    except ModuleNotFoundError as error:
        # A missing module of data_prep itself is a bug in this program, so its traceback is shown. For any other
        # missing module, a message says which package to install.
        if error.name is None or error.name.partition(".")[0] == "data_prep":
            raise
        show(f"error: {explain_missing(error.name.partition('.')[0])}", file=sys.stderr)
        return 2
    except (ValueError, OSError, MemoryError) as error:
        if has_no_reader(error):
            return STOPPED_BY_READER
        show(f"error: {message_of(error)}", file=sys.stderr)
        return 2
    except StopSignal as stop:
        show(f"stopped by {stop.name}{command.after_stop}", file=sys.stderr)
        return stop.exit_status


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = CommandParser(
        prog="python -m data_prep",
        description="Prepare click logs for training.",
        epilog="python -m data_prep COMMAND --help describes a command. --version prints the version.",
    )
    parser.set_defaults(after_stop="")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="name")

    download = _add_command(commands, _download, "data")
    download.add_argument(
        "output", type=Path, nargs="?", default=Path(), help="file or folder to write (the current folder)"
    )
    download.add_argument(
        "--data", type=Path, metavar="FILE", default=CRITEO_DATA, help="YAML file with the addresses (%(default)s)"
    )
    download.add_argument("--accept-terms", action="store_true", help="accept the terms without being asked")
    download.set_defaults(after_stop="; the same command resumes")

    _add_describe_arguments(_add_command(commands, _describe, "log.csv > my.yaml", *_ALIASES))

    example = "data/dac.tar.gz prepared --config configs/criteo.yaml prepare.min_count=101"
    _add_prepare_arguments(_add_command(commands, _prepare, example))

    suggest = _add_command(commands, _suggest_crosses, "prepared")
    suggest.add_argument("folder", type=Path, help="the prepared folder")
    suggest.add_argument("--top", type=int, default=10, metavar="N", help="number of pairs to show (%(default)s)")

    synthesize = _add_command(commands, _synthesize, "log.txt --rows 1000000")
    synthesize.add_argument(
        "output", type=Path, help="file to write, compressed if its name ends in .gz; with --part-rows, a folder"
    )
    add_shared(synthesize, "--rows", required=True, help="number of rows to write")
    add_shared(synthesize, "--seed", help="seed of the rows; the same seed writes the same bytes (%(default)s)")
    synthesize.add_argument(
        "--drift",
        type=int,
        metavar="N",
        help="let the probability of clicks change over time, with N rows per day. The log has a column time, so use "
        "it with --data configs/data/drift.yaml",
    )
    synthesize.add_argument("--part-rows", type=int, metavar="N", help="write several files of N rows each")
    add_shared(synthesize, "--workers")
    return parser


def _add_command(commands: Commands, run: Run, example: str, *aliases: str) -> argparse.ArgumentParser:
    """Add a subcommand to `commands`. The function `run` implements it.

    The name and the help of the subcommand are the name and the docstring of `run`. `example` are arguments of an
    example in the help. `aliases` are other names of the subcommand.
    """
    name, summary = run.__name__.lstrip("_").replace("_", "-"), run.__doc__ or ""
    command = commands.add_parser(
        name,
        aliases=aliases,
        help=summary[0].lower() + summary[1:-1],
        description=summary,
        epilog=f"example:\n  python -m data_prep {name} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _add_describe_arguments(describe: argparse.ArgumentParser) -> None:
    describe.add_argument(
        "input", nargs="+", help="the log, as for prepare, or a prepared folder. The first rows of each file are read"
    )
    add_shared(describe, "--rows", default=100_000)
    add_shared(describe, "--version")
    proposal = describe.add_argument_group("proposal of a description, for a log without --data")
    proposal.add_argument(
        "--label",
        metavar="NAME",
        help="column of the label, if the proposal chooses another column or is not sure. NAME=VALUE: this value means "
        "a click, and all other values mean no click. 'NAME>=4': numbers of 4 or more mean a click",
    )
    check = describe.add_argument_group(
        "check of a log against a description",
        "With prepare.crosses=[[C1,C2]], figures of these crosses are shown too. The command pre-check is this check, "
        "by default against Criteo's format.",
    )
    add_shared(check, "--data", help="YAML file with the format of the log")
    folder = describe.add_argument_group("tables of a prepared folder", "The command inspect takes such a folder only.")
    folder.add_argument("--report", action="store_true", help="only write its report.html again")


def _add_prepare_arguments(prepare: argparse.ArgumentParser) -> None:
    prepare.add_argument(
        "input",
        nargs="+",
        help="the log: files, a folder or a quoted glob, as paths or URIs (s3://bucket/day_*.gz), or a Delta or "
        "Iceberg table. Files are text, JSON lines or Parquet; text and JSON may be compressed (.gz, .zst, .tar.gz)",
    )
    prepare.add_argument("output", type=Path, help="the prepared folder to create")
    add_shared(prepare, "--version")
    prepare.set_defaults(after_stop="; the same command resumes")

    settings = prepare.add_argument_group(
        "settings",
        "Arguments of the form prepare.key=value change single settings. docs/configuration.md lists all settings.",
    )
    add_shared(settings, "--config", default=RECIPE, help="YAML file whose section prepare is used (%(default)s)")
    add_shared(settings, "--data")
    settings.add_argument(
        "--layout",
        choices=tuple(_LAYOUTS),
        default="blocks",
        help="zoo: write files that the Wide&Deep of MindSpore's model zoo can read. Short for: "
        + " ".join(_LAYOUTS["zoo"]),
    )
    vocabulary = prepare.add_argument_group("vocabulary of another folder")
    vocabulary.add_argument(
        "--vocabulary", type=Path, metavar="DIR", help="use the ids of this prepared folder, and fit nothing"
    )
    vocabulary.add_argument(
        "--extend", action="store_true", help="with --vocabulary: new values of this log get ids after all others"
    )
    existing = prepare.add_argument_group("existing output")
    add_shared(existing, "--overwrite", help="replace an existing prepared folder")
    add_shared(existing, "--restart")

    workers = prepare.add_argument_group("workers")
    add_shared(workers, "--executor", choices=EXECUTORS, default=EXECUTORS[0])
    add_shared(workers, "--scheduler")


def _describe(command: argparse.Namespace, settings: list[str]) -> None:
    """Propose the description of a log, check a log against its description, or show a prepared folder."""
    folder = Path(command.input[0])
    if command.name == _INSPECT or (folder / SCHEMA_FILE).is_file():
        if len(command.input) > 1 or settings or command.data or command.label or command.version is not None:
            raise ValueError(f"a prepared folder is shown by itself; give {folder} without other inputs and settings")
        _show_folder(folder, command.report)
    elif command.report:
        raise ValueError(f"--report is for a prepared folder, and {folder} is none")
    elif command.name == _PRE_CHECK or command.data or settings:
        if command.label:
            raise ValueError("--label is for a proposal; the label of a description is its column of kind label")
        encoding = read_options(overrides=settings, data_path=command.data).encoding
        _check(command.input, command.rows, command.version, encoding)
    else:
        from data_prep.checks.propose import describe
        from data_prep.checks.reject_causes import print_findings
        from data_prep.execution.tasks import keep_freed_memory

        keep_freed_memory()
        proposal = describe(command.input, command.rows, command.label, command.version)
        show(proposal.as_yaml(), end="")
        show(proposal.label_line, file=sys.stderr)
        print_findings(proposal.findings, sys.stderr)


def _check(inputs: list[str], num_rows: int, version: int | None, encoding: EncodingOptions) -> None:
    """Print figures and findings about the first rows of a log.

    Raise ValueError if a finding says that something is wrong.
    """
    from data_prep.checks.pre_check import pre_check
    from data_prep.checks.reject_causes import print_findings

    findings = pre_check(inputs, num_rows, encoding.data, encoding.categorical_columns, version)
    print_findings(findings)
    if num_wrong := sum(each.is_wrong for each in findings):
        raise ValueError(f"{num_wrong} thing{'s' * (num_wrong > 1)} wrong with {inputs[0]}, see above")


def _show_folder(folder: Path, is_report: bool) -> None:
    """Verify a prepared folder and print tables of its rows.

    If `is_report` is True, only write its report.html again.
    """
    if is_report:
        from data_prep.report import write_report

        show(write_report(folder))
    else:
        from data_prep.checks.inspect import inspect

        inspect(folder)


def _download(command: argparse.Namespace, _: list[str]) -> None:
    """Download a data set's log, or resume a download."""
    from data_prep.sources.download import accept_terms, download, read_download_section

    section = read_download_section(command.data)
    accept_terms(section.terms, command.accept_terms)
    show(download(section, command.output))


def _prepare(command: argparse.Namespace, settings: list[str]) -> None:
    """Turn a raw log into a prepared folder, or resume an interrupted run."""
    from data_prep.pipeline.prepare import prepare

    options = read_options(command.config, [*_LAYOUTS[command.layout], *settings], command.data)
    log.info("settings: %s", command.config)
    prepare(
        command.input,
        command.output,
        options,
        overwrite=command.overwrite,
        restart=command.restart,
        vocabulary_of=command.vocabulary,
        extend=command.extend,
        version=command.version,
        executor=ExecutorChoice(command.executor, command.scheduler),
        report=True,
    )


def _suggest_crosses(command: argparse.Namespace, _: list[str]) -> None:
    """Find pairs of fields whose combination as a new field (a cross) lowers the log loss on valid rows."""
    require("scipy", "sklearn")
    from data_prep.checks.suggest_crosses import describe_gains, find_gains

    if command.top < 1:
        raise ValueError(f"--top must be 1 or more; found {command.top}")
    gains = find_gains(command.folder)
    crosses = [field.cross for field in read_schema(command.folder).categorical if field.cross]
    show(describe_gains(gains, command.top, crosses))


def _synthesize(command: argparse.Namespace, _: list[str]) -> None:
    """Write a synthetic log in Criteo's form."""
    from data_prep.sources.shape import Drift
    from data_prep.sources.synthetic import synthesize

    drift = None if command.drift is None else Drift(command.seed, command.drift)
    files = synthesize(
        command.output, command.rows, command.seed, command.workers, True, drift=drift, part_rows=command.part_rows
    )
    show(f"{files.log_path}: {files.rows:,} rows, {files.clicks / files.rows:.2%} clicks")
    show(
        f"{files.truth_path}: the true click probability of each row{' of the first part' if command.part_rows else ''}"
    )


if __name__ == "__main__":
    keep_pandas_out()
    sys.exit(main())
