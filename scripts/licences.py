"""Print docs/licences.md: the packages in requirements.lock, grouped by the licence that each installed package states.

python -m scripts.licences > docs/licences.md
"""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"
OPENING = """# Licences of the packages

What `make setup` installs, by the licence that each package states. Nothing of them is part of this project, which is
under Apache-2.0 (`LICENSE`). Written by `python -m scripts.licences > docs/licences.md`.

| licence | packages |
|---|---|"""


def licence(name: str) -> str:
    """Return the licence that the installed package `name` states.

    The result is the licence expression in the package's metadata, else its licence classifiers, else the first line of
    its licence text.
    """
    metadata = distribution(name).metadata
    classifiers = [text for text in metadata.get_all("Classifier") or [] if text.startswith("License :: ")]
    short = [text.rpartition(" :: ")[2] for text in classifiers if not text.endswith("OSI Approved")]
    expression, text = ("".join(metadata.get_all(key) or []).strip() for key in ("License-Expression", "License"))
    return expression or ", ".join(short) or (text.splitlines()[0] if text else "not stated")


def locked() -> dict[str, str]:
    """Return the version of each package in requirements.lock, by the name of the package."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE))


def markdown() -> str:
    """Return the text of docs/licences.md."""
    packages: dict[str, list[str]] = {}
    for name, version in locked().items():
        packages.setdefault(licence(name), []).append(f"{name} {version}")
    return "\n".join([OPENING, *(f"| {name} | {', '.join(packages[name])} |" for name in sorted(packages)), ""])


if __name__ == "__main__":
    print(markdown(), end="")
