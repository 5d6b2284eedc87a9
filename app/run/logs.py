"""Append lines to the logs of a run, also after a full disk. When a run is resumed, remove the lines of the steps that
it takes again.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from app.checkpoint.manifest import Manifest
from app.evaluation.results import forget_evaluations
from common.files import message_of, parse_json, sync_folder, write_whole

LOSS_LOG, EVAL_LOG, METRICS = "loss.log", "eval.log", "metrics.jsonl"


def forget_after(run_path: Path, manifest: Manifest) -> None:
    """Remove the lines and evaluations of steps after a checkpoint, because a resumed run takes these steps again.

    `manifest` describes the checkpoint, and `run_path` is the run folder with the logs.
    """
    # A line of step 0 has the evaluation of the model that the run started from. This line is only written again if the
    # run resumes from step 0, so keep it otherwise.
    last_evaluated = max(manifest.selection.get("last_step", -1), 0 if manifest.step else -1)

    def is_metric_kept(line: str) -> bool:
        try:
            step = float(parse_json(line)["step"])
        except (ValueError, KeyError, TypeError):
            # Remove a damaged line, for example one that was cut short because the process was killed.
            return False
        return step <= manifest.step and (step <= last_evaluated or '"split"' not in line)

    def is_evaluation_kept(line: str) -> bool:
        match = re.match(r"epoch: \d+ step: (\d+) .*\n", line)
        return match is not None and int(match[1]) <= min(manifest.step, last_evaluated)

    for name, is_kept in ((METRICS, is_metric_kept), (EVAL_LOG, is_evaluation_kept), (LOSS_LOG, None)):
        path = run_path / name
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.is_file() else []
        remaining_lines = [line for line in lines if is_kept(line)] if is_kept else lines[: manifest.step]
        if len(remaining_lines) < len(lines):
            write_whole(path, "".join(remaining_lines))
    forget_evaluations(run_path, last_evaluated)


log = logging.getLogger(__name__)


class RunLog:
    """A file to which lines are appended. An error of the file system does not stop the run.

    Lines that cannot be written, for example because the disk is full, are kept in memory, and written when the next
    line is appended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten = b""

    @property
    def is_written(self) -> bool:
        """True if all appended lines are in the file."""
        return not self._unwritten

    def append(self, text: str | bytes) -> None:
        """Append `text`, lines or binary records, to the file. If it cannot be written, keep it in memory, and log the
        error when writing begins to fail.
        """
        was_written = self.is_written
        self._unwritten += text.encode() if isinstance(text, str) else text
        try:
            with self.path.open("ab", buffering=0) as file:
                while self._unwritten:
                    self._unwritten = self._unwritten[file.write(self._unwritten) :]
        except OSError as error:
            if was_written:
                log.error(
                    "error: %s cannot be written: %s; its lines are kept until it can", self.path, message_of(error)
                )

    def sync(self) -> None:
        """Sync the lines so far to disk, so that they survive a power cut. If that fails, log the error."""
        try:
            sync_folder(self.path)
            sync_folder(self.path.parent)
        except FileNotFoundError:  # No line has been written yet.
            pass
        except OSError as error:
            log.error(
                "error: %s cannot be synced: %s; a power cut may take its last lines", self.path, message_of(error)
            )


PROFILED_STEPS = 5

PROFILE_FOLDER = "profile"  # Name of the profile's folder within a run folder.

OP_TIMES = "op_times.json"
