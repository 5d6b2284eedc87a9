"""The run folder `device_<rank>/` where the launcher is started: always the newest run.

At launch: no run -> new; an unfinished one with the same settings and data -> resume; finished, but more epochs are
asked for -> continue; finished -> nothing is done; any other run is renamed `device_<rank>.<n>` and a new one starts. A
run resumes from its newest whole checkpoint; newer ones that are damaged are renamed, with a warning.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import yaml

from app.checkpoint.disk import message_of
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import best_or_newest, whole_checkpoints
from app.checkpoint.write import clear_leftovers
from app.config.config import Config
from app.distributed.process_group import ProcessGroup, SingleProcess, mark_collective
from app.evaluation.results import write_evaluation
from app.run.decision import ASKED, STATE_FILE, Plan, asked_otherwise, checkpoint_folder, make_plan
from app.run.event_file import EventFile
from app.run.identity import identity
from app.run.logs import EVAL_LOG, LOSS_LOG, METRICS, LogFile, forget_after
from app.run.older import FORMAT_VERSION, read_config
from common import settings
from common.files import FolderInUse, lock_folder, sync_folder, write_whole
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)

FIRST_RANK = "device_0"  # its folder
CONFIG_FILE = "config.yaml"
TENSORBOARD = "tensorboard"
REFUSED = ".refused"
SAVES_TO = "(a training, or a checkpoint command) saves to"


class RunIsFinishedError(Exception):
    """The requested run exists and is finished; `reason` is how it ended."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the run in {path} is finished: {reason}; evaluate it with: make eval. More train.epochs train on, "
            "train.resume=never starts a new run"
        )
        self.path = path


