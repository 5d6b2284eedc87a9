"""Trains, evaluates and stores Wide&Deep models whose embedding tables live in host memory (docs/internals/DESIGN.md).

In a notebook: `from app import describe, prepare, train, sweep, evaluate, load_run`. They are loaded on first use, as a
bundle carries this file without them.
"""

import importlib
from typing import Any

__all__ = ["describe", "evaluate", "load_run", "prepare", "sweep", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.cli.notebook"), name)
