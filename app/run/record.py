"""Read the files of a run for its report, while the run may still be writing them. Detect by its loss.log a model that
has learned nothing: one whose mean training loss in the last epoch is above the loss of predicting the click rate of
the training rows for every row.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import yaml

from app.evaluation.metrics import as_score
from app.evaluation.results import interval_ends, read_evaluations
from app.run.decision import STATE_FILE
from app.run.folder import CONFIG_FILE, LOSS_LOG, METRICS, OP_TIMES, PROFILE_FOLDER
from common.files import parse_json
from common.packages import python_command
from common.text import first_line
from common.yaml_settings import load_yaml
from data_prep.prepared.data_files import block_sizes
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)

# Name of a table in the run folder that `python -m app bundle effects` writes. It says how much each column of a log
# changes the logit on average.
EFFECTS = "effects.parquet"
_LOSSES = re.compile(r"epoch: (\d+) step: \d+, wide_loss is (\S+), deep_loss is \S+")  # A line of loss.log.
Points = tuple[list[float], list[float]]  # x and y values.


@dataclass(frozen=True)
class RunRecord:
    """The content of the files in one run folder, as far as the report needs it."""

    name: str  # Name of the run in the report, different from the names of all other runs in it.
    state: dict[str, Any]
    config: dict[str, Any]
    wide_losses: np.ndarray  # The loss `wide_loss` of each step, from the first step on.
    lines: list[dict[str, Any]]  # Lines of metrics.jsonl.
    evaluations: list[dict[str, Any]]  # Contents of the run's evaluation files (evaluations/*.json), by ascending step.
    op_times: list[dict[str, Any]]
    # Metadata and rows of the table in effects.parquet, which says how much each column of the log changes the logit.
    # Both are empty if the run has no such file.
    effects: tuple[dict[str, Any], list[dict[str, Any]]]

    def points(self, key: str, split: str | None = None) -> Points:
        """Return the steps, ascending, and the values of `key` in the lines of metrics.jsonl that have this key.

        With `split`, only lines of evaluations on that split are used; with None, only lines about training steps.
        """
        by_step = {
            line["step"]: float(line[key])
            for line in self.lines
            if line.get(key) is not None and line.get("split") == split
        }
        return sorted(by_step), [by_step[step] for step in sorted(by_step)]

    def keys(self, ending: str) -> list[str]:
        """Return those keys of the lines of metrics.jsonl whose names end with `ending`, in the order in which they
        first occur.
        """
        names = dict.fromkeys(key for line in self.lines for key in line if key.endswith(ending))
        return list(names)

    @property
    def metric(self) -> str:
        """Name of the metric by which the best evaluation is chosen, the setting `eval.metric`."""
        return str(self.config.get("eval", {}).get("metric", "auc"))

    def best_evaluation(self) -> dict[str, Any] | None:
        """Return the line of metrics.jsonl with the run's best evaluation on the valid rows, or None if there was none.

        An evaluation at step 0 does not count, because it measures the model from which the run started.
        """
        evaluated = [line for line in self.lines if line.get("split") == "valid" and line["step"] > 0]
        compared = [line for line in evaluated if line.get(self.metric) is not None]
        return max(compared, key=lambda line: (as_score(self.metric, line[self.metric]), line["step"]), default=None)

    def evaluation_lines(self) -> list[dict[str, Any]]:
        """Return a mapping for each evaluation with the keys split, step, epoch and calibrated (True if the scores were
        calibrated), the values of the metrics, and the ends of their confidence intervals.

        If the run started from the model of another run, the evaluation of that model, at step 0, comes first.
        """
        source = [{**line, "calibrated": False} for line in self.lines if "split" in line and line["step"] == 0]
        return [*source, *map(_evaluation_line, self.evaluations)]

    def test_evaluation(self) -> dict[str, Any] | None:
        """Return what the JSON file of the newest evaluation on the test rows contains, or None if there is none."""
        return next((content for content in reversed(self.evaluations) if content["split"] == "test"), None)

    def shown_evaluation(self) -> dict[str, Any] | None:
        """Return what the JSON file of the evaluation contains whose curves the report draws, or None without
        evaluations.

        It is the newest evaluation on the test rows, else the best one on valid, else the last one.
        """
        best = self.best_evaluation()
        on_valid = [of for of in self.evaluations if best and (of["step"], of["split"]) == (best["step"], "valid")]
        return self.test_evaluation() or next(reversed([*self.evaluations[-1:], *on_valid]), None)

    def launches(self) -> list[list[dict[str, Any]]]:
        """Return the lines of metrics.jsonl that have a training speed, as one list per launch (start of the training).

        `seconds` in the lines counts from the start of a launch. So a launch begins at a line with fewer seconds than
        the line before.
        """
        lines_by_launch: list[list[dict[str, Any]]] = []
        before = float("inf")
        for line in self.lines:
            if line["seconds"] < before:
                lines_by_launch.append([])
            before = line["seconds"]
            # Earlier releases logged a speed of 0 if all rows of an interval had weight 0. Such lines are skipped.
            if line.get("samples_per_second"):
                lines_by_launch[-1].append(line)
        return lines_by_launch

    def steady_lines(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl that have a training speed, without the first line after each start of the
        training.

        This first line includes the time in which MindSpore compiles the graph. If no other line exists, return all
        lines with a speed.
        """
        steady = [line for launch in self.launches() for line in launch[1:]]
        return steady or [line for launch in self.launches() for line in launch]

    @property
    def seconds(self) -> float:
        """Time that the training has run, in seconds, over all its launches (starts) together."""
        seconds = [line["seconds"] for line in self.lines]
        ends = [first for first, after in itertools.pairwise(seconds) if after < first]
        return sum([*ends, *seconds[-1:]])

    @property
    def steps(self) -> int:
        """Number of training steps that the run has taken, as its loss.log shows."""
        return len(self.wide_losses)


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """Read the files of the runs in several folders, and return them as records with distinct names. Raise
    FileNotFoundError if one holds no run.
    """
    return [read_run(path, name) for path, name in zip(paths, _names(paths), strict=True)]


