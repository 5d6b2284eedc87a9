"""Check that the packages that a command needs are installed. If not, say so in one line, without a traceback."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).parents[1]  # The folder that contains app, data_prep and common.
_PYTHON = (3, 11)
# Packages that only benchmarks use. They belong to the extra `bench`.
_PEERS = {"fastapi", "lightgbm", "polars", "torch"}


def require(*packages: str) -> None:
    """Exit with status 2 if this Python is too old, or lacks one of the packages. Packages are given by import name."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing or sys.version_info < _PYTHON:
        print(f"error: {explain_missing(*missing)}", file=sys.stderr)
        sys.exit(2)


def explain_missing(*packages: str) -> str:
    """Return the message about missing packages, or about an old Python if no package is missing."""
    python = f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"
    fault = f"has no {', '.join(packages)}" if packages else f"is older than {'.'.join(map(str, _PYTHON))}"
    target = ".venv/.bench-installed" if _PEERS.intersection(packages) else "setup"
    return f"{python} {fault}; run make {target}, then use .venv/bin/python"


def project_environment() -> dict[str, str]:
    """Return this process's environment variables, with the project's folder added to PYTHONPATH.

    A process that is started with them finds the project's modules from any working folder.
    """
    modules = [str(PROJECT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(modules))}


def load(package: str) -> ModuleType:
    """Import and return a package that only some uses need.

    Raise ModuleNotFoundError, with advice, if it is missing.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(explain_missing(package), name=package) from error
