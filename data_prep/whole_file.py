"""Small files that are there whole or not at all, whatever ends the process or the machine."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it, so that a kill or a power cut leaves the old or the new one.

    The file is synced before it is renamed, and its folder after: some milliseconds. Every caller writes at most one
    such file for an evaluation, a launch or a preparation; not for steps.
    """
    beside = path.with_name(f"{path.name}.tmp")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # before the rename: some file systems order the name before the content
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder: a file that was made or renamed there is found after a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those that it lies in, where they are not there; their names are synced."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode, exist_ok=True)
    sync_folder(folder.parent)