def read_run(path: Path, name: str) -> RunRecord:
    """Read and return the files of the run in the folder `path`. `name` is the run's name in the report.

    Raise FileNotFoundError if the folder holds no run, ValueError if config.yaml or run.json is damaged.
    """
    if not (path / CONFIG_FILE).is_file() or not (path / STATE_FILE).is_file():
        raise FileNotFoundError(
            f"no run in {path}: it has no {CONFIG_FILE} with {STATE_FILE} beside it; give a run folder such as device_0"
        )
    op_times = path / PROFILE_FOLDER / OP_TIMES
    return RunRecord(
        name=name,
        state=_whole(path / STATE_FILE, parse_json),
        config=_whole(path / CONFIG_FILE, load_yaml),
        wide_losses=np.array([loss for _, loss in _wide_losses(path / LOSS_LOG)]),
        lines=read_lines(path / METRICS),
        evaluations=read_evaluations(path),
        op_times=parse_json(op_times.read_text(encoding="utf-8")) if op_times.is_file() else [],
        effects=_read_effects(path / EFFECTS),
    )


def _wide_losses(loss_log: Path) -> Iterator[tuple[str, float]]:
    """Yield the epoch and the value wide_loss (the model's cross-entropy) of each step in loss.log.

    Incomplete lines are left out.
    """
    if loss_log.is_file():
        with loss_log.open(encoding="utf-8", errors="replace") as lines:
            for step in filter(None, map(_LOSSES.match, lines)):
                yield step[1], float(step[2])


def _whole(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """Return the content of the YAML or JSON file at `path`, which must be a mapping. Raise ValueError if the file is
    damaged.
    """
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged; copy it again, or start the training again, which writes it anew")
    return content


def _read_effects(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if not path.is_file():
        return {}, []
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        return parse_json((table.schema.metadata or {})[b"effects"]), table.to_pylist()
    except (OSError, ValueError, KeyError) as error:
        log.warning(
            "warning: the report is without the effects of the columns: %s is damaged (%s); remove it, or write it "
            "again with %s",
            path,
            first_line(error),
            python_command(f"app bundle effects BUNDLE LOG --output {quote(str(path))}"),
        )
        return {}, []


def _evaluation_line(content: dict[str, Any]) -> dict[str, Any]:
    of = {name: content[name] for name in ("split", "step", "epoch")}
    return {**of, "calibrated": "calibrated" in content, **content["metrics"], **interval_ends(content["intervals"])}


def _names(paths: Sequence[Path]) -> list[str]:
    """Return a distinct name for each path, made of as few of its last components as possible."""
    parts = [path.resolve().parts for path in paths]
    most = max(map(len, parts))
    tails = (["/".join(each[-count:]) for each in parts] for count in range(1, most + 1))
    apart = next((names for names in tails if len(set(names)) == len(names)), None)
    return apart or [f"{number}: {path.name}" for number, path in enumerate(paths, 1)]


def read_lines(path: Path, most_bytes: int = 0) -> list[dict[str, Any]]:
    """Return the lines of the file metrics.jsonl at `path` as mappings. Incomplete and damaged lines are left out.

    With `most_bytes`, read only that many bytes from the end of the file. If there is no file, return [].
    """
    text = b""
    if path.is_file():
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - most_bytes, 0) if most_bytes else 0)
            text = file.read()
    lines = []
    for line in text.splitlines():
        try:
            content = parse_json(line)
        except ValueError:
            continue
        step, seconds = (content.get(name) if isinstance(content, dict) else None for name in ("step", "seconds"))
        if isinstance(step, int) and isinstance(seconds, int | float):
            lines.append(content)
    return lines


