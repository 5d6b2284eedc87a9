"""A Python without the packages that a command needs gets one line that says so, not a traceback."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_PYTHON = (3, 11)


def require(*packages: str) -> None:
    """End with status 2 where this Python has not all of the packages, by the names they are imported by."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing or sys.version_info < _PYTHON:
        print(f"error: {explain_missing(*missing)}", file=sys.stderr)
        sys.exit(2)


def explain_missing(*packages: str) -> str:
    """Return what to say of packages that are missing."""
    found = f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"
    wanted = f"has no {', '.join(packages)}" if packages else f"is older than {'.'.join(map(str, _PYTHON))}"
    return f"{found} {wanted}; run make setup, then use .venv/bin/python"
