"""Load the native parts of the project, which `make native` builds, and pass arrays to them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Signatures = Mapping[str, tuple[type | None, list[type]]]  # function name -> result, arguments


class NativeLibrary:
    """A library `csrc/build/lib<name>.so` beside a Python file; the variable `<NAME>_LIBRARY` names another file.

    `what` ("log kernels are") and `otherwise` (the setting that does without it) are for messages. `while_loading` are
    environment variables for its constructors, where the user has set no others.
    """

    def __init__(
        self,
        name: str,
        beside: str,
        signatures: Signatures,
        what: str,
        otherwise: str,
        while_loading: Mapping[str, str] | None = None,
    ) -> None:
        self._file = Path(beside).parent / "csrc" / "build" / f"lib{name}.so"
        self._variable = f"{name.upper()}_LIBRARY"
        self._signatures, self._what, self._otherwise = signatures, what, otherwise
        self._while_loading = while_loading or {}
        self._loaded: tuple[str | None, ctypes.CDLL] | None = None

    @property
    def path(self) -> Path:
        """The library's file, which may be missing."""
        return Path(os.environ.get(self._variable, self._file))

    def is_available(self) -> bool:
        """Return True if the library is built and can be loaded."""
        try:
            self.load()
        except OSError:
            return False
        return True

    def load(self) -> ctypes.CDLL:
        """Return the library with its functions declared. Raise OSError: what is missing, how to build it."""
        given = os.environ.get(self._variable)
        if self._loaded is None or self._loaded[0] != given:
            self._loaded = (given, self._load(self.path))
        return self._loaded[1]

    def _load(self, path: Path) -> ctypes.CDLL:
        if not path.is_file():
            raise FileNotFoundError(
                f"the native {self._what} not built: {path} is missing; run `make native` (it needs g++ and make), "
                f"or {self._otherwise}"
            )
        if path == self._file:  # one of another release has other arguments, and would crash
            built = path.stat().st_mtime
            sources = (source for ending in ("*.h", "*.cc") for source in path.parents[1].rglob(ending))
            if newer := next((source for source in sources if source.stat().st_mtime > built), None):
                raise OSError(f"{path} was built before {newer} changed; run `make native` to build it again")
        added = self._while_loading.keys() - os.environ.keys()
        os.environ.update((name, self._while_loading[name]) for name in added)
        try:
            library = ctypes.CDLL(str(path))
            for name, (result, arguments) in self._signatures.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:  # not a library, or one of another version
            raise OSError(
                f"{path} cannot be loaded: {error}; run `make native` to build it for this machine"
            ) from error
        finally:
            for name in added:
                del os.environ[name]
        return library


def address(array: NDArray[Any], dtype: DTypeLike, *shape: int) -> int:
    """Return the address of an array's values, valid as long as the array lives.

    C knows neither dtype nor shape, so every array is passed through here: raise TypeError unless it has this dtype and
    shape, aligned and in C order.
    """
    flags = array.flags
    if array.dtype != dtype or array.shape != shape or not (flags.c_contiguous and flags.aligned):
        raise TypeError(
            f"a native kernel needs {np.dtype(dtype)} {list(shape)} in C order, found {array.dtype} "
            f"{list(array.shape)}, {array.strides} bytes apart"
        )
    return int(array.ctypes.data)


def output_address(array: NDArray[Any]) -> int:
    """Return the address of an array that C fills. Raise TypeError if the array is read-only or not in C order."""
    if not array.flags.writeable:
        raise TypeError(f"a native kernel writes to this {array.dtype} {list(array.shape)}, which is read-only")
    return address(array, array.dtype, *array.shape)
