"""Raw text log to AUC and log loss on the test rows, each contender as a command in a process of its own.

    python -m benchmarks.end_to_end                        400,000 synthetic rows, whose best possible AUC is known
    python -m benchmarks.end_to_end --rows 400000 5000000  also 5 million
    CRITEO_ROWS=FOLDER python -m benchmarks.end_to_end     also the rows of FOLDER/train.txt

Contenders: this project (prepare, launcher, evaluate, `configs/auto.yaml`); polars and PyTorch; pandas and LightGBM
with native categories; scikit-learn's FeatureHasher and SGDClassifier. All have the same training, valid and test rows,
and stop early by the log loss of valid. Before the contenders run, a search on the first log finds the settings of
PyTorch, and prints what each setting reached. Times contain the start of Python and all imports. Memory is the
peak of the sum of the Pss of all processes.

The time to the valid AUC of the project's logistic regression is that of the first evaluation that reaches it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.end_to_end.columns import Result, measure, splits
from benchmarks.harness.commands import ENVIRONMENT, run_command, work_folder
from benchmarks.harness.timing import Taken, in_turns, metered, new_parser, print_result
from benchmarks.peers.logistic_regression import probabilities_of
from common.packages import PROJECT
from data_prep.prepared.truth import best_possible, truth_path
from data_prep.sources.synthetic import synthesize

SEARCHED = "polars_pytorch"
CONTENDERS = ("this_project", SEARCHED, "pandas_lightgbm", "hashed_sgd")


@dataclass(frozen=True)
class Run:
    """One run of a contender: what it took, what it reached, and when it began."""

    taken: Taken
    result: Result
    start: float

    def seconds_until(self, auc: float) -> float | None:
        """Return the seconds until the first evaluation on valid with at least this AUC, or None if there is none."""
        return next((at - self.start for at, found in self.result.valid if found >= auc), None)


def run_program(name: str, *arguments: str) -> list[str]:
    """Run a contender's program and return the lines that it printed. Raise CalledProcessError if it fails."""
    command = [sys.executable, "-m", f"benchmarks.end_to_end.{name}", *arguments]
    paths = [ENVIRONMENT["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, cwd=PROJECT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


def run(name: str, log: Path, *settings: str) -> Run:
    """Run a contender once on a log. Raise CalledProcessError if it fails."""
    start = time.time()
    with metered() as taken:
        lines = run_program(name, str(log), *settings)
    return Run(taken, Result(**json.loads(lines[-1])), start)


def regression_auc(log: Path, work: Path) -> float:
    """Return the AUC on valid of the project's logistic regression."""
    run_command("data_prep", "prepare", str(log), "prepared", "--overwrite", folder=work)
    labels = np.loadtxt(log, dtype=str, delimiter="\t", usecols=0, comments=None) == "1"
    valid = labels[splits(len(labels))["valid"]]
    return measure(probabilities_of(work / "prepared", "valid"), valid).auc


def compare(
    log: Path, names: list[str], rounds: int, work: Path, settings: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Run the contenders in turns on a log. Print and return what each took and reached: medians over the rounds.

    `settings` has the settings in JSON of the contenders that take some.
    """
    least = regression_auc(log, work)
    figures: dict[str, dict[str, Any]] = {}
    print(f"logistic regression: valid AUC {least:.4f}")
    if truth_path(log).is_file():
        with log.open("rb") as file:
            num_rows = sum(1 for _ in file)
        best = best_possible(truth_path(log), splits(num_rows)["test"])
        print(f"best possible: AUC {best.auc:.4f}, log loss {best.log_loss:.4f}")
        figures["best possible"] = {"auc": best.auc, "log_loss": best.log_loss}
    turns = {name: partial(run, name, log, *filter(None, [settings.get(name)])) for name in names}
    for name, runs in in_turns(turns, rounds).items():
        seconds = [each.taken.seconds for each in runs]
        until = [reached for each in runs if (reached := each.seconds_until(least)) is not None]
        medians = {key: float(np.median([asdict(each.taken)[key] for each in runs])) for key in asdict(Taken())}
        figures[name] = medians | {"auc": runs[0].result.auc, "log_loss": runs[0].result.log_loss}
        figures[name] |= {"all_seconds": seconds, "seconds_to_regression": statistics.median(until) if until else None}
        print(_line(name, figures[name]), flush=True)
    return figures


def _line(name: str, figures: dict[str, Any]) -> str:
    seconds, until = figures["all_seconds"], figures["seconds_to_regression"]
    reached = "" if until is None else f", regression's valid AUC after {until:.1f} s"
    took = f"{figures['seconds']:7.1f} s [{min(seconds):.1f} … {max(seconds):.1f}] {figures['cpu_seconds']:7.1f} CPU s"
    found = f"AUC {figures['auc']:.4f}  log loss {figures['log_loss']:.4f}{reached}"
    return f"{name:16} {took} {figures['peak_mib']:6,.0f} MiB  {found}"


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[400_000])
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    settings: dict[str, str] = {}
    with work_folder(options.work) as work:
        logs = {f"{rows:,} rows": work / f"log-{rows}.txt" for rows in options.rows}
        for rows, log in zip(options.rows, logs.values(), strict=True):
            if not log.is_file():
                synthesize(log, rows, seed=1)
        if folder := os.environ.get("CRITEO_ROWS"):
            logs["real rows"] = Path(folder).resolve() / "train.txt"
        if SEARCHED in options.only:
            print("== search", *(lines := run_program(SEARCHED, str(next(iter(logs.values()))), "--search")), sep="\n")
            settings[SEARCHED] = lines[-1]
        for name, log in logs.items():
            print(f"== {name}", flush=True)
            figures[name] = compare(log, options.only, options.rounds, work, settings)
    print_result(options, figures=figures, settings=settings)


if __name__ == "__main__":
    main()
