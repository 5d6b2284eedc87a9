"""Check that the packages that a command needs are installed.

If one is missing, say so in one line, without a traceback. Also form the command lines that messages advise.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from shlex import quote
from types import ModuleType, SimpleNamespace
from typing import Any

PROJECT = Path(__file__).parents[1]  # The folder that contains app, data_prep and common.
_PYTHON = (3, 11)
# File that `make setup` writes into .venv, so that its Python finds the project from any folder.
_INSTALLED = "wide_deep.pth"
# Packages that only benchmarks use. The extra `bench` of the project installs them.
_PEERS = {"fastapi", "lightgbm", "polars", "torch"}


def require(*packages: str) -> None:
    """Print an error and exit with status 2 if this Python is too old or lacks one of `packages`.

    The packages are given by their import names.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing or sys.version_info < _PYTHON:
        print(f"error: {explain_missing(*missing)}", file=sys.stderr)
        sys.exit(2)


def explain_missing(*packages: str) -> str:
    """Return a message that says that `packages` are missing, or that this Python is too old if none is missing.

    The message also says how to install what is missing.
    """
    python = f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"
    fault = f"has no {', '.join(packages)}" if packages else f"is older than {'.'.join(map(str, _PYTHON))}"
    target = ".venv/.bench-installed" if _PEERS.intersection(packages) else "setup"
    return f"{python} {fault}; run {make_command(target)}, then use .venv/bin/python"


def python_command(words: str) -> str:
    """Return a command line that runs `python -m WORDS` from the user's working folder, quoted for a shell.

    A Python that is not the first one on the PATH is named by its path. Outside the project's folder, -P keeps modules
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
    """Return a command line that runs `make TARGET` from the user's working folder, quoted for a shell."""
    return f"make {target}" if Path.cwd() == PROJECT else f"make -C {quote(str(PROJECT))} {target}"


def project_environment() -> dict[str, str]:
    """Return this process's environment variables, with the project's folder added to PYTHONPATH.

    A process that is started with these variables finds the project's modules from any working folder.
    """
    modules = [str(PROJECT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(modules))}


def keep_pandas_out() -> None:
    """Let pyarrow work without pandas, which it would otherwise import (0.3 s) when it first converts an array.

    pyarrow tries the import once and remembers that it failed. Only a program that converts no data frames may call
    this function.
    """
    import pyarrow as pa

    with without("pandas"):
        pa.array([])


@contextmanager
def without(package: str) -> Iterator[None]:
    """Make `import PACKAGE` fail inside the `with` block, unless the package was imported before.

    Some libraries import a large package if it is installed, but do without it if the import fails.
    """

    def find_spec(name: str, *_: Any) -> None:
        if name == package:
            raise ModuleNotFoundError(f"{package} is not imported here", name=package)

    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def load(package: str) -> ModuleType:
    """Import the package `package`, which only some commands need, and return its module.

    If the package is missing, raise ModuleNotFoundError with a message that says how to install the package.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(explain_missing(package), name=package) from error


def load_alone(name: str) -> Any:
    """Load and return a compiled module of MindSpore, such as mindspore._c_dataengine, without the rest of MindSpore.

    `import mindspore` takes 414 MB and two seconds of CPU. The modules that read and write MindRecord files take 0.2 s
    and 110 MB, or 20 ms and 13 MB. The module is registered in `sys.modules`, so that a later `import mindspore` uses
    the same one. Raise ImportError if it is missing.
    """
    if name not in sys.modules:
        package = find_spec("mindspore")
        spec = PathFinder.find_spec(name, package.submodule_search_locations) if package else None
        if spec is None or spec.loader is None:
            advice = f"run: {make_command('setup')}"
            raise ImportError(f"MindRecord files are read and written by MindSpore, and there is no {name}; {advice}")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]
