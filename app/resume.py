"""The checkpoint that a run goes on from: the newest one that is whole and of that run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.checkpoint_reading import verify
from app.identity import first_difference, kept_settings
from app.retention import step_folders


@dataclass(frozen=True)
class Found:
    """The newest checkpoint that can be used, if any, and the newer ones that cannot, with the reason of each."""

    checkpoint: Path | None
    refused: dict[Path, str]


def find_newest(folder: Path, identity: dict[str, Any]) -> Found:
    """Look below `folder` for the newest checkpoint of the run with this `identity`, reading every byte of it."""
    refused: dict[Path, str] = {}
    for path in reversed(step_folders(folder)):
        try:
            check_usable(path, identity)
        except (ValueError, OSError) as error:
            refused[path] = str(error)
        else:
            return Found(path, refused)
    return Found(None, refused)


def check_usable(path: Path, identity: dict[str, Any]) -> None:
    """Raise as `verify`, and ValueError where the checkpoint is of a run with other settings or data."""
    manifest = verify(path)
    difference = first_difference({"config": kept_settings(manifest.config), "data": manifest.data}, identity)
    if difference:
        raise ValueError(f"{path} is of another run: {difference}")
