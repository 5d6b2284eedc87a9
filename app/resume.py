"""The checkpoint that a run goes on from: the newest one that is whole and of that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.checkpoint_reading import check_sizes, verify
from app.identity import difference
from app.retention import step_folders


@dataclass(frozen=True)
class Found:
    """The newest checkpoint that can be used, if any, and the newer ones that cannot, with the reason of each."""

    checkpoint: Path | None
    refused: dict[Path, str]


def find_newest(folder: Path, identity: dict[str, Any], damaged: Mapping[Path, str] | None) -> Found:
    """Look below `folder` for the newest checkpoint of the run with this `identity`.

    `damaged` are those that loading found so, with the reason: what is found is then to be loaded next, and only its
    manifest and sizes are looked at. None reads every byte.
    """
    refused: dict[Path, str] = {}
    for path in reversed(step_folders(folder)):
        try:
            if damaged and path in damaged:
                raise ValueError(damaged[path])
            check_usable(path, identity, read_all=damaged is None)
        except (ValueError, OSError) as error:
            refused[path] = str(error)
        else:
            return Found(path, refused)
    return Found(None, refused)


def check_usable(path: Path, identity: dict[str, Any], read_all: bool) -> None:
    """Raise as `verify`, and ValueError where the checkpoint is of a run with other settings or data."""
    manifest = verify(path) if read_all else check_sizes(path)
    found = difference({"config": manifest.config, "data": manifest.data}, identity)
    if found:
        raise ValueError(f"{path} is of another run: {found}")
