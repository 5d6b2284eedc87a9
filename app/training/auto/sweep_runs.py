"""Run a sweep: train a run for each of many settings, stop the worse ones early, and compare all runs.

Each run is a `python -m app train` in its own folder. A rung is a number of epochs. All remaining runs train up to it,
and the best of them by `eval.metric` on valid continue to the next rung. Learning rates that
`train.auto` chooses fall until the last rung, so that a run which continues equals one that was never interrupted.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import logging
import math
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import IO, Any

import numpy as np
import xxhash

from app.config.config import Config
from app.distributed.mpirun import DID_NOT_LEARN
from app.evaluation.metrics import METRICS, as_score
from app.run.decision import read_state
from app.run.folder import CONFIG_FILE
from app.run.identity import data_identity, first_difference
from app.run.record import read_run
from app.run.report import REPORT_FILE, RUN, write_sweep_report
from app.run.stop_signals import StopRequest
from app.training.auto.by_rows import settle
from app.training.auto.regression import measure_cross_effects
from common import settings, yaml_settings
from common.files import is_locked, lock_folder, write_whole
from common.packages import project_environment
from common.process import die_with_parent, num_cores
from data_prep.prepared.schema import Schema, read_schema

log = logging.getLogger("app")

LOG = "train.log"
RESULTS = "results.csv"
# File in the sweep's folder with the settings that all its runs share, and with a description of their data.
BASIS = "sweep.json"
POLL_SECONDS = 0.2
MAX_NAME_BYTES = 255  # Maximum length of a file name on common file systems.


@dataclass(frozen=True)
class SweepOptions:
    """The content of a sweep's YAML file, except `settings`, which lists the values to try."""

    # Settings file for the settings that the sweep does not vary. If empty, the defaults are used.
    config: str = ""
    dataset: str = "prepared"
    # Number of runs, with settings drawn at random from all combinations of the values. 0 trains all combinations.
    runs: int = 0
    seed: int = 1  # Seed of the random choice of `runs` settings.
    parallel: int = 1  # Number of runs that train at the same time and share the cores.
    # Numbers of epochs after each of which the worse runs stop. The last number ends the sweep. If empty, all runs
    # train for train.epochs.
    rungs: tuple[int, ...] = ()
    # Share of the runs, the best ones, that continues after each of the numbers of epochs in `rungs`.
    keep: float = 0.5

    def __post_init__(self) -> None:
        rising = list(self.rungs) == sorted({*self.rungs}) and min(self.rungs, default=1) >= 1
        if not rising or self.runs < 0 or self.parallel < 1 or not 0 < self.keep <= 1:
            raise ValueError(f"expected runs >= 0, parallel >= 1, 0 < keep <= 1, and rising rungs; found {self}")


@dataclass(frozen=True)
class Trial:
    """One run of the sweep: `words` are its settings as on a command line, and `run` is its folder.

    `more` are further words of the command line, which do not distinguish the runs.
    """

    words: tuple[str, ...]
    run: Path
    more: tuple[str, ...] = ()

    def best(self, metric: str, epochs: int) -> dict[str, Any] | None:
        """Return the line of metrics.jsonl with the run's best evaluation on the valid rows within its first `epochs`
        epochs, or None if there is no such evaluation.
        """
        lines = read_run(self.run, "").lines if (self.run / CONFIG_FILE).is_file() else []
        of_valid = [line for line in lines if line.get("split") == "valid" and 0 < line["epoch"] <= epochs]
        compared = [line for line in of_valid if line[metric] is not None]
        return max(compared, key=lambda line: as_score(metric, line[metric]), default=None)

    def score(self, metric: str, epochs: int) -> float:
        """Return the run's best value of `metric` on the valid rows within the first `epochs` epochs, negated if a
        lower value is better.

        Return -inf if the run has no evaluation in these epochs.
        """
        best = self.best(metric, epochs)
        return as_score(metric, best[metric]) if best else -math.inf

    def result(self, metric: str, epochs: int) -> dict[str, Any]:
        """Return what the sweep's table says of the run: folder, settings, best metrics, epochs, status and seconds.

        The metrics are those of its best evaluation within `epochs` epochs. Missing values are None.
        """
        best, state = self.best(metric, epochs) or {}, read_state(self.run)
        is_there = (self.run / CONFIG_FILE).is_file()
        pairs = (word.partition("=") for word in self.words)
        return {
            RUN: str(self.run),
            **{name: json.loads(text) for name, _, text in pairs},
            **{name: best.get(name) for name in ("epoch", "step", *METRICS)},
            "epochs": state.get("epochs", 0),
            "status": state.get("status") if is_there else None,
            "seconds": read_run(self.run, "").seconds if is_there else None,
        }

    def has_trained(self, epochs: int) -> bool:
        """Return True if the run has trained for `epochs` epochs or more. It has more if the sweep was started before,
        and was stopped only after later epochs.
        """
        state = read_state(self.run)
        return state.get("epochs", 0) > epochs or (state.get("epochs") == epochs and state["status"] == "finished")


