"""The logs of a run that goes on from a checkpoint: lines of steps after it go, those steps are taken again."""

from __future__ import annotations

import json
import re
from pathlib import Path

from app.evaluation_file import forget_evaluations
from app.manifest import Manifest
from common.files import write_whole

LOSS_LOG, EVAL_LOG, METRICS = "loss.log", "eval.log", "metrics.jsonl"


def forget_after(run_path: Path, manifest: Manifest) -> None:
    """Drop what was logged after the checkpoint: those steps are taken, and evaluated, again."""
    # That before a warm start's first step (0) is made again by a run that goes on from there, and by no other.
    last_evaluated = max(manifest.selection.get("last_step", -1), 0 if manifest.step else -1)
    for name, evaluated_at, logged_at in (
        (METRICS, _metrics_evaluation, _metrics_step),
        (EVAL_LOG, _eval_step, _eval_step),
    ):
        lines = _lines(run_path / name)
        kept = [line for line in lines if logged_at(line) <= manifest.step and evaluated_at(line) <= last_evaluated]
        _keep(run_path / name, lines, kept)
    forget_evaluations(run_path, last_evaluated)
    losses = _lines(run_path / LOSS_LOG)
    _keep(run_path / LOSS_LOG, losses, losses[: manifest.step])


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []


def _keep(path: Path, lines: list[str], kept: list[str]) -> None:
    if len(kept) < len(lines):
        write_whole(path, "".join(kept))


def _metrics_step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):
        return float("inf")  # a line cut by the kill


def _metrics_evaluation(line: str) -> float:
    return _metrics_step(line) if '"split"' in line else -1.0


def _eval_step(line: str) -> float:
    found = re.match(r"epoch: \d+ step: (\d+) .*\n", line)
    return float(found[1]) if found else float("inf")  # a line cut by the kill
