"""Append lines to the logs of a run, and events to its TensorBoard file. After an error such as a full disk, write what
could not be written as soon as it is possible. When a run is resumed, remove the lines of the steps that it takes
again.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.checkpoint.manifest import Manifest
from app.evaluation.results import forget_evaluations
from common.files import message_of, parse_json, sync_folder, write_whole
from common.packages import without

LOSS_LOG, EVAL_LOG, METRICS = "loss.log", "eval.log", "metrics.jsonl"


def forget_after(run_path: Path, manifest: Manifest) -> None:
    """Remove the lines and evaluations of steps after a checkpoint, because a resumed run takes these steps again.

    `manifest` describes the checkpoint, and `run_path` is the run folder with the logs.
    """
    # A log line of step 0 has the evaluation of the model that the run started from. Only a run that resumes from step
    # 0 writes this line again. So keep the line if the run resumes from a later step.
    last_evaluated = max(manifest.selection.get("last_step", -1), 0 if manifest.step else -1)

    def is_metric_kept(line: str) -> bool:
        try:
            step = float(parse_json(line)["step"])
        except (ValueError, KeyError, TypeError):
            # Return False, which removes the line: it is damaged, for example cut short because the process was killed.
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
        """True if the file contains all lines that were appended. False if some are only in memory after an error."""
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
        """Write the appended lines from the page cache to the disk (fsync), so that they survive a power cut. If that
        fails, log the error.
        """
        try:
            sync_folder(self.path)
            sync_folder(self.path.parent)
        except FileNotFoundError:  # The file does not exist, because no line has been written yet.
            pass
        except OSError as error:
            log.error(
                "error: %s cannot be synced: %s; a power cut may take its last lines", self.path, message_of(error)
            )


class EventFile(RunLog):
    """The TensorBoard event file that one launch (one start of a training) writes. It holds numbers by step.

    Events and checksums come from tensorboardX. Its own writer is not used, because it hands events to a thread, so
    that a kill would lose the latest events, and a full disk would end the thread.

    `purge_step` is the first step that this launch takes. TensorBoard ignores points of this and later steps in older
    files, so that no point of a resumed run appears twice.
    """

    def __init__(self, folder: Path, purge_step: int) -> None:
        super().__init__(folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}")
        self._purge_step = purge_step

    def add(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Append a TensorBoard event with the finite numbers in `values` at `step` to the file.

        A number's tag is `prefix`/name. Values that are not finite numbers are left out.
        """
        numbers = {
            f"{prefix}/{name}": float(value)
            for name, value in values.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }
        if not numbers:
            return
        # Import tensorboardX only when the first event is written, because the import takes 0.2 s and more. It imports
        # PyTorch, where it is installed, only for the name of a type, which takes two seconds, and one more at exit.
        with without("torch"):
            from tensorboardX.proto.event_pb2 import Event, SessionLog
            from tensorboardX.proto.summary_pb2 import Summary
            from tensorboardX.record_writer import masked_crc32c

        events = []
        if self.is_written and not self.path.exists():
            events.append(Event(file_version="brain.Event:2"))
            if self._purge_step > 1:
                events.append(Event(step=self._purge_step, session_log=SessionLog(status=SessionLog.START)))
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        events.append(Event(step=step, summary=Summary(value=scalars)))
        # Ignore the error if the folder of the event file cannot be made: `append` will then fail to open the file and
        # log that error.
        with suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
        for event in events:
            event.wall_time = time.time()
        # A record is framed by its length and checksums, as in TensorFlow's core/lib/io/record_writer.h.
        records = [event.SerializeToString() for event in events]
        parts = [part for record in records for part in (struct.pack("<Q", len(record)), record)]
        self.append(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))


PROFILED_STEPS = 5

# Name of the folder within a run folder that contains MindSpore's profile of some training steps.
PROFILE_FOLDER = "profile"

OP_TIMES = "op_times.json"
