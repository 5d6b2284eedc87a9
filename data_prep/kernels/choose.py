"""Choose the kernels of a process: native ones, or NumPy's."""

from __future__ import annotations

import functools
from types import ModuleType

from data_prep.kernels import native, numpy_kernels


@functools.cache
def choose_kernels(choice: str) -> ModuleType:
    """Return `native` or `numpy_kernels`, modules with the same functions. "auto" takes native ones that are built.

    Raises OSError if "native" is chosen and not built.
    """
    if choice == "native":
        native.load()
    return native if choice != "numpy" and native.is_available() else numpy_kernels
