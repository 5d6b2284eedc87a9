"""Parse the words of a command line, and define the arguments that several commands share, so that each has the same
meaning and help text.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import RELEASE

# For each shared argument by its name: the keyword arguments with which argparse's `add_argument` is called.
SHARED: dict[str, dict[str, Any]] = {
    "bundle": {"type": Path, "metavar": "BUNDLE", "help": "bundle written by `export`"},
    "inputs": {
        "nargs": "+",
        "metavar": "INPUT",
        "help": "log, with or without labels: files, folders, globs, URIs; or -",
    },
    "settings": {
        "nargs": "*",
        "default": (),
        "metavar": "section.key=value",
        "help": "settings (docs/configuration.md)",
    },
    "--calibrate": {
        "nargs": "?",
        "const": "platt",
        "default": False,
        "choices": ("platt", "auto"),
        "help": "fit the scores to the click rates of valid. platt, the default: by a line; auto: by a factor, if that "
        "lowers the log loss beyond its standard error",
    },
    "--config": {"type": Path, "metavar": "FILE", "help": "YAML file with settings (%(default)s)"},
    "--data": {"type": Path, "metavar": "FILE", "help": "YAML file with the format of the log (Criteo's format)"},
    "--dataset": {"type": Path, "metavar": "DIR", "help": "prepared folder (the one it was trained on)"},
    "--executor": {"help": "run on local processes, Dask or MPI (%(default)s)"},
    "--hostfile": {"default": "", "metavar": "FILE", "help": "hosts of the processes (all on this host)"},
    "--overwrite": {"action": "store_true", "help": "replace an existing output"},
    "--ranks": {"type": int, "default": 1, "metavar": "N", "help": "number of processes (%(default)s)"},
    "--restart": {"action": "store_true", "help": "start over instead of resuming an interrupted run"},
    "--rows": {"type": int, "metavar": "N", "help": "number of rows to read (%(default)s)"},
    "--run": {"type": Path, "default": Path("device_0"), "metavar": "DIR", "help": "run folder (%(default)s)"},
    "--scheduler": {
        "metavar": "ADDRESS",
        "help": "with --executor dask: address of a cluster, such as tcp://host:8786 (a new one on this machine)",
    },
    "--seed": {"type": int, "default": 1, "metavar": "N", "help": "random seed (%(default)s)"},
    "--servers": {"type": int, "default": 0, "metavar": "N", "help": "further processes that hold all table rows (0)"},
    "--split": {"default": "test", "help": "rows to evaluate on: train, valid or test (%(default)s)"},
    "--version": {
        "type": int,
        "metavar": "N",
        "help": "version of a Delta table, or id of a snapshot of an Iceberg table, to read as the log (the newest)",
    },
    "--workers": {"type": int, "metavar": "N", "help": "number of processes (one per core)"},
}


def add_shared(parser: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Add the shared arguments `names` to `parser`, which is a command's parser or a group of its options.

    `SHARED` has the name, type, default and help of each argument. `changes` are keywords of `add_argument` that
    replace those in `SHARED`.
    """
    for name in names:
        parser.add_argument(name, **SHARED[name] | changes)


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports an unknown argument together with the usage of the subcommand that was called.

    argparse itself would print the usage of the whole program. Arguments `section.key=value` may stand anywhere among
    the options.

    If the only argument of a program or of one of its commands is `--version`, the parser prints the project's version
    and exits. This holds also for commands with an option `--version N`, which is useless without other arguments.
    """

    # True while argparse parses: it calls `parse_known_args` again for each of its two passes, first for the options
    # and then for the positional arguments.
    _in_passes = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Return the parsed arguments, as argparse does, but exit with a usage error if there are unknown arguments."""
        if self._in_passes:
            return super().parse_known_args(args, namespace)
        words = self._with_values(sys.argv[1:] if args is None else args)
        if words == ["--version"]:
            print(RELEASE)
            self.exit()
        self._in_passes = any(action.dest == "settings" for action in self._actions)
        try:
            parse = super().parse_known_intermixed_args if self._in_passes else super().parse_known_args
            parsed, unknown = parse(words, namespace)
        finally:
            self._in_passes = False
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def _with_values(self, words: Sequence[str]) -> list[str]:
        """Return the words of a command line in which options without their optional value get a default value.

        The options concerned accept one of several choices as their value (argparse's `choices`). If none of the
        choices follows the option, the value of argparse's `const` is added. Otherwise argparse would take a positional
        argument or a setting after the option for the option's value.
        """
        optional = {name: action for action in self._actions if action.nargs == "?" for name in action.option_strings}
        return [
            f"{word}={optional[word].const}"
            if word in optional and following not in (optional[word].choices or ())
            else word
            for word, following in itertools.zip_longest(words, words[1:], fillvalue="")
        ]