def sweep(values: Any, options: SweepOptions, output: Path, where: str) -> tuple[str, list[dict[str, Any]]]:
    """Train a run for each combination of `values`, which lists the values of each setting, in subfolders of `output`.

    Return the name of the metric, and a dict of results for each run, best run first: folder, settings, metrics on
    valid at its best evaluation, epochs, status and seconds. Missing values are None. The results are also written to
    results.csv and report.html in `output`. `where` is the start of error messages about `values`. Raise ValueError for
    wrong settings, and Stopped after SIGINT or SIGTERM.
    """
    output, points = output.absolute(), find_points(values, options, where)
    trials = [Trial(words, output / folder_name(words) / "device_0") for words in points]
    config_path, dataset = Path(options.config) if options.config else None, Path(options.dataset)
    schema = _read_schema(dataset, where)
    configs = [_settled(trial, config_path, dataset) for trial in trials]
    rungs = options.rungs or (max(config.train.epochs for config in configs),)
    basis = yaml_settings.resolve(Config, config_path)
    if basis.train.auto:  # The learning rates fall until the last rung, the number of epochs at which the sweep ends.
        basis = replace(basis, train=replace(basis.train, epochs=rungs[-1]))
    lock = _begin(output, basis, schema)
    metric, messages = configs[0].eval.metric, dict[str, str]()
    trials = [replace(trial, more=_schedules(trial, config_path, dataset, rungs[-1])) for trial in trials]
    remaining = trials

    def ranked(some: list[Trial], epochs: int) -> list[Trial]:
        return sorted(some, key=lambda trial: trial.score(metric, epochs), reverse=True)

    with lock, StopRequest(0, ending="stopping the runs, which save") as stop:
        for epochs in rungs:
            unfinished = [trial for trial in remaining if not trial.has_trained(epochs)]
            if unfinished and any(config.train.auto and not config.train.init_from for config in configs):
                # Measure only once, here, how strongly crosses (fields that combine other fields) affect clicks. All
                # runs of the sweep take over the result.
                messages = measure_cross_effects(dataset, schema).as_message()
            log.info("up to epoch %d: %d run(s), %d of them to train", epochs, len(remaining), len(unfinished))
            _train_all(unfinished, epochs, options, stop, messages, metric)
            remaining = ranked(remaining, epochs)
            best = " ".join(remaining[0].words)
            log.info("the best of %d run(s) up to epoch %d: %s", len(remaining), epochs, best)
            remaining = remaining[: math.ceil(options.keep * len(remaining))]
        results = [trial.result(metric, rungs[-1]) for trial in ranked(trials, rungs[-1])]
        lines = io.StringIO()
        writer = csv.DictWriter(lines, list(results[0]))
        writer.writeheader()
        writer.writerows({**result, RUN: Path(result[RUN]).relative_to(output)} for result in results)
        write_whole(output / RESULTS, lines.getvalue())
        write_sweep_report(results, values, metric, output / REPORT_FILE)
    return metric, results


