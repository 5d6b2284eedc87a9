"""Follow a run that is still training, and evaluate each of its checkpoints.

The training process may remove or compact (rewrite) a checkpoint at any time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from app.checkpoint.manifest import ManifestReader
from app.checkpoint.read import Checkpoint, DamagedCheckpointError
from app.checkpoint.retention import open_if_whole, step_folders
from app.run.decision import read_state
from app.run.folder import CONFIG_FILE, run_checkpoints
from app.run.report import NOT_WRITTEN
from common.files import is_locked

log = logging.getLogger("app")

WRONG_INPUT = 2  # Exit status for wrong input.
POLL_SECONDS = 2.0
# Time to wait after a run was stopped or killed, in case a scheduler or a shell loop resumes it.
RESUME_SECONDS = 60.0
# Words for the log if no process holds the lock on a run's folder, by the status in the run's run.json.
ENDS = {"finished": "has finished", "stopped": "was stopped", "failed": "failed", "running": "was killed"}


def follow(run_path: Path, evaluate: Callable[[Checkpoint], int]) -> int:
    """Evaluate each checkpoint of a run, and return the exit status.

    `evaluate` returns the exit status for one checkpoint. A status other than 0 ends the loop and is returned. Only
    NOT_WRITTEN (the run's report could not be written) does not end it, because the next evaluation draws the report
    again. A damaged checkpoint is skipped, and `follow` then returns WRONG_INPUT at the end of the run.
    """
    status = worst = 0
    for checkpoint in new_checkpoints(run_path):
        try:
            status = _evaluate_while_kept(checkpoint, evaluate)
        except DamagedCheckpointError as error:
            log.error("error: %s is skipped: %s", checkpoint.path, error)
            worst = WRONG_INPUT
            continue
        if status not in (0, NOT_WRITTEN):
            return status
    return worst or status


def _evaluate_while_kept(checkpoint: Checkpoint, evaluate: Callable[[Checkpoint], int]) -> int:
    """Evaluate a checkpoint, as long as the training run keeps it, and return the exit status.

    If the training run removed the checkpoint meanwhile, skip it and return 0. If the run compacted (rewrote) the
    checkpoint, open and evaluate it again.
    """
    while True:
        try:
            status = evaluate(checkpoint)
        except (OSError, ValueError):
            if checkpoint.is_kept():
                raise
        else:
            if status != WRONG_INPUT or checkpoint.is_kept():
                return status
        try:
            checkpoint = Checkpoint.open(checkpoint.path)
        except (FileNotFoundError, ValueError):
            log.warning("warning: %s was removed before it was evaluated", checkpoint.path)
            return 0


def new_checkpoints(run_path: Path, wait: Callable[[float], object] = time.sleep) -> Iterator[Checkpoint]:
    """Yield each whole checkpoint of a run in the order of steps, including those that are written later.

    If the run has not begun, wait until it does. End after the last checkpoint if the run is finished. If it was
    stopped or killed, end after RESUME_SECONDS in which no process resumed it (none held the lock on its folder). A
    checkpoint that is removed before its turn is skipped. `wait` replaces `time.sleep` in tests.
    """
    seen_ids: set[str] = set()
    idle_seconds, waits_for = 0.0, ""
    read = ManifestReader()
    while True:
        # Ask for the run's lock before looking for checkpoints. If the run ends between the two, `runs` is still True,
        # so that the next round of this loop finds the run's last checkpoints.
        runs = is_locked(run_path)
        has_begun = (run_path / CONFIG_FILE).is_file()
        status = read_state(run_path).get("status", "running")
        num_before = len(seen_ids)
        for path in step_folders(run_checkpoints(run_path)) if has_begun else ():
            checkpoint = open_if_whole(path, read)
            if isinstance(checkpoint, Checkpoint) and checkpoint.manifest.id not in seen_ids:
                seen_ids.add(checkpoint.manifest.id)
                yield checkpoint
        # The caller may take long to evaluate a checkpoint, and the run may have been resumed meanwhile. So the wait of
        # RESUME_SECONDS begins anew if there were new checkpoints.
        if runs or len(seen_ids) > num_before:
            idle_seconds = 0.0
            if len(seen_ids) > num_before:
                continue
        elif has_begun:
            end = ENDS.get(status, f"ended with status {status!r}")
            if status == "finished" or idle_seconds >= RESUME_SECONDS:
                log.info(
                    "the run in %s %s, and its %d checkpoint(s) that were seen are done", run_path, end, len(seen_ids)
                )
                return
            if idle_seconds == 0:
                log.info("the run in %s %s; waiting %.0f s for it to be resumed", run_path, end, RESUME_SECONDS)
            idle_seconds += POLL_SECONDS
        missing = "" if seen_ids else "its first checkpoint" if has_begun else "it to begin"
        if missing and missing != waits_for:
            waits_for = missing
            log.info("the run in %s: waiting for %s", run_path, missing)
        wait(POLL_SECONDS)
