"""The run folder `device_<rank>/` where the launcher is started: always the newest run.

At launch: no run there -> new; an unfinished one with the same settings and data -> resume; finished, but more
epochs are asked for -> continue; anything else -> it is renamed `device_<rank>.<n>` and a new one starts.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import yaml

from app import checkpoint
from app.config import Config
from data_prep import settings
from data_prep.schema import VOCABULARY_FILE, Schema

log = logging.getLogger(__name__)

STATE_FILE = "run.json"
CONFIG_FILE = "config.yaml"
LOCK_FILE = "run.lock"
# What may differ between a run and its continuation: none of it changes a step that was taken.
FREE_SECTIONS = ("prepare", "device", "eval", "checkpoint")
FREE_TRAIN_KEYS = ("epochs", "log_every_steps", "resume", "profile")


@dataclass(frozen=True)
class Plan:
    """What is done at launch, why, and the checkpoint to go on from (None: from the start)."""

    kind: str  # new, resume or continue
    reason: str
    checkpoint: Path | None


class RunFolder:
    """The files of one run; holds the folder's lock until `close`."""

    def __init__(self, path: Path, rank: int, plan: Plan) -> None:
        self.path = path
        self.plan = plan
        self.log_path = path / f"test_deep{rank}.log"
        self.loss_path = path / "loss.log"
        self.eval_path = path / "eval.log"
        self.metrics_path = path / "metrics.jsonl"
        self._started = time.time()

    def append_losses(self, lines: list[str]) -> None:
        """Add lines to loss.log."""
        _append(self.loss_path, "".join(f"{line}\n" for line in lines))

    def append_metrics(self, **values: Any) -> None:
        """Add one line to metrics.jsonl, with the seconds since the launch."""
        values = {"seconds": round(time.time() - self._started, 3), **values}
        # A metric that is undefined (NaN) is null: JSON knows no NaN.
        plain = {name: None if value != value else value for name, value in values.items()}
        _append(self.metrics_path, json.dumps(plain) + "\n")

    def append_eval(self, line: str) -> None:
        """Add a line to eval.log."""
        _append(self.eval_path, line + "\n")

    def set_status(self, status: str) -> None:
        """`running`, `finished` or `failed`."""
        state = _read_state(self.path)
        _write_state(self.path, {**state, "status": status})


def open_run(base: Path, rank: int, config: Config, schema: Schema) -> tuple[RunFolder, IO[str]]:
    """The run folder to use, and its held lock; renames what was there, where the plan says so.

    Raises ValueError where another process trains in the folder, `train.resume=require` finds nothing to resume, or
    the checkpoints of a new run would mix with another's.
    """
    path = base / f"device_{rank}"
    lock = _lock(path) if path.exists() else None
    plan = make_plan(path, config, schema)
    if plan.kind == "new" and config.checkpoint.dir:
        _check_no_foreign_checkpoints(checkpoint_folder(path, config), plan.reason)
    if plan.kind == "new" and path.exists():
        path.rename(_free_name(path))
        assert lock is not None
        lock.close()
        lock = None
    path.mkdir(parents=True, exist_ok=True)
    lock = lock or _lock(path)
    run = RunFolder(path, rank, plan)
    if plan.checkpoint is not None:
        _forget_after(run, checkpoint.read_manifest(plan.checkpoint).step)
    _describe(run, config, schema)
    return run, lock


def _check_no_foreign_checkpoints(folder: Path, reason: str) -> None:
    """A folder of the user's own stays where it is when a run is renamed; two runs in it could not be told apart."""
    whole = checkpoint.whole_checkpoints(folder)
    if whole:
        raise ValueError(
            f"a new run starts ({reason}), but checkpoint.dir={folder} holds checkpoints of another one, up to "
            f"{whole[-1].name}; give another folder, or move them away"
        )


def make_plan(path: Path, config: Config, schema: Schema) -> Plan:
    """Decide between new, resume and continue, and say why."""
    wanted = config.train.resume
    plan = _plan_from_state(path, config, schema)
    if wanted == "never" and plan.kind != "new":
        return Plan("new", "train.resume=never", None)
    if wanted == "require" and plan.kind == "new":
        raise ValueError(f"train.resume=require, but {path} cannot be resumed: {plan.reason}")
    return plan


