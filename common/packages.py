"""Check that the packages that a command needs are installed. If not, say so in one line, without a traceback."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from types import ModuleType

PROJECT = Path(__file__).parents[1]  # The folder that contains app, data_prep and common.
_PYTHON = (3, 11)
_INSTALLED = "wide_deep.pth"  # File of `make setup` with which its Python finds the project from any folder.
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
    return f"{python} {fault}; run {make_command(target)}, then use .venv/bin/python"


def python_command(words: str) -> str:
    """Return the command line `python -m WORDS`, for the user's shell, in a form that works in the working folder.

    A Python that is not the first one on the path is named by its path. Outside the project's folder, -P keeps modules
    of the working folder from taking the place of the project's.
    """
    on_path = shutil.which("python")
    is_on_path = on_path is not None and Path(on_path).parent == Path(sys.executable).parent
    python = "python" if is_on_path else min(os.path.relpath(sys.executable), sys.executable, key=len)
    if Path.cwd() == PROJECT:
        return f"{quote(python)} -m {words}"
    installed = Path(sysconfig.get_path("purelib"), _INSTALLED)
    is_installed = installed.is_file() and installed.read_text(encoding="utf-8").strip() == str(PROJECT)
    return f"{'' if is_installed else f'PYTHONPATH={quote(str(PROJECT))} '}{quote(python)} -P -m {words}"


def make_command(target: str) -> str:
    """Return the command line `make TARGET` in a form that works in the working folder."""
    return f"make {target}" if Path.cwd() == PROJECT else f"make -C {quote(str(PROJECT))} {target}"


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
