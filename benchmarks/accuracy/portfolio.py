"""Compare three settings of configs/auto.yaml by the valid rows, as a choice between them in `train` would.

    REAL_LOGS=FOLDER python -m benchmarks.accuracy.portfolio [--tables adult telco …] [--log FILE[=LABEL] …]
                                 [--dense ROWS] [--folds 2] [--threads N] [--work FOLDER]

`balanced` are the settings that train.auto chooses. `wide` has a wide part that learns faster, with a tenth of its l2.
`tower` has a tower of 256-128 with a tenth of l2_coef. Each is trained on its whole schedule. Another setting than
`balanced` is chosen if its log loss on the valid rows is lower by more than the standard error of the paired
difference. A line shows how much each setting lowers the log loss on valid, and how far AUC and log loss of the chosen
one on test differ from those of `balanced`. The tables and folds are those of `real_tables`; --dense adds a generated
table of ROWS rows whose clicks follow products of numbers.
"""

from __future__ import annotations

import argparse
import io
import logging
import shutil
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

from app.api import describe, train
from app.config import device
from app.config.device import DeviceOptions
from app.training.auto.by_rows import settings_by_rows
from benchmarks.accuracy.real_tables import CONFIG, TABLES, Table, prepare_fold, read_table
from benchmarks.harness.commands import folder_of, read_rows, work_folder
from benchmarks.harness.score_rows import score_rows
from benchmarks.harness.timing import new_parser, print_result
from data_prep.prepared.schema import Schema, read_schema

BALANCED = "balanced"
DENSE = "dense"


class Result(NamedTuple):
    """Results of a setting's trained model: the log loss of each valid row [n], and AUC and mean log loss on test."""

    valid: np.ndarray
    auc: float
    log_loss: float


def variants(schema: Schema) -> dict[str, dict[str, Any]]:
    """Return the settings to compare, as sections by the name of the variant."""
    auto = settings_by_rows(schema)
    return {
        BALANCED: {},
        "wide": {"wide_optimizer": {"learning_rate": 0.3, "l2": auto["wide_optimizer"]["l2"] / 10}},
        "tower": {"model": {"hidden_widths": [256, 128]}, "loss": {"l2_coef": auto["loss"]["l2_coef"] / 10}},
    }


def write_dense(file: Path, rows: int) -> None:
    """Write a table of 12 numeric columns. Its clicks depend on two products of two columns, the square of one column
    and two single columns; the other columns are noise.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 12))
    logits = 1.2 * x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3] + 0.6 * (x[:, 4] ** 2 - 1) + 0.6 * x[:, 5] - 0.4 * x[:, 6]
    clicks = rng.random(rows) < 1 / (1 + np.exp(-logits))
    columns = ",".join(f"x{number}" for number in range(12))
    np.savetxt(file, np.c_[clicks, x], "%.4f", ",", header=f"click,{columns}", comments="")


def measure(prepared: Path, host: DeviceOptions, work: Path) -> dict[str, Result]:
    schema, results = read_schema(prepared), {}
    labels = {split: read_rows(prepared, schema, split).labels for split in ("valid", "test")}
    for name, sections in variants(schema).items():
        shutil.rmtree(work / "run", ignore_errors=True)
        with redirect_stdout(io.StringIO()):
            run = train(CONFIG, prepared, work / "run", None, None, **sections, device=asdict(host))
            logits = {split: score_rows(run.path, split).astype(np.float64) for split in labels}
        losses = {split: np.logaddexp(0, logits[split]) - labels[split] * logits[split] for split in labels}
        auc = float(roc_auc_score(labels["test"], logits["test"]))
        results[name] = Result(losses["valid"], auc, float(losses["test"].mean()))
    return results


def choose(results: dict[str, Result]) -> tuple[str, dict[str, tuple[float, float]]]:
    """Return the chosen setting, and for each one but `balanced`: by how much it lowers the mean log loss of the valid
    rows below that of `balanced`, and the standard error of this difference.
    """
    lowered = {name: results[BALANCED].valid - result.valid for name, result in results.items() if name != BALANCED}
    found = {name: (float(of.mean()), float(of.std(ddof=1) / len(of) ** 0.5)) for name, of in lowered.items()}
    certain = [name for name, (mean, error) in found.items() if mean > error]
    return max(certain, key=lambda name: found[name][0], default=BALANCED), found


def line(name: str, results: dict[str, Result]) -> str:
    chosen, found = choose(results)
    base, best = results[BALANCED], results[chosen]
    valid = "   ".join(f"{one} lowers valid by {mean:+.4f} ± {error:.4f}" for one, (mean, error) in found.items())
    tested = "   ".join(f"{one} {of.auc:.4f} / {of.log_loss:.4f}" for one, of in results.items())
    return (
        f"{name:20} {valid}   test: {tested}   chosen: {chosen}, AUC {best.auc - base.auc:+.4f}, "
        f"log loss {best.log_loss - base.log_loss:+.4f}"
    )


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--tables", nargs="*", choices=tuple(TABLES), default=())
    parser.add_argument("--log", nargs="*", default=[], metavar="FILE[=LABEL]", help="other tables")
    parser.add_argument("--dense", type=int, nargs="*", default=[], metavar="ROWS", help="generated tables")
    parser.add_argument("--folds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0, help="of a run; 0: all cores")
    options: argparse.Namespace = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    host = DeviceOptions(threads=options.threads)
    device.prepare_environment(host)
    import mindspore  # noqa: F401, so that a preparation, which needs fewer, does not choose the threads

    results = {}
    with work_folder(options.work) as work:
        tables = {name: (folder_of("REAL_LOGS"), TABLES[name]) for name in options.tables}
        for named in options.log:
            file, _, label = named.partition("=")
            tables[Path(file).stem] = (Path(file).parent, Table(Path(file).name, label or None))
        for rows in options.dense:
            write_dense(work / f"{DENSE}-{rows}.csv", rows)
            tables[f"{DENSE}-{rows}"] = (work, Table(f"{DENSE}-{rows}.csv", "click"))
        for name, (folder, table) in tables.items():
            own = work / name.replace(" ", "-")
            own.mkdir(parents=True, exist_ok=True)
            header, lines = read_table(folder, table)
            whole = own / "whole.csv"
            whole.write_text(header + "".join(lines), encoding="utf-8")
            with redirect_stdout(io.StringIO()):
                data = describe(whole, label=table.label)
            for fold in range(options.folds):
                with redirect_stdout(io.StringIO()):
                    prepared = prepare_fold(header, lines, data, fold, own)
                found = measure(prepared, host, own)
                print(line(f"{name} fold {fold}", found), flush=True)
                chosen, valid = choose(found)
                of_test = {one: (of.auc, of.log_loss) for one, of in found.items()}
                results[f"{name} {fold}"] = {"valid": valid, "test": of_test, "chosen": chosen}
    print_result(options, folds=results)


if __name__ == "__main__":
    main()
