"""Choose the kernels of a process: native ones, or NumPy's."""

from __future__ import annotations

import functools
from types import ModuleType

from data_prep.kernels import native, reference


@functools.cache
def choose_kernels(choice: str) -> ModuleType:
    """Return `native` or `reference`, modules with the same functions; "auto" takes the native ones if they are built.

    Raises OSError if "native" is chosen and not built.
    """
    if choice == "native":
        native.load()
    return native if choice != "numpy" and native.is_available() else reference