def find_points(values: Any, options: SweepOptions, where: str) -> list[tuple[str, ...]]:
    """Return the settings of each run as words of a command line: all combinations of `values`, or `options.runs` of
    them.

    Raise ValueError if `values` does not map settings to lists, or contains train.epochs, which the rungs decide.
    """
    if not isinstance(values, dict) or not all(isinstance(tried, list) and tried for tried in values.values()):
        raise ValueError(f"{where}: 'settings' must map settings to lists of values to try; found {values!r}")
    if "train.epochs" in values:
        raise ValueError(f"{where}: every run trains up to the same epochs; give these as rungs, not as train.epochs")
    every = (
        tuple(f"{name}={json.dumps(value)}" for name, value in zip(values, point, strict=True))
        for point in itertools.product(*values.values())
    )
    points = list(dict.fromkeys(every))  # A value that is listed twice would give the same run twice.
    order = np.random.default_rng(options.seed).permutation(len(points))[: options.runs]
    return [points[place] for place in order] if options.runs else points


def folder_name(words: tuple[str, ...]) -> str:
    """Return the name of a run's folder: its settings, in characters that are safe in shells and on all file systems.

    A checksum follows if the settings contain more than numbers, or if the name would be too long, because runs with
    different settings need different names, even where upper and lower case are the same.
    """
    name = re.sub(r"[^a-z0-9_.+-]+", "-", "-".join(words).lower()).strip("-.")
    are_numbers = all(isinstance(json.loads(word.partition("=")[2]), int | float) for word in words)
    if are_numbers and len(name) <= MAX_NAME_BYTES:
        return name
    checksum = xxhash.xxh3_64_hexdigest("\0".join(words).encode())
    return f"{name[: MAX_NAME_BYTES - len(checksum) - 1]}-{checksum}"


def _settled(trial: Trial, config_path: Path | None, dataset: Path, *more: str) -> Config:
    """Return the settings of the run `trial`, changed by the command-line words `more` (`section.key=value`).

    If `train.auto` chooses settings, it does so as if crosses (fields that combine other fields) had no effects on
    clicks.
    """
    words = (*trial.words, *more)
    return settle(lambda base: yaml_settings.resolve(Config, config_path, words, base), dataset, trial.run, dry=True)[0]


def _schedules(trial: Trial, config_path: Path | None, dataset: Path, epochs: int) -> tuple[str, ...]:
    """Return the command-line words that set the learning-rate schedules of a training of `epochs` epochs, for `trial`.

    Return () without `train.auto`. With `train.auto`, these words let the learning rates fall until the end of the last
    rung. (A rung is a number of epochs, after which the worse runs stop.) Without the words, they would fall until the
    end of each rung.
    """
    config = _settled(trial, config_path, dataset, f"train.epochs={epochs}")
    schedules = {f"{group}_optimizer.schedule": options.schedule for group, options in config.optimizers.items()}
    words = (f"{name}={json.dumps(settings.as_dict(schedule))}" for name, schedule in schedules.items())
    return tuple(words) if config.train.auto else ()


def _read_schema(dataset: Path, where: str) -> Schema:
    try:
        return read_schema(dataset)
    except FileNotFoundError as error:
        start = "" if dataset.is_absolute() else f", which starts from the working folder, {Path.cwd()}"
        raise FileNotFoundError(f"{where}: dataset: {dataset}{start}: {error}") from error


