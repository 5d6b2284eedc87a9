"""Finds and loads a native part of the project, as `make native` builds it, and gives it arrays."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

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


def address(array: NDArray[Any], dtype: DTypeLike, *shape: int) -> int:
    """Return where C finds the values of an array, valid as long as the array lives.

    C sees a place in memory and nothing else, so this is the one way from an array to it. Raises TypeError unless the
    array has this dtype and shape, and its values stand side by side, row by row.
    """
    flags = array.flags
    if array.dtype != dtype or array.shape != shape or not (flags.c_contiguous and flags.aligned):
        raise TypeError(
            f"a native kernel needs {np.dtype(dtype)} {list(shape)} in C order, found {array.dtype} "
            f"{list(array.shape)}, {array.strides} bytes apart"
        )
    return int(array.ctypes.data)


def room(array: NDArray[Any]) -> int:
    """Return the address of an array that C fills. Raises TypeError as `address`, and where the array is read-only."""
    if not array.flags.writeable:
        raise TypeError(f"a native kernel writes to this {array.dtype} {list(array.shape)}, which is read-only")
    return address(array, array.dtype, *array.shape)
