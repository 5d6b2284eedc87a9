"""Print docs/licences.md: the licence of each package of requirements.lock, as the installed package states it.

python -m scripts.licences > docs/licences.md
"""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"
OPENING = """# Licences of the packages

What `make setup` installs, as each package states it. Nothing of them is part of this project, which is under
Apache-2.0 (`LICENSE`). Written by `python -m scripts.licences > docs/licences.md`.

| package | version | licence |
|---|---|---|"""


def licence(name: str) -> str:
    """Return the licence of an installed package: its expression, its classifiers or the first line of its text."""
    metadata = distribution(name).metadata
    classifiers = [text for text in metadata.get_all("Classifier") or [] if text.startswith("License :: ")]
    short = [text.rpartition(" :: ")[2] for text in classifiers if not text.endswith("OSI Approved")]
    text = (metadata.get("License") or "").strip().splitlines()
    return metadata.get("License-Expression") or ", ".join(short) or (text[0] if text else "not stated")


def locked() -> dict[str, str]:
    """Return the version of each package of the lock, by name."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE))


def markdown() -> str:
    """Return the page."""
    return "\n".join(
        [OPENING, *(f"| {name} | {version} | {licence(name)} |" for name, version in locked().items()), ""]
    )


if __name__ == "__main__":
    print(markdown(), end="")