def _begin(output: Path, config: Config, schema: Schema) -> IO[str]:
    """Record the settings and data of a sweep in its folder `output`. If an earlier call has recorded them, check that
    the settings and data are the same. Return the lock on the folder.

    Raise ValueError if the folder belongs to another sweep, or if a sweep is running in it.
    """
    basis = {"config": settings.as_dict(config), "data": data_identity(schema)}
    text, path = json.dumps(basis, indent=1) + "\n", output / BASIS
    if path.is_file() and (before := path.read_text(encoding="utf-8")) != text:
        what = first_difference(json.loads(before), json.loads(text))
        raise ValueError(f"{output} holds a sweep over other settings or data: {what}; give another --output")
    if path.is_file() and any("=" in folder.name for folder in output.iterdir()):
        raise ValueError(
            f"{output} holds a sweep of an earlier release, whose folders have other names; {RESULTS} and "
            f"{REPORT_FILE} there have its results; give another --output"
        )
    in_use = f"another sweep runs in {output}; wait for its end, or give another --output"
    lock = lock_folder(output, in_use=in_use)
    write_whole(path, text)
    return lock


def _train_all(
    trials: list[Trial],
    epochs: int,
    options: SweepOptions,
    stop: StopRequest,
    messages: Mapping[str, str],
    metric: str,
) -> None:
    """Train all trials up to `epochs` epochs, `options.parallel` runs at a time. Log each start and each result.

    Raise ValueError for wrong settings, and Stopped after SIGINT or SIGTERM.
    """
    queue, running = list(trials), dict[subprocess.Popen[bytes], Trial]()
    best_score, best_text = -math.inf, "none"
    # If this sweep was killed a moment ago and then started again, processes of its runs may not have ended yet.
    for trial in filter(lambda trial: is_locked(trial.run), queue):
        log.info("%s: another process trains there still; its end is waited for", trial.run)
    try:
        while queue or running:
            free = [trial for trial in queue if not is_locked(trial.run)]
            for trial in free[: options.parallel - len(running)]:
                queue.remove(trial)
                number, words = len(trials) - len(queue), " ".join(trial.words)
                log.info("up to epoch %d: run %d of %d starts: %s", epochs, number, len(trials), words)
                running[_start(trial, epochs, options, messages)] = trial
            for process in [process for process in running if process.poll() is not None]:
                trial, status = running.pop(process), process.returncode
                folder = trial.run.parent
                last = (folder / LOG).read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
                if status == 2:
                    raise ValueError(f"{folder.name}: {last.removeprefix('error: ')}")
                # A run that ended because it did not learn has finished regularly, and its result is compared with the
                # other runs.
                if status not in (0, DID_NOT_LEARN):
                    log.warning("warning: %s ended with status %d: %s", folder.name, status, last)
                score, line = trial.score(metric, epochs), trial.best(metric, epochs)
                text = f"{line[metric]:.6f}" if line else "none"
                best_score, best_text = max((best_score, best_text), (score, text))
                ended = f"{len(trials) - len(queue) - len(running)} of {len(trials)} run(s) ended"
                best_of = f"{metric} {text} (the best so far: {best_text})"
                log.info("up to epoch %d: %s, %s: %s", epochs, ended, best_of, " ".join(trial.words))
            time.sleep(POLL_SECONDS)
            stop.check()
    finally:
        for process in running:
            process.send_signal(SIGTERM)
        for process in running:
            process.wait()


def _start(trial: Trial, epochs: int, options: SweepOptions, messages: Mapping[str, str]) -> subprocess.Popen[bytes]:
    trial.run.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "app", "train", "--dataset", str(Path(options.dataset).absolute())]
    command += ["--config", str(yaml_settings.find_config(Path(options.config)).absolute())] if options.config else []
    command += [f"device.threads={max(1, num_cores() // options.parallel)}"] if options.parallel > 1 else []
    with (trial.run.parent / LOG).open("ab") as output:
        return subprocess.Popen(  # noqa: S603 (this program)
            [*command, *trial.words, *trial.more, f"train.epochs={epochs}"],
            cwd=trial.run.parent,
            env={**project_environment(), **messages},
            stdout=output,
            stderr=subprocess.STDOUT,
            # Start each run in a session of its own, so that it does not get the Ctrl-C of the terminal. The sweep's
            # process itself signals its runs to stop.
            start_new_session=True,
            preexec_fn=partial(die_with_parent, SIGTERM),
        )
