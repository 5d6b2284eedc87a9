"""Train, evaluate and export Wide&Deep models whose embedding tables live in host memory (docs/internals/DESIGN.md).

In Python: `from app import describe, prepare, train, sweep, evaluate, load_run`. The functions are imported on first
use, because a bundle contains this file but not the module of the functions.
"""

import importlib
from typing import Any

__all__ = ["describe", "evaluate", "load_run", "prepare", "sweep", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.api"), name)
