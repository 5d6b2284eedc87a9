"""The checkpoints of a run as they come, for a process that judges them beside the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from app.manifest import read_manifest
from app.retention import whole_checkpoints

POLL_SECONDS = 2.0


def new_checkpoints(
    folder: Path, is_running: Callable[[], bool], wait: Callable[[float], object] = time.sleep
) -> Iterator[Path]:
    """Each whole checkpoint below `folder`, those that are there and those that come, in the order of steps.

    Ends when the run has ended and all of them were given. One that is removed meanwhile is passed over.
    """
    given: set[str] = set()
    while True:
        runs = is_running()  # asked first: what was saved before the end is seen below
        for path in whole_checkpoints(folder):
            try:
                identity = read_manifest(path).id
            except FileNotFoundError:
                continue
            if identity not in given:
                given.add(identity)
                yield path
        if not runs:
            return
        wait(POLL_SECONDS)
