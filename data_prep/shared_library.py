"""Finds and loads a native part of the project, as `make native` builds it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

Signatures = Mapping[str, tuple[type | None, list[type]]]  # function name -> result, arguments


def library_path(csrc: Path, name: str, variable: str) -> Path:
    """Where lib`name`.so is, or would be; the environment variable `variable` names another file."""
    return Path(os.environ.get(variable, csrc / "build" / f"lib{name}.so"))


def load_library(path: Path, what: str, signatures: Signatures, otherwise: str) -> ctypes.CDLL:
    """The library at `path` with its functions declared.

    Raises OSError saying that `what` is missing or does not load, how to build it, and what to choose `otherwise`.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"the native {what} not built: {path} is missing; run `make native` (it needs g++ and make), or {otherwise}"
        )
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:  # no library, or one of another version
        raise OSError(f"{path} cannot be loaded: {error}; run `make native` to build it for this machine") from error
    return library
