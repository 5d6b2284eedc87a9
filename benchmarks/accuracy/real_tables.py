"""Compare configs/auto.yaml with the project's own baseline and with LightGBM on real tables, five folds each.

    REAL_LOGS=FOLDER python -m benchmarks.accuracy.real_tables [--tables adult titanic …] [--log FILE[=LABEL] …]
                                 [--folds 5] [--set section.key=value …] [--work FOLDER]

FOLDER holds the tables of TABLES, which stand in public repositories (their terms allow no copy here). Those are the
ones that the settings of `train.auto` were chosen on; --log adds others. The description of a table is what `describe`
proposes. Its lines are shuffled and cut into ten parts: a fold tests on two of them, chooses the epoch, the baseline's
penalty and what else there is to choose on one more, and trains on the other seven. LightGBM has its defaults, 300
rounds, and the same rows and columns: numbers, codes of categories, a list as one column for each value. An interval is
Student's, over the folds; those of several shuffles share rows, so theirs is too narrow. Folds already in --work are
not repeated.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import logging
import shutil
import statistics
import time
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student
from sklearn.metrics import log_loss, roc_auc_score

from app.api import describe, evaluate, prepare, train
from app.config import device
from app.config.device import DeviceOptions
from app.evaluation.metrics import Metrics
from app.training.auto import regression
from benchmarks.harness.commands import folder_of, read_rows, remembered, work_folder
from benchmarks.harness.timing import new_parser, print_result
from common import yaml_settings
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import Schema, read_schema

CONFIG = "configs/auto.yaml"
PARTS, FOLDS = 10, 5
ROUNDS = 300
OURS, PEERS = "auto", ("baseline", "LightGBM")


@dataclass(frozen=True)
class Table:
    """A table in the folder REAL_LOGS. `label` is the option of `describe`, or None.

    If `joined` names files of the same folder, they are joined to the table by their first column.
    """

    file: str
    label: str | None = None
    joined: tuple[str, ...] = ()


TABLES = {
    "adult": Table("adult.csv"),
    "titanic": Table("titanic.csv"),
    "telco": Table("telco.csv"),
    "bank": Table("bank-full.csv"),
    "ml-100k": Table("ml-100k.inter", "rating:float>=4"),
    "ml-100k joined": Table("ml-100k.inter", "rating:float>=4", ("ml-100k.user", "ml-100k.item")),
}


def read_table(folder: Path, table: Table) -> tuple[str, list[str]]:
    """Return the header line of a table, or "" if it has none, and its other lines, each with its line end."""
    text = (folder / table.file).read_text(encoding="utf-8-sig")
    lines = [f"{line}\n" for line in text.splitlines() if line.strip()]
    if table.joined:
        lines = _joined([line.rstrip("\n").split("\t") for line in lines], folder, table.joined)
    return ("", lines) if table.file in ("adult.csv", "adult.data") else (lines[0], lines[1:])


def _joined(rows: list[list[str]], folder: Path, others: tuple[str, ...]) -> list[str]:
    for file in others:
        with (folder / file).open(encoding="utf-8") as of_file:
            header, *content = csv.reader(of_file, delimiter="\t", quoting=csv.QUOTE_NONE)
        key, by_key = rows[0].index(header[0]), {row[0]: row[1:] for row in content}
        rows = [rows[0] + header[1:]] + [row + by_key[row[key]] for row in rows[1:] if row[key] in by_key]
    return ["\t".join(row) + "\n" for row in rows]


def prepare_fold(header: str, lines: list[str], data: Any, fold: int, folder: Path) -> Path:
    """Return the prepared folder of a fold of a table. Prepare it if it does not exist."""
    output = folder / f"prepared-{fold}"
    if not output.is_dir():
        order = np.random.default_rng(1 + fold // FOLDS).permutation(len(lines))
        log = folder / "log"
        shutil.rmtree(log, ignore_errors=True)
        log.mkdir(parents=True)
        for part, rows in enumerate(np.array_split(order, PARTS)):
            name = f"part-{part}.csv"
            (log / name).write_text(header + "".join(lines[row] for row in rows), encoding="utf-8")
        place = 2 * (fold % FOLDS)
        first, second, third = (f"part-{(place + each) % PARTS}.csv" for each in range(3))
        prepare(str(log), output, CONFIG, data, split="files", test_files=(first, second), valid_files=(third,))
        shutil.rmtree(log)
    return output


def trees(prepared: Path, schema: Schema) -> np.ndarray:
    """Return the click probabilities that LightGBM, with its defaults, predicts for the test rows."""
    # `make bench` installs LightGBM. It is imported here, so that the tests of this module do not need it.
    import lightgbm

    rows, tested = read_rows(prepared, schema, "train"), read_rows(prepared, schema, "test")
    features, categories = _columns(rows, schema)
    data = lightgbm.Dataset(features, rows.labels, categorical_feature=categories, params={"verbosity": -1})
    booster = lightgbm.train({"objective": "binary", "verbosity": -1, "seed": 1}, data, ROUNDS)
    return np.asarray(booster.predict(_columns(tested, schema)[0]))


def _columns(rows: Examples, schema: Schema) -> tuple[np.ndarray, list[int]]:
    """Return rows as a table [rows, columns] for LightGBM, and the indices of the columns that hold codes.

    The columns are numbers, codes of categories, and 0 or 1 for each value of a list.
    """
    columns, categories, position = [*rows.numeric.T], [], 0
    buckets = {f"{numeric.source}_bucket" for numeric in schema.numeric}
    for field in schema.categorical:
        ids = rows.ids[:, position : position + field.max_length]
        position += field.max_length
        if field.max_length > 1:
            values = [i for first, end in field.id_ranges for i in range(first, end)]
            columns += [(ids == value).any(axis=1) for value in values]
        elif field.name not in buckets:
            categories.append(len(columns))
            of_field = [np.arange(first, end) for first, end in (field.oov_ids, *field.id_ranges)]
            columns.append(np.searchsorted(np.sort(np.concatenate(of_field)), ids[:, 0]))
    return np.column_stack(columns).astype(np.float64), categories


def measure(prepared: Path, changes: list[str], host: DeviceOptions, work: Path, peers: Path) -> dict[str, Any]:
    """Return AUC, log loss and seconds of each contender on a fold.

    `peers` is the file that keeps the figures of the peers, which `changes` do not affect.
    """
    schema = read_schema(prepared)
    labels = read_rows(prepared, schema, "test").labels

    def of_peers() -> dict[str, Any]:
        begin = time.perf_counter()
        fitted = regression.fit(prepared, schema)
        metrics, seconds = regression.evaluate(fitted, prepared, schema, "test"), time.perf_counter() - begin
        of_trees = trees(prepared, schema)
        return {
            "baseline": {**figures_of(metrics, seconds), "c": fitted.inverse_penalty},
            "LightGBM": {"auc": float(roc_auc_score(labels, of_trees)), "log_loss": float(log_loss(labels, of_trees))},
        }

    shutil.rmtree(run := work / "run", ignore_errors=True)
    begin = time.perf_counter()
    sections: dict[str, dict[str, Any]] = {"device": asdict(host)}  # which a process has once
    for word in changes:
        for section, values in yaml_settings.parse_override(word).items():
            sections.setdefault(section, {}).update(values)
    trained = train(CONFIG, prepared, run, None, None, **sections)
    seconds = time.perf_counter() - begin
    metrics = evaluate(trained).metrics
    of_ours = {**figures_of(metrics, seconds), "epoch": trained.metrics["epoch"]}
    return {OURS: of_ours, **remembered(peers, of_peers)}


def figures_of(metrics: Metrics, seconds: float) -> dict[str, float]:
    return {"auc": metrics.auc, "log_loss": metrics.log_loss, "seconds": seconds}


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean of `values`, and half the width of its 95 % interval."""
    spread = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return statistics.fmean(values), float(student.ppf(0.975, max(len(values) - 1, 1))) * spread


