"""Report packages that a command needs and this Python lacks in one line, without a traceback."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).parents[1]  # the folder of app, data_prep and common
_PYTHON = (3, 11)
_PEERS = {"fastapi", "lightgbm", "polars", "torch"}  # that benchmarks compare with: the extra `bench`


def require(*packages: str) -> None:
    """Exit with status 2 if this Python is too old or lacks any of the packages, given by their import names."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing or sys.version_info < _PYTHON:
        print(f"error: {explain_missing(*missing)}", file=sys.stderr)
        sys.exit(2)


def explain_missing(*packages: str) -> str:
    """Return the message about missing packages, or about an old Python if none is missing."""
    python = f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"
    fault = f"has no {', '.join(packages)}" if packages else f"is older than {'.'.join(map(str, _PYTHON))}"
    target = ".venv/.bench-installed" if _PEERS.intersection(packages) else "setup"
    return f"{python} {fault}; run make {target}, then use .venv/bin/python"


def project_environment() -> dict[str, str]:
    """Return the environment for another process that finds the project's modules, whatever folder it is started in."""
    modules = [str(PROJECT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(modules))}


def load(package: str) -> ModuleType:
    """Return a package that not every use needs. Raise ModuleNotFoundError with advice if it is missing."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(explain_missing(package), name=package) from error
