"""Train the recipes of configs/ on synthetic logs of two sizes and on real rows, with several seeds.

    python -m benchmarks.accuracy.recipes [--data 500k 5m real] [--recipes criteo bars_x4_001 auto] [--epochs 3]
                                 [--seeds 1] [--set section.key=value …] [--threads N] [--work FOLDER]

Each run is `python -m data_prep prepare` and `python -m app train` with that config, in bfloat16, for --epochs
epochs at most. The best checkpoint on `valid` is evaluated on `test`. "seen often" are the test rows whose
values all occurred in 20 training rows or more. Each recipe is compared with logistic regression on the same prepared
rows. On a synthetic log it is also compared with the true probabilities, which no model can beat by more than chance.
"real" needs CRITEO_ROWS=FOLDER with train.txt, and is split by time. Runs already in --work are not repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from sklearn.metrics import log_loss, roc_auc_score

from app.config.config import Config
from app.training.auto.by_rows import resolve_by_rows
from benchmarks.harness.commands import folder_of, read_rows, remembered, run_command, work_folder
from benchmarks.harness.score_rows import train_and_score
from benchmarks.harness.timing import new_parser, print_result
from benchmarks.peers import logistic_regression
from common import yaml_settings
from common.packages import PROJECT
from data_prep.prepared.data_files import row_numbers_file
from data_prep.prepared.schema import VOCABULARY_FILE, Schema, read_schema
from data_prep.prepared.truth import read_truth

RECIPES = ("criteo", "bars_x4_001", "auto", "many_rows", "few_rows")
SYNTHETIC_ROWS = {"20k": 20_000, "500k": 500_000, "5m": 5_000_000}
REAL = "real"
SYNTHETIC_SEED = 1
TEST_SETS = ALL, OFTEN = "all", "seen often"

Figures = dict[str, dict[str, float]]  # For each test set by name: its rows, auc and log_loss.


@dataclass(frozen=True)
class Data:
    """A log, and the settings of `prepare` that decide how it is split."""

    name: str
    log: Path
    prepare_settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Test:
    """The n test rows of a prepared folder: their labels, which of them are seen often, and their true probabilities.

    The true probabilities are None if the log is not synthetic.
    """

    labels: np.ndarray
    often: np.ndarray
    truth: np.ndarray | None

    def judge(self, probabilities: np.ndarray) -> Figures:
        """Return number of rows, AUC and log loss of `probabilities` [n], on all rows and on those seen often."""
        sets = {ALL: np.ones(len(self.labels), bool), OFTEN: self.often}
        return {name: _figures(probabilities[rows], self.labels[rows]) for name, rows in sets.items()}


def training_counts(folder: Path, schema: Schema) -> np.ndarray:
    """Return the number of training rows that have each id, int64 [V].

    It is 0 for the ids of numeric fields and of values out of vocabulary.
    """
    counts = np.zeros(schema.vocabulary_size, np.int64)
    table = pq.read_table(folder / VOCABULARY_FILE, columns=["id", "count"])
    counts[table["id"].to_numpy()] = table["count"].to_numpy()
    return counts


def seen_often(ids: np.ndarray, counts: np.ndarray, least: int = 20) -> np.ndarray:
    """Return a mask [n] of the rows whose values all occur in `least` training rows or more. `ids` is [n, C].

    On rows with rare values even the best model of the training rows is worse than the log's true probabilities. On
    these rows it need not be.
    """
    return np.asarray((counts[ids] >= least).all(axis=1))


def _figures(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    if len(np.unique(labels)) < 2:
        return {"rows": len(labels), "auc": float("nan"), "log_loss": float("nan")}
    return {
        "rows": len(labels),
        "auc": float(roc_auc_score(labels, probabilities)),
        "log_loss": float(log_loss(labels, probabilities)),
    }


def read_test(folder: Path) -> Test:
    schema = read_schema(folder)
    rows = read_rows(folder, schema, "test")
    truth = schema.source.get("truth")
    probabilities = None
    if truth and Path(truth).is_file():
        probabilities, _ = read_truth(Path(truth), np.load(folder / row_numbers_file("test")))
    return Test(rows.labels, seen_often(rows.ids, training_counts(folder, schema)), probabilities)


def make_data(name: str, work: Path) -> Data:
    """Return the log of this name. Synthesize it if it does not exist."""
    if name == REAL:
        return Data(name, folder_of("CRITEO_ROWS") / "train.txt", ("prepare.split=chronological",))
    log = work / f"synthetic-{name}.txt"
    if not log.is_file():
        rows = str(SYNTHETIC_ROWS[name])
        run_command("data_prep", "synthesize", str(log), "--rows", rows, "--seed", str(SYNTHETIC_SEED), folder=work)
    return Data(name, log)


def recipe_file(recipe: str) -> Path:
    return PROJECT / "configs" / f"{recipe}.yaml"


def prepare(data: Data, recipe: str, work: Path) -> Path:
    """Return the folder of a log that was prepared with a recipe's own settings. Prepare it if it does not exist."""
    output = work / f"{data.name}-{recipe}"
    if not output.is_dir():
        options = ("--config", str(recipe_file(recipe)), *data.prepare_settings)
        run_command("data_prep", "prepare", str(data.log), str(output), *options, folder=work)
    return output


