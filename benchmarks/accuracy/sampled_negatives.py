"""Train auto.yaml on a generated log with few clicks: on all rows, and on samples of the rows without a click.

    python -m benchmarks.accuracy.sampled_negatives [--rows 500000] [--keep 1 0.1] [--work FOLDER]

Each row has the columns click, a (100 values), b (1,000 values) and c (20,000 values, few of them frequent). The
click's log odds are -4.4 + normal effects of the values with deviations of 0.5, so 2 % of the rows are clicks. AUC and
calibration (the sum of the scores divided by the number of clicks) are of all rows of the split test.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import roc_auc_score

from app.api import evaluate, prepare, train
from benchmarks.harness.commands import work_folder
from benchmarks.harness.timing import new_parser, print_result
from common.packages import PROJECT
from data_prep.prepared.data_files import row_numbers_file

CONFIG = str(PROJECT / "configs/auto.yaml")
COLUMNS = {"click": "label", "a": "string", "b": "string", "c": "string"}


def generate(rows: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write the log. Return the clicks of its rows and their true probabilities, both [rows]."""
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 100, rows), rng.integers(0, 1000, rows), (20_000 * rng.random(rows) ** 3).astype(int)]
    odds = -4.4 + sum(rng.normal(0, 0.5, each.max() + 1)[each] for each in values)
    probabilities = 1 / (1 + np.exp(-odds))
    clicks = (rng.random(rows) < probabilities).astype(int)
    names = {name: [f"{name}{number}" for number in of] for name, of in zip("abc", values, strict=True)}
    pq.write_table(pa.table({"click": clicks, **names}), path)
    return clicks, probabilities


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--keep", type=float, nargs="*", default=(1.0, 0.1))
    options = parser.parse_args()
    results = {}
    with work_folder(options.work) as work:
        clicks, probabilities = generate(options.rows, work / "log.parquet")
        for keep in options.keep:
            for name in ("prepared", "run"):
                shutil.rmtree(work / name, ignore_errors=True)
            data = {"columns": COLUMNS}
            schema = prepare(work / "log.parquet", work / "prepared", CONFIG, data, keep_negatives=keep)
            start = time.perf_counter()
            train(CONFIG, work / "prepared", work / "run", None, None)
            seconds = time.perf_counter() - start
            metrics = evaluate(work / "run", "test").metrics
            results[str(keep)] = {
                "training rows": schema.splits["train"].rows,
                "seconds": seconds,
                "auc": float(metrics.auc),
                "calibration": float(metrics.calibration),
            }
            print(f"keep_negatives {keep:g}: {results[str(keep)]}", flush=True)
        rows = np.load(work / "prepared" / row_numbers_file("test"))
        best = float(roc_auc_score(clicks[rows], probabilities[rows]))
        print(f"best possible AUC {best:.4f}")
    print_result(options, kept=results, best_possible=best)


if __name__ == "__main__":
    main()
