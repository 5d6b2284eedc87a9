"""Define the command-line arguments that several commands share, so that each has the same meaning and help text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

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