def line(name: str, folds: list[dict[str, Any]]) -> str:
    def mean(contender: str, metric: str) -> float:
        return statistics.fmean(fold[contender][metric] for fold in folds)

    shown = "   ".join(f"{one} {mean(one, 'auc'):.4f} / {mean(one, 'log_loss'):.4f}" for one in (OURS, *PEERS))
    above = [interval([fold[OURS]["auc"] - fold[peer]["auc"] for fold in folds]) for peer in PEERS]
    pairs = "   ".join(f"− {peer} {of[0]:+.4f} ± {of[1]:.4f}" for peer, of in zip(PEERS, above, strict=True))
    return f"{name:16} {shown}   {OURS} {pairs}   train {mean(OURS, 'seconds'):.1f} s"


def compare(name: str, folder: Path, table: Table, options: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """Measure the contenders on the folds of a table, print a line about it, and return the figures of each fold."""
    own = work / name.replace(" ", "-")
    own.mkdir(parents=True, exist_ok=True)
    header, lines = read_table(folder, table)
    whole = own / "whole.csv"
    whole.write_text(header + "".join(lines), encoding="utf-8")
    folds = []
    with (own / "log.txt").open("a") as printed, redirect_stdout(printed):
        data = describe(whole, label=table.label)
        host = DeviceOptions(threads=options.threads)
        device.prepare_environment(host)
        import mindspore  # noqa: F401, so that a preparation, which needs fewer, does not choose the threads

        changes = hashlib.sha256("\0".join(options.set).encode()).hexdigest()[:8]
        for fold in range(options.folds):
            prepared = prepare_fold(header, lines, data, fold, own)
            measured = own / f"fold-{fold}-{changes}.json"
            peers = own / f"fold-{fold}-peers.json"
            folds.append(remembered(measured, lambda: measure(prepared, options.set, host, own, peers)))  # noqa: B023
    print(line(name, folds), flush=True)
    return folds


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--tables", nargs="*", choices=tuple(TABLES), default=tuple(TABLES))
    parser.add_argument("--log", nargs="*", default=[], metavar="FILE[=LABEL]", help="other tables")
    parser.add_argument("--folds", type=int, default=FOLDS, help="every five are of another shuffle of the lines (5)")
    parser.add_argument("--set", nargs="*", default=[], metavar="section.key=value", help="changes to auto.yaml")
    parser.add_argument("--threads", type=int, default=0, help="of a run; 0: all cores")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    with work_folder(options.work) as work:
        tables = {name: (folder_of("REAL_LOGS"), TABLES[name]) for name in options.tables}
        for named in options.log:
            file, _, label = named.partition("=")
            tables[Path(file).stem] = (Path(file).parent, Table(Path(file).name, label or None))
        results = {name: compare(name, *of, options, work) for name, of in tables.items()}
    print_result(options, tables=results)


if __name__ == "__main__":
    main()