def _plan_from_state(path: Path, config: Config, schema: Schema) -> Plan:
    if not path.exists():
        return Plan("new", "there is no run yet", None)
    state = _read_state(path)
    if not state:
        return Plan("new", f"{path.name} has no {STATE_FILE}", None)
    difference = first_difference(state["identity"], identity(config, schema))
    if difference:
        return Plan("new", f"the run there differs: {difference}", None)
    whole = checkpoint.whole_checkpoints(checkpoint_folder(path, config))
    if not whole:
        return Plan("new", "the run there has no whole checkpoint", None)
    if state["status"] != "finished":
        return Plan("resume", "the run there is unfinished and has the same settings and data", whole[-1])
    if config.train.epochs > state["epochs"]:
        return Plan("continue", f"the run there finished {state['epochs']} epochs of {config.train.epochs}", whole[-1])
    return Plan("new", "the run there is finished", None)


def identity(config: Config, schema: Schema) -> dict[str, Any]:
    """The settings and data that make a run what it is."""
    kept = {name: section for name, section in settings.as_dict(config).items() if name not in FREE_SECTIONS}
    kept["train"] = {key: value for key, value in kept["train"].items() if key not in FREE_TRAIN_KEYS}
    return {"config": kept, "data": data_identity(schema)}


def data_identity(schema: Schema) -> dict[str, Any]:
    """What tells one prepared folder from another."""
    return {
        "vocabulary_size": schema.vocabulary_size,
        "numeric": {field.name: asdict(field) for field in schema.numeric},
        "categorical": [field.name for field in schema.categorical],
        "vocabulary": [file.checksum for file in schema.other_files if file.name == VOCABULARY_FILE],
        "train_files": [file.checksum for file in schema.splits["train"].files],
    }


def first_difference(old: Any, new: Any, where: str = "") -> str | None:
    """The first key whose value differs between two nested mappings, with both values; None where they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            difference = first_difference(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
            if difference:
                return difference
        return None
    return None if old == new else f"{where.removeprefix('config.')} was {old!r}, is {new!r}"


def checkpoint_folder(run_path: Path, config: Config) -> Path:
    """Where a run's checkpoints lie; a relative `checkpoint.dir` is taken from where the run was started."""
    return run_path.parent / config.checkpoint.dir if config.checkpoint.dir else run_path / "checkpoints"


def run_checkpoints(run_path: Path) -> Path:
    """The folder with the checkpoints of the run in `run_path`, by the settings that it was started with.

    Raises FileNotFoundError where there is no run.
    """
    path = run_path / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no run in {run_path}: it has no {CONFIG_FILE}; train first (make train) or give RUN=")
    return checkpoint_folder(run_path, settings.resolve(Config, path))


def _describe(run: RunFolder, config: Config, schema: Schema) -> None:
    (run.path / CONFIG_FILE).write_text(yaml.safe_dump(settings.as_dict(config), sort_keys=False), encoding="utf-8")
    state = {
        "status": "running",
        "epochs": config.train.epochs,
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "commit": _commit(),
        "versions": {name: version(name) for name in ("mindspore", "numpy", "pyarrow")},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "identity": identity(config, schema),
    }
    _write_state(run.path, state)


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # an unpacked copy


def _forget_after(run: RunFolder, step: int) -> None:
    """Drop what was logged after the checkpoint: those steps are taken again."""
    for path, step_of in ((run.metrics_path, _metrics_step), (run.eval_path, _eval_step)):
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            path.write_text("".join(line for line in lines if step_of(line) <= step), encoding="utf-8")
    if run.loss_path.is_file():
        lines = run.loss_path.read_text(encoding="utf-8").splitlines(keepends=True)
        run.loss_path.write_text("".join(lines[:step]), encoding="utf-8")


def _metrics_step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):
        return float("inf")  # a line cut by the kill


def _eval_step(line: str) -> float:
    found = re.match(r"epoch: \d+ step: (\d+) .*\n", line)
    return float(found[1]) if found else float("inf")  # a line cut by the kill


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _write_state(path: Path, state: dict[str, Any]) -> None:
    beside = path / f"{STATE_FILE}.tmp"
    beside.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    beside.replace(path / STATE_FILE)


def _free_name(path: Path) -> Path:
    number = 1
    while (free := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return free


def _lock(path: Path) -> IO[str]:
    lock = (path / LOCK_FILE).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ValueError(f"another process trains in {path}; wait for it, or start from another folder") from None
    return lock


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
