"""What a run folder tells of its run, for a report: files alone, so that a run that goes on can be looked at too."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from app.evaluation.metrics import merit
from app.evaluation.results import read_evaluations
from app.run.folder import CONFIG_FILE
from app.run.logs import OP_TIMES, PROFILE_FOLDER
from app.run.plan import STATE_FILE

_LOSSES = re.compile(r"wide_loss is (\S+), deep_loss is (\S+)")
Points = tuple[list[float], list[float]]  # x, y


@dataclass(frozen=True)
class RunRecord:
    """One run: `name` tells it from others, `lines` are those of metrics.jsonl, `evaluations` what the files hold."""

    name: str
    state: dict[str, Any]
    config: dict[str, Any]
    wide_losses: np.ndarray  # of each step, from the first
    lines: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    op_times: list[dict[str, Any]]

    def points(self, key: str, split: str | None = None) -> Points:
        """The values of a key over steps, where metrics.jsonl has them; those of `split`, where one is given."""
        by_step = {
            line["step"]: float(line[key])
            for line in self.lines
            if line.get(key) is not None and line.get("split") == split
        }
        return sorted(by_step), [by_step[step] for step in sorted(by_step)]

    def keys(self, ending: str) -> list[str]:
        """The keys of metrics.jsonl that end so, in their order."""
        found = dict.fromkeys(key for line in self.lines for key in line if key.endswith(ending))
        return list(found)

    @property
    def metric(self) -> str:
        """What decides which evaluation is the best."""
        return str(self.config.get("eval", {}).get("metric", "auc"))

    def best_evaluation(self) -> dict[str, Any] | None:
        """The line of the best evaluation on valid; None where there was none. That before a warm start's first step
        is of no model of this run."""
        evaluated = [line for line in self.lines if line.get("split") == "valid" and line["step"] > 0]
        judged = [line for line in evaluated if line.get(self.metric) is not None]
        return max(judged, key=lambda line: (merit(self.metric, line[self.metric]), line["step"]), default=None)

    def test_evaluation(self) -> dict[str, Any] | None:
        """The last evaluation of the test rows; None where there was none."""
        return next((content for content in reversed(self.evaluations) if content["split"] == "test"), None)

    def shown_evaluation(self) -> dict[str, Any] | None:
        """The one whose curves are drawn: of the test rows, else the best on valid, else the last there is."""
        best = self.best_evaluation()
        on_valid = [content for content in self.evaluations if best and content["step"] == best["step"]]
        return self.test_evaluation() or next(iter([*on_valid, *self.evaluations[-1:]]), None)

    def launches(self) -> list[list[dict[str, Any]]]:
        """The lines of steps, launch by launch: the seconds begin anew with each."""
        found: list[list[dict[str, Any]]] = []
        before = float("inf")
        for line in self.lines:
            if line["seconds"] < before:
                found.append([])
            before = line["seconds"]
            if "samples_per_second" in line:
                found[-1].append(line)
        return found

    def steady_lines(self) -> list[dict[str, Any]]:
        """The lines of steps without each launch's first, in which the graph is compiled, where there are others."""
        steady = [line for launch in self.launches() for line in launch[1:]]
        return steady or [line for launch in self.launches() for line in launch]

    @property
    def seconds(self) -> float:
        """Of all launches together."""
        seconds = [line["seconds"] for line in self.lines]
        ends = [first for first, after in itertools.pairwise(seconds) if after < first]
        return sum([*ends, *seconds[-1:]])

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self.wide_losses)


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """The records of some runs, in their order; raises FileNotFoundError for a folder that holds no run."""
    return [read_run(path, name) for path, name in zip(paths, _names(paths), strict=True)]


def read_run(path: Path, name: str) -> RunRecord:
    """The record of one run; raises FileNotFoundError for a folder that holds none."""
    if not (path / CONFIG_FILE).is_file() or not (path / STATE_FILE).is_file():
        raise FileNotFoundError(
            f"no run in {path}: it has no {CONFIG_FILE} with {STATE_FILE} beside it; give a run folder such as device_0"
        )
    return RunRecord(
        name=name,
        state=json.loads((path / STATE_FILE).read_text(encoding="utf-8")),
        config=yaml.safe_load((path / CONFIG_FILE).read_text(encoding="utf-8")),
        wide_losses=_read_losses(path / "loss.log"),
        lines=_read_lines(path / "metrics.jsonl"),
        evaluations=read_evaluations(path),
        op_times=_read_op_times(path / PROFILE_FOLDER / OP_TIMES),
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """As few parts of each path, from its end, as tell them all apart."""
    parts = [path.resolve().parts for path in paths]
    most = max(map(len, parts))
    tails = (["/".join(each[-count:]) for each in parts] for count in range(1, most + 1))
    apart = next((names for names in tails if len(set(names)) == len(names)), None)
    return apart or [f"{number}: {path.name}" for number, path in enumerate(paths, 1)]


def _read_losses(path: Path) -> np.ndarray:
    if not path.is_file():
        return np.zeros(0)
    with path.open(encoding="utf-8") as lines:
        found = (_LOSSES.search(line) for line in lines)
        return np.array([float(match[1]) for match in found if match])


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole: the last one may be being written."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict) and {"step", "seconds"} <= content.keys():
            found.append(content)
    return found


def _read_op_times(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