def train(prepared: Path, recipe: str, changes: tuple[str, ...], work: Path) -> dict[str, Any]:
    """Train a recipe once.

    Return the metrics on `valid` at each evaluation, and on the test rows at the best of them.
    """
    logits, evaluations = train_and_score(recipe_file(recipe), prepared, changes, work)
    valid = [{name: line[name] for name in ("step", "auc", "log_loss")} for line in evaluations]
    test = read_test(prepared)
    return {"valid": valid, "test": test.judge(1 / (1 + np.exp(-logits.astype(np.float64))))}


def regression(prepared: Path) -> Figures:
    """Return the figures of a logistic regression on the same rows, whose penalty is chosen on `valid`."""
    probabilities = logistic_regression.probabilities_of(prepared, "test")
    return read_test(prepared).judge(probabilities)


def best_possible(prepared: Path) -> Figures | None:
    """Return the figures that the true probabilities have on the test rows, or None if the log is not synthetic."""
    test = read_test(prepared)
    return None if test.truth is None else test.judge(test.truth)


def memory(work: Path, data: str, recipe: str, changes: tuple[str, ...]) -> Path:
    """Return the path of the file that keeps a run's figures. Its name depends on the recipe's text and `changes`."""
    digest = hashlib.sha256("\0".join((recipe_file(recipe).read_text("utf-8"), *changes)).encode()).hexdigest()[:16]
    return work / f"{data}-{recipe}-{digest}.json"


def measure(data: Data, recipe: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run one recipe on one log with every seed, and print a line for each run.

    Return the figures of the runs, of logistic regression and of the true probabilities.
    """
    prepared = prepare(data, recipe, work)
    own_epochs = epochs_of(recipe, prepared)
    epochs = min(options.epochs, own_epochs)
    shorter = (f"train.epochs={epochs}",) if epochs < own_epochs else ()
    changes = (*shorter, "device.precision=bfloat16", *options.set)
    changes += (f"device.threads={options.threads}",) if options.threads else ()
    runs = []
    for seed in range(1, options.seeds + 1):
        of_seed = (*changes, f"train.seed={seed}")
        place = memory(work, data.name, recipe, of_seed)
        runs.append(remembered(place, lambda: train(prepared, recipe, of_seed, work)))  # noqa: B023
        print(line(f"{data.name} {recipe} seed {seed}, {epochs} epochs", runs[-1]["test"]), flush=True)
    beside = {"best possible": best_possible(prepared)}
    if not options.no_regression:
        beside["logistic regression"] = remembered(
            memory(work, data.name, recipe, ("regression",)), lambda: regression(prepared)
        )
    for name, figures in beside.items():
        if figures:
            print(line(f"{data.name} {recipe}: {name}", figures), flush=True)
    if options.seeds > 1:
        print(spread(f"{data.name} {recipe}, {options.seeds} seeds", [run["test"] for run in runs]), flush=True)
    if epochs < own_epochs:
        print(f"    not run to its end: {epochs} of at most {own_epochs} epochs", flush=True)
    return {"data": data.name, "recipe": recipe, "epochs": epochs, "of": own_epochs, "runs": runs, **beside}


def epochs_of(recipe: str, prepared: Path) -> int:
    """Return the recipe's own number of epochs, which may depend on the number of rows of the prepared folder."""

    def resolve(defaults: Config) -> Config:
        return yaml_settings.resolve(Config, recipe_file(recipe), base=defaults)

    return resolve_by_rows(resolve, read_schema(prepared)).train.epochs


def line(name: str, figures: Figures) -> str:
    parts = [
        f"{test_set} {of['rows']:,.0f} rows: AUC {of['auc']:.4f}, log loss {of['log_loss']:.4f}"
        for test_set, of in figures.items()
    ]
    return f"{name:40} " + "   ".join(parts)


def spread(name: str, runs: list[Figures]) -> str:
    parts = []
    for test_set in TEST_SETS:
        for metric in ("auc", "log_loss"):
            values = [run[test_set][metric] for run in runs]
            parts.append(f"{test_set} {metric} {np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}")
    return f"{name:40} " + "   ".join(parts)


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    names = (*SYNTHETIC_ROWS, REAL)
    affordable = ["500k", "5m", *([REAL] if "CRITEO_ROWS" in os.environ else [])]
    parser.add_argument("--data", nargs="+", choices=names, default=affordable)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of a run; 0: what the config says")
    parser.add_argument("--set", nargs="*", default=[], metavar="section.key=value", help="changes to every recipe")
    parser.add_argument("--no-regression", action="store_true", help="it takes long on 5 M rows")
    options = parser.parse_args()
    with work_folder(options.work) as work:
        results = [
            measure(data, recipe, options, work)
            for data in (make_data(name, work) for name in options.data)
            for recipe in options.recipes
        ]
    print_result(options, results=results)


if __name__ == "__main__":
    main()