# A model counts as useless if its loss is more than 5 % above the loss of predicting the click rate. If the data have
# nothing to learn, noise alone lifts the mean loss of an epoch above the loss of predicting the click rate, but by far
# less than 5 %.
MARGIN = 1.05
# Number of a run's first steps that are left out of the mean loss. A new model predicts 0.5 for every row, which is a
# loss of ln 2, and needs some steps to learn the click rate.
FIRST_STEPS = 100
# Limit of the mean loss in a run with too few steps to learn the click rate: twice the initial loss ln 2. A loss above
# it means that the training diverges.
LARGEST_FIRST_LOSS = 2 * math.log(2)
# If rows have weights, the click rate is estimated from about this many blocks of training rows. That is some 100,000
# rows, enough for a margin of 5 %.
WEIGHED_BLOCKS = 100


def trained_click_rate(dataset: Path, schema: Schema) -> float:
    """Return the click rate of the training rows. If rows have weights, return an estimate of the weighted click rate
    from about WEIGHED_BLOCKS blocks of rows.

    The rate is NaN if all weights in these blocks are 0.
    """
    if not schema.weight:
        return schema.splits["train"].click_rate
    num_blocks = len(block_sizes(schema, "train"))
    numbers = range(0, num_blocks, -(-num_blocks // WEIGHED_BLOCKS)) if num_blocks else ()
    sums = np.zeros(2)
    for rows in read_blocks(dataset, schema, "train", numbers):
        assert rows.weights is not None
        sums += rows.weights @ np.stack([rows.labels, np.ones(len(rows))], axis=1)
    return float(sums[0] / sums[1]) if sums[1] else math.nan


def click_rate_loss(click_rate: float, label_smoothing: float) -> float:
    """Return the mean cross-entropy, on the training rows, of predicting the mean of the smoothed labels for each row.

    `click_rate` is the mean of the labels before smoothing.
    """
    rate = (1 - label_smoothing) * click_rate + label_smoothing / 2
    return -sum(share * math.log(share) for share in (rate, 1 - rate) if share)


def why_useless(loss_log: Path, click_rate: float, label_smoothing: float) -> str:
    """Return a message if a run has learned nothing: if the last epoch's mean loss in loss.log is more than 5 % above
    the loss of predicting `click_rate` for every row. Otherwise return "".

    The run's first steps are left out of the mean. If the run ended within an epoch, the mean covers the steps it took.
    """
    losses, first_step = _last_epoch(loss_log)
    settled = losses[max(0, FIRST_STEPS - first_step) :]
    limit = MARGIN * click_rate_loss(click_rate, label_smoothing)
    # If the run ended too early to have learned the click rate, check only that its loss has not grown beyond
    # LARGEST_FIRST_LOSS.
    if len(settled) < min(FIRST_STEPS, len(losses)):
        settled, limit = losses, LARGEST_FIRST_LOSS
    mean = math.fsum(settled) / len(settled) if settled else 0.0
    # The condition is `not >` instead of `<=`, so that it is also true if the limit is NaN because the click rate is
    # NaN.
    if not mean > limit:
        return ""
    loss = click_rate_loss(click_rate, label_smoothing)
    return f"its last epoch's mean loss is {mean:.4g}, predicting the click rate for every row has {loss:.4g}"


def _last_epoch(loss_log: Path) -> tuple[list[float], int]:
    """Return the value wide_loss of each step of the last epoch, from loss.log, and the number of steps before that
    epoch.
    """
    losses: list[float] = []
    first = 0
    for _, steps_of_epoch in itertools.groupby(_wide_losses(loss_log), lambda step: step[0]):
        first += len(losses)
        losses = [loss for _, loss in steps_of_epoch]
    return losses, first
