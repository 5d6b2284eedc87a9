"""Write the files of a run (settings, status, logs, TensorBoard events), and find its best checkpoint.

After an error such as a full disk, a log's lines are written as soon as it is possible. When a run is resumed, the
lines of the steps that it takes again are removed.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import re
import shlex
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import best_or_newest, open_named
from app.config.config import Config
from app.evaluation.results import forget_evaluations, write_evaluation
from app.run.decision import ASKED, STATE_FILE, Plan, asked_otherwise, checkpoint_folder
from app.run.identity import FORMAT_VERSION, identity, read_config
from common import settings, yaml_settings
from common.files import message_of, parse_json, sync_folder, write_whole
from common.packages import python_command, without
from data_prep.prepared.schema import Schema

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


log = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"
TENSORBOARD = "tensorboard"


class RunFolder:
    """Writes the files of one run, which uses the settings `config`, into the folder `path`."""

    def __init__(self, path: Path, rank: int, plan: Plan, config: Config, checkpoints: Path | None = None) -> None:
        self.path = path
        self.config = config
        self.checkpoints = checkpoints or path / "checkpoints"
        self.plan = plan
        self._state: dict[str, Any] = {}  # Content of run.json.
        self.log_path = path / f"test_deep{rank}.log"
        self.loss_path, self.eval_path, self.metrics_path = path / LOSS_LOG, path / EVAL_LOG, path / METRICS
        self._losses, self._evals, self._metrics = map(RunLog, (self.loss_path, self.eval_path, self.metrics_path))
        first_step = plan.checkpoint.manifest.step + 1 if plan.checkpoint else 0
        self._events = EventFile(path / TENSORBOARD, purge_step=first_step)
        # Steps whose checkpoint could not be written. It is a set, because the last step's checkpoint is tried twice.
        self._failed_saves: set[int] = set()
        self._failed_evaluations = 0
        self._status_is_written = True
        # Use a monotonic clock, so that the seconds in metrics.jsonl never fall if the system's clock is set back.
        self._started = time.monotonic()

    def append_losses(self, lines: list[str]) -> None:
        """Append `lines`, with the losses of training steps, to the run's loss.log."""
        self._losses.append("".join(f"{line}\n" for line in lines))

    def append_metrics(self, **values: Any) -> None:
        """Append a line with `values` to metrics.jsonl, and the numbers in `values` to TensorBoard's event file."""
        self.write_metrics(values)
        self.write_events(values)

    def write_events(self, values: Mapping[str, Any]) -> None:
        """Add the numbers in `values`, which has the content of a line of metrics.jsonl, to the run's event file for
        TensorBoard.
        """
        numbers = {name: value for name, value in values.items() if name not in ("step", "epoch")}
        self._events.add(values["step"], numbers, values.get("split", "train"))

    def write_metrics(self, values: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl with `values` and the seconds since this process began to train."""
        values = {"seconds": round(time.monotonic() - self._started, 3), **values}
        # JSON has no NaN, so an undefined metric (NaN) becomes null.
        plain = {name: None if value != value else value for name, value in values.items()}
        self._metrics.append(json.dumps(plain) + "\n")

    def append_eval(self, line: str) -> None:
        """Append `line`, with the metrics of an evaluation, to the run's eval.log."""
        self._evals.append(line + "\n")

    def write_evaluation(self, content: dict[str, Any]) -> None:
        """Write `content` as an evaluation's JSON file (app/evaluation/results.py) into the run folder.

        If that fails, log the error and continue.
        """
        try:
            write_evaluation(self.path, content)
        except OSError as error:
            self._failed_evaluations += 1
            log.error("error: no curves of step %d: %s; training continues", content["step"], message_of(error))

    def sync_logs(self) -> None:
        """Write the run's logs from the page cache to the disk (fsync) before a checkpoint is saved, so that the lines
        of all steps so far survive a power cut.
        """
        for file in (self._losses, self._evals, self._metrics, self._events):
            file.sync()

    def note_failed_save(self, step: int, error: Exception) -> None:
        """Record in the log and in metrics.jsonl that the checkpoint of `step` could not be written."""
        self._failed_saves.add(step)
        reason = message_of(error)
        log.error("error: no checkpoint of step %d: %s; training continues, earlier checkpoints are kept", step, reason)
        self.append_metrics(step=step, save_error=reason)

    def write_errors(self) -> list[str]:
        """Return a text for each kind of file that this process could not write completely, or [].

        The texts are parts of a message, such as "the last lines of loss.log".
        """
        unwritten = [file.path.name for file in (self._losses, self._evals, self._metrics) if not file.is_written]
        unwritten += [] if self._events.is_written else [TENSORBOARD]
        failures = [f"the last lines of {name}" for name in unwritten]
        if self._failed_saves:
            failures.append(f"{len(self._failed_saves)} checkpoint(s)")
        if self._failed_evaluations:
            failures.append(f"the curves of {self._failed_evaluations} evaluation(s)")
        return failures if self._status_is_written else [*failures, STATE_FILE]

    def describe(self, schema: Schema, asked: Config) -> None:
        """Write config.yaml and run.json when training begins or is resumed, with the status "running".

        `asked` are the settings that the user gave, before the program changed some for this run.
        """
        text = yaml_settings.dump_yaml(settings.as_dict(self.config))
        write_whole(self.path / CONFIG_FILE, text)
        self._state = {
            "format_version": FORMAT_VERSION,
            "status": "running",
            "epochs": self.config.train.epochs,
            "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
            "commit": _commit(),
            "versions": {name: version(name) for name in ("mindspore", "numpy", "pyarrow")},
            "python": platform.python_version(),
            "machine": f"{processor_name()}, {os.cpu_count()} cores",
            "rows": {name: split.rows for name, split in schema.splits.items()},
            "identity": identity(self.config, schema),
            ASKED: asked_otherwise(asked, self.config),
        }
        self._write_state()

    def set_status(self, status: str, **more: Any) -> None:
        """Write a status and the keys `more` to run.json. If that fails, log the error and continue.

        The next launch resumes a run with the status `running`, `stopped` or `failed`, but not one that is `finished`.
        """
        self._state = {**self._state, **more, "status": status}
        try:
            self._write_state()
        except OSError as error:
            self._status_is_written = False
            reason = message_of(error)
            log.error("error: %s: it does not record that the run %s: %s", STATE_FILE, status, reason)

    def _write_state(self) -> None:
        write_whole(self.path / STATE_FILE, json.dumps(self._state, indent=1) + "\n")


def run_config(run_path: Path) -> Config:
    """Return the settings that the run in `run_path` was started with.

    Raise FileNotFoundError if there is no run.
    """
    path = run_path / CONFIG_FILE
    if not path.is_file():
        train = python_command("app train --dataset PREPARED")
        raise FileNotFoundError(
            f"no run in {run_path}: it has no {CONFIG_FILE}; train first ({train}), or name a run's folder"
        )
    return read_config(yaml_settings.read_yaml(path), where=str(path))


def run_checkpoints(run_path: Path) -> Path:
    """Return the folder of the checkpoints of the run in `run_path`. Raise FileNotFoundError if there is no run."""
    return checkpoint_folder(run_path, run_config(run_path))


def best_of_run(run_path: Path) -> Checkpoint:
    """Return the run's best checkpoint by `eval.metric`, or its newest one if none was evaluated.

    Raise FileNotFoundError if there is no run, or if the run has no whole checkpoint.
    """
    return best_or_newest(run_checkpoints(run_path), run_config(run_path).eval.metric)


def run_or_checkpoint(path: Path) -> Checkpoint:
    """Return the best checkpoint of the run at `path`, or the checkpoint at `path` itself.

    Raise FileNotFoundError if `path` has neither, and ValueError if the checkpoint is damaged.
    """
    return best_of_run(path) if (path / CONFIG_FILE).is_file() else open_named(path)


def named_or_best(run_path: Path, named: Path | None) -> Checkpoint:
    """Return the checkpoint that a user names, or the best checkpoint of the run if `named` is None.

    `named` is the folder of a checkpoint, the name of a checkpoint within the run, or the folder of another run, which
    stands for the best checkpoint of that run. Raise FileNotFoundError if there is no such checkpoint, and ValueError
    if it is damaged.
    """
    if named is None:
        return best_of_run(run_path)
    is_name_in_run = len(named.parts) == 1 and not named.exists() and (run_path / CONFIG_FILE).is_file()
    return run_or_checkpoint(run_checkpoints(run_path) / named if is_name_in_run else named)


def processor_name() -> str:
    """Return the processor's model name from /proc/cpuinfo (Linux on x86), or else its architecture."""
    with suppress(OSError):
        name = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if name:
            return name[1]
    return platform.machine()


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (fixed words)
        return result.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # The project may be an unpacked copy without a git repository.
