"""The checkpoints of a run as they come, for a process that evaluates them beside the training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from app.checkpoint.manifest import read_manifest
from app.checkpoint.retention import whole_checkpoints
from app.run.folder import CONFIG_FILE, run_checkpoints
from app.run.plan import read_state
from common.files import is_locked

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
RESUME_SECONDS = 60.0  # for what starts a run again that was stopped or killed: a scheduler, a loop in a shell
# How a run ended of which no process holds the lock, by the status that its run.json was left with.
ENDS = {"finished": "has finished", "stopped": "was stopped", "failed": "failed", "running": "was killed"}


def new_checkpoints(run_path: Path, wait: Callable[[float], object] = time.sleep) -> Iterator[Path]:
    """Give each whole checkpoint of a run, those that are there and those that come, in the order of steps.

    Waits for a run that has not begun. A run goes on as long as a process holds the lock of its folder. Ends when the
    run has finished and all checkpoints were given, and RESUME_SECONDS after it was stopped or killed, where nothing
    resumes it meanwhile. A checkpoint that is removed before its turn is passed over.
    """
    given: set[str] = set()
    idle_seconds, waits_for = 0.0, ""
    while True:
        runs = is_locked(run_path)  # asked first: what was saved before the end is seen below
        has_begun = (run_path / CONFIG_FILE).is_file()
        status = read_state(run_path).get("status", "running")
        num_given = len(given)
        for path, identity in _whole(run_path) if has_begun else ():
            if identity not in given:
                given.add(identity)
                yield path
        if runs or len(given) > num_given:  # it may have been resumed while its last checkpoints were evaluated
            idle_seconds = 0.0
            if len(given) > num_given:
                continue
        elif has_begun:
            end = ENDS.get(status, f"ended with status {status!r}")
            if status == "finished" or idle_seconds >= RESUME_SECONDS:
                log.info(
                    "the run in %s %s, and its %d checkpoint(s) that were seen are done", run_path, end, len(given)
                )
                return
            if idle_seconds == 0:
                log.info("the run in %s %s; waiting %.0f s for it to be resumed", run_path, end, RESUME_SECONDS)
            idle_seconds += POLL_SECONDS
        missing = "" if given else "its first checkpoint" if has_begun else "it to begin"
        if missing and missing != waits_for:
            waits_for = missing
            log.info("the run in %s: waiting for %s", run_path, missing)
        wait(POLL_SECONDS)


def _whole(run_path: Path) -> Iterator[tuple[Path, str]]:
    """The whole checkpoints of a run with their ids."""
    for path in whole_checkpoints(run_checkpoints(run_path)):
        try:
            yield path, read_manifest(path).id
        except (FileNotFoundError, ValueError):  # removed meanwhile
            continue
