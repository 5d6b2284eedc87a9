"""What a launch does with the run that is there: start anew, resume it, or continue it; nothing is changed for that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.config import Config
from app.identity import first_difference, identity
from app.resume import find_newest
from data_prep.schema import Schema

STATE_FILE = "run.json"


@dataclass(frozen=True)
class Plan:
    """What is done at launch, why, and the checkpoint to go on from (None: from the start)."""

    kind: str  # new, resume or continue
    reason: str
    checkpoint: Path | None
    refused: dict[Path, str] = field(default_factory=dict)  # newer checkpoints that cannot be used, and why


def make_plan(path: Path, config: Config, schema: Schema, damaged: Mapping[Path, str] | None = None) -> Plan:
    """Decide between new, resume and continue, and say why; `damaged` as `find_newest` has it."""
    wanted = config.train.resume
    plan = _plan_from_state(path, config, schema, damaged)
    if wanted == "never" and plan.kind != "new":
        return Plan("new", "train.resume=never", None)
    if wanted == "require" and plan.kind == "new":
        reasons = "; ".join([plan.reason, *plan.refused.values()])
        raise ValueError(f"train.resume=require, but {path} cannot be resumed: {reasons}")
    if wanted == "require" and plan.refused:
        raise ValueError(
            f"train.resume=require, but the newest checkpoint cannot be used: {next(iter(plan.refused.values()))}; "
            f"train.resume=auto goes on from {plan.checkpoint}"
        )
    return plan


def _plan_from_state(path: Path, config: Config, schema: Schema, damaged: Mapping[Path, str] | None) -> Plan:
    if not path.exists():
        return Plan("new", "there is no run yet", None)
    state = read_state(path)
    if not state:
        return Plan("new", f"{path.name} has no {STATE_FILE}", None)
    difference = first_difference(state["identity"], identity(config, schema))
    if difference:
        return Plan("new", f"the run there differs: {difference}", None)
    found = find_newest(checkpoint_folder(path, config), identity(config, schema), damaged)
    if found.checkpoint is None:
        return Plan("new", "the run there has no whole checkpoint", None, found.refused)
    if state["status"] != "finished":
        reason = "the run there is unfinished and has the same settings and data"
        return Plan("resume", reason, found.checkpoint, found.refused)
    if config.train.epochs > state["epochs"]:
        reason = f"the run there finished {state['epochs']} epochs of {config.train.epochs}"
        return Plan("continue", reason, found.checkpoint, found.refused)
    return Plan("new", "the run there is finished", None)


def checkpoint_folder(run_path: Path, config: Config) -> Path:
    """Where a run's checkpoints lie; a relative `checkpoint.dir` is taken from where the run was started."""
    return run_path.parent / config.checkpoint.dir if config.checkpoint.dir else run_path / "checkpoints"


def read_state(path: Path) -> dict[str, Any]:
    """What run.json says; nothing where it cannot be read."""
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}
