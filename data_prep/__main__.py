"""The command line: `python -m data_prep {prepare,inspect,synthesize}`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from data_prep.options import read_options


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status is 2 where input or settings are wrong, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        return int(options.run(options))
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped by Ctrl-C; nothing half-finished is left", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_prep", description="Prepare click logs for training.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    prepare = commands.add_parser("prepare", help="raw log to a prepared folder")
    prepare.add_argument("input", type=Path, help="dac.tar.gz, train.txt, train.txt.gz, or a folder with one of them")
    prepare.add_argument("output", type=Path, help="the prepared folder to make")
    prepare.add_argument("--config", type=Path, metavar="FILE", help="YAML file; its section prepare: is used")
    prepare.add_argument("--overwrite", action="store_true", help="replace a prepared folder that is there")
    prepare.add_argument("settings", nargs="*", metavar="prepare.key=value", help="changes to the settings")
    prepare.set_defaults(run=_prepare)

    inspect = commands.add_parser("inspect", help="check a prepared folder and print what it holds")
    inspect.add_argument("folder", type=Path)
    inspect.set_defaults(run=_inspect)

    synthesize = commands.add_parser("synthesize", help="make a synthetic log of the raw form")
    synthesize.add_argument("output", type=Path, help="the log to write")
    synthesize.add_argument("--rows", type=int, required=True)
    synthesize.add_argument("--seed", type=int, default=1)
    synthesize.set_defaults(run=_synthesize)
    return parser


def _prepare(arguments: argparse.Namespace) -> int:
    from data_prep.prepare import prepare

    options = read_options(arguments.config, arguments.settings)
    prepare(arguments.input, arguments.output, options, overwrite=arguments.overwrite)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from data_prep.inspect_prepared import inspect

    return inspect(arguments.folder)


def _synthesize(arguments: argparse.Namespace) -> int:
    from data_prep.synthetic import synthesize

    synthesize(arguments.output, rows=arguments.rows, seed=arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