class RunFolder:
    """The files of one run, whose settings are `config`."""

    def __init__(self, path: Path, rank: int, plan: Plan, config: Config, checkpoints: Path | None = None) -> None:
        self.path = path
        self.config = config
        self.checkpoints = checkpoints or path / "checkpoints"
        self.plan = plan
        self._state: dict[str, Any] = {}  # the content of run.json
        self.log_path = path / f"test_deep{rank}.log"
        self.loss_path, self.eval_path, self.metrics_path = path / LOSS_LOG, path / EVAL_LOG, path / METRICS
        self._losses, self._evals, self._metrics = map(LogFile, (self.loss_path, self.eval_path, self.metrics_path))
        first_step = plan.checkpoint.manifest.step + 1 if plan.checkpoint else 0
        self._events = EventFile(path / TENSORBOARD, purge_step=first_step)
        self._failed_saves = self._failed_evaluations = 0
        self._status_is_written = True
        self._started = time.time()

    def append_losses(self, lines: list[str]) -> None:
        self._losses.append("".join(f"{line}\n" for line in lines))

    def append_metrics(self, **values: Any) -> None:
        """Add one line to metrics.jsonl, and its numbers to TensorBoard's file."""
        self.write_metrics(values)
        self.write_events(values)

    def write_events(self, values: Mapping[str, Any]) -> None:
        """Add the numbers of one line of metrics.jsonl to TensorBoard's file."""
        numbers = {name: value for name, value in values.items() if name not in ("step", "epoch")}
        self._events.add(values["step"], numbers, values.get("split", "train"))

    def write_metrics(self, values: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl, with the seconds since the launch."""
        values = {"seconds": round(time.time() - self._started, 3), **values}
        # A metric that is undefined (NaN) is null: JSON knows no NaN.
        plain = {name: None if value != value else value for name, value in values.items()}
        self._metrics.append(json.dumps(plain) + "\n")

    def append_eval(self, line: str) -> None:
        self._evals.append(line + "\n")

    def write_evaluation(self, content: dict[str, Any]) -> None:
        """Write the curves of an evaluation for the report; an error is logged, and training continues."""
        try:
            write_evaluation(self.path, content)
        except OSError as error:
            self._failed_evaluations += 1
            log.error("error: no curves of step %d: %s; training continues", content["step"], error)

    def sync_logs(self) -> None:
        """Sync the logs: a checkpoint relies on the lines of its steps, also after a power cut."""
        for file in (self._losses, self._evals, self._metrics, self._events):
            file.sync()

    def note_failed_save(self, step: int, error: Exception) -> None:
        """Note in the log and in metrics.jsonl that a checkpoint could not be written."""
        self._failed_saves += 1
        log.error("error: no checkpoint of step %d: %s; training continues, earlier checkpoints are kept", step, error)
        self.append_metrics(step=step, save_error=str(error))

    def write_errors(self) -> list[str]:
        """Return descriptions of everything that could not be written in this launch."""
        unwritten = [file.path.name for file in (self._losses, self._evals, self._metrics) if not file.is_written]
        unwritten += [] if self._events.is_written else [TENSORBOARD]
        lost = [f"the last lines of {name}" for name in unwritten]
        if self._failed_saves:
            lost.append(f"{self._failed_saves} checkpoint(s)")
        if self._failed_evaluations:
            lost.append(f"the curves of {self._failed_evaluations} evaluation(s)")
        return lost if self._status_is_written else [*lost, STATE_FILE]

    def describe(self, schema: Schema, asked: Config) -> None:
        """Write config.yaml and run.json; `asked` are the settings that were asked for."""
        text = yaml.safe_dump(settings.as_dict(self.config), sort_keys=False)
        write_whole(self.path / CONFIG_FILE, text)
        self._state = {
            "format_version": FORMAT_VERSION,
            "status": "running",
            "epochs": self.config.train.epochs,
            "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
            "commit": _commit(),
            "versions": {name: version(name) for name in ("mindspore", "numpy", "pyarrow")},
            "python": platform.python_version(),
            "machine": f"{_processor()}, {os.cpu_count()} cores",
            "rows": {name: split.rows for name, split in schema.splits.items()},
            "identity": identity(self.config, schema),
            ASKED: asked_otherwise(asked, self.config),
        }
        self._write_state()

    def set_status(self, status: str, **more: Any) -> None:
        """Write a status and `more` to run.json: `running`, `stopped` and `failed` are resumed, `finished` is not."""
        self._state = {**self._state, **more, "status": status}
        try:
            self._write_state()
        except OSError as error:
            self._status_is_written = False
            log.error("error: %s cannot be written: %s; it does not record that the run %s", STATE_FILE, error, status)

    def _write_state(self) -> None:
        write_whole(self.path / STATE_FILE, json.dumps(self._state, indent=1) + "\n")


FindSource = Callable[[], Path | None]  # the model that a new run starts from, if any; raises if it is unusable


def check_launch(base: Path, config: Config, schema: Schema, find_source: FindSource, name: str = FIRST_RANK) -> None:
    """Raise the errors of `open_run` before the slow start, without renaming anything."""
    path = base / name
    _check_is_folder(path)
    with ExitStack() as locks:
        if path.exists():
            locks.enter_context(_lock(path))
        plan, _ = _look(path, config, schema, locks, locks, find_source, damaged={}, make_folders=False)
    if plan.kind == "finished":
        raise RunIsFinishedError(path, plan.reason)


def open_run(
    base: Path,
    config: Config,
    schema: Schema,
    group: ProcessGroup | None = None,
    find_source: FindSource = lambda: None,
    damaged: Mapping[Path, str] | None = None,
    asked: Config | None = None,
    name: str = FIRST_RANK,
) -> tuple[RunFolder, ExitStack]:
    """Return the run folder to use and its locks, which the caller closes; rename an existing run if the plan is new.

    `find_source` is called before anything is renamed; its result is followed to its new name. `damaged` as in
    `find_newest`. `asked` are the settings before `settings_of_run` changed them. Rank 0, whose folder is `name`,
    decides for all ranks.

    Raises RunIsFinishedError; ValueError where another process trains in the folder or saves to the same checkpoints,
    `train.resume=require` finds nothing to resume, or the checkpoints of a new run would mix with another's; OSError
    where nothing can be written.
    """
    group = group or SingleProcess()
    asked = asked or config
    first = base / name
    path = base / f"device_{group.rank}" if group.rank else first
    _check_is_folder(path)
    with ExitStack() as locks, ExitStack() as locks_of_old:
        existed = path.exists()
        if existed:
            locks_of_old.enter_context(_lock(path))
        plan, number, source = group.on_rank0(
            lambda: _decide(first, config, schema, group.size, locks, locks_of_old, find_source, damaged)
        )
        if plan.kind == "finished":
            raise mark_collective(RunIsFinishedError(first, plan.reason))
        if plan.kind == "new" and path.exists():
            path.rename(path.with_name(f"{path.name}.{number}"))
        if plan.kind == "new" or not existed:
            locks_of_old.close()  # an older run that was renamed is free
            locks.enter_context(_lock(path))
            if group.rank == 0 and _is_within(checkpoint_folder(path, config), path):
                locks.enter_context(_lock(checkpoint_folder(path, config), SAVES_TO))
            sync_folder(base)
        locks.push(locks_of_old.pop_all())
        if source:
            config = replace(config, train=replace(config.train, init_from=source))
        run = RunFolder(path, group.rank, plan, config, checkpoint_folder(first, config))
        if plan.checkpoint is not None:
            forget_after(run.path, plan.checkpoint.manifest)
        run.describe(schema, asked)
        return run, locks.pop_all()


def _check_is_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} is a file, expected a run's folder; move it away, or start from another folder")


def _look(
    path: Path,
    config: Config,
    schema: Schema,
    locks: ExitStack,
    locks_of_old: ExitStack,
    find_source: FindSource,
    damaged: Mapping[Path, str] | None,
    make_folders: bool = True,
) -> tuple[Plan, Path | None]:
    """Return the plan of all ranks and the model that a new run starts from; clear leftovers in the locked folder.

    Raises as `open_run`.
    """
    checkpoints = checkpoint_folder(path, config)
    is_within = _is_within(checkpoints, path)
    if checkpoints.is_dir() or (make_folders and (path.exists() or not is_within)):
        (locks_of_old if is_within else locks).enter_context(_lock(checkpoints, SAVES_TO))
    if path.exists():
        clear_leftovers(checkpoints)
    plan = make_plan(path, config, schema, damaged)
    if plan.kind != "new":
        return plan, None
    source = find_source()
    if config.checkpoint.dir and (whole := whole_checkpoints(checkpoints)):  # not renamed: two runs would mix there
        raise ValueError(
            f"a new run starts ({plan.reason}), but checkpoint.dir={checkpoints} holds checkpoints of another one, up "
            f"to {whole[-1].path.name}; give another folder, or move them away"
        )
    return plan, source


def _decide(
    path: Path,
    config: Config,
    schema: Schema,
    num_ranks: int,
    locks: ExitStack,
    locks_of_old: ExitStack,
    find_source: FindSource,
    damaged: Mapping[Path, str] | None,
) -> tuple[Plan, int, str]:
    """Return the plan of all ranks, the number in the new names of an older run's folders, and the new name of
    `train.init_from` if it lies in one of them."""
    plan, source = _look(path, config, schema, locks, locks_of_old, find_source, damaged)
    if plan.checkpoint is not None:
        for refused in plan.refused:  # out of the way of the steps that are taken again
            aside = refused.with_suffix(REFUSED)
            refused.rename(aside.with_name(f"{aside.name}.{_free_number([aside])}"))
    ranks = path.parent.glob("device_*") if path.name == FIRST_RANK else ()
    folders = [folder for folder in ranks if re.fullmatch(r"device_\d+", folder.name)]
    number = _free_number([*folders, path])
    new_source = ""
    if plan.kind == "new":
        if source is not None:
            new_source = _displaced(Path(config.train.init_from), source, [*folders, path], number)
        for folder in folders:
            if int(folder.name.removeprefix("device_")) >= num_ranks:  # the older run had more ranks
                folder.rename(folder.with_name(f"{folder.name}.{number}"))
    return plan, number, new_source


def _displaced(given: Path, source: Path, folders: list[Path], number: int) -> str:
    """Return the path of `source` (which `given` names) after `folders` are renamed; "" if `given` stays valid."""
    for folder in folders:
        if given.resolve().is_relative_to(folder.resolve()):
            found = source.resolve()
            if found.is_relative_to(folder.resolve()):  # and not in a folder of the user's own
                found = folder.resolve().with_name(f"{folder.name}.{number}") / found.relative_to(folder.resolve())
            return str(found) if given.is_absolute() else os.path.relpath(found)
    return ""


def _is_within(folder: Path, run_path: Path) -> bool:
    """Return True if `folder` is renamed with the run's folder."""
    # By their names: a link that lies in the run's folder is renamed with it.
    return Path(os.path.normpath(folder)).is_relative_to(os.path.normpath(run_path))


def run_config(run_path: Path) -> Config:
    """Return the settings that the run in `run_path` was started with.

    Raises FileNotFoundError if there is no run.
    """
    path = run_path / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no run in {run_path}: it has no {CONFIG_FILE}; train first (make train) or give RUN=")
    return read_config(settings.read_yaml(path), where=str(path))


def run_checkpoints(run_path: Path) -> Path:
    """Return the folder of the checkpoints of the run in `run_path`; raise FileNotFoundError if there is no run."""
    return checkpoint_folder(run_path, run_config(run_path))


def best_of_run(run_path: Path) -> Checkpoint:
    """Return the run's best checkpoint by `eval.metric`, its newest where none was evaluated.

    Raises FileNotFoundError if there is no run, or no whole checkpoint of it.
    """
    return best_or_newest(run_checkpoints(run_path), run_config(run_path).eval.metric)


def _processor() -> str:
    """Return the processor's name from /proc/cpuinfo (Linux on x86), else its architecture."""
    with suppress(OSError):
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1]
    return platform.machine()


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (fixed words)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # an unpacked copy


def _free_number(paths: list[Path]) -> int:
    """Return the smallest n for which no `<path>.<n>` exists."""
    number = 1
    while any(path.with_name(f"{path.name}.{number}").exists() for path in paths):
        number += 1
    return number


def _lock(folder: Path, what: str = "trains in") -> IO[str]:
    try:
        return lock_folder(folder)
    except FolderInUse:
        raise ValueError(
            f"another process {what} {folder}; wait for it, or start from another folder (and with another "
            "checkpoint.dir, where that is set)"
        ) from None
    except OSError as error:
        raise OSError(
            f"nothing can be written to {folder}: {message_of(error)}; start from another folder, or give another "
            "checkpoint.dir"
        ) from error
