"""Train auto.yaml on a generated log in which the position of a row explains clicks, with and without this field.

    python -m benchmarks.accuracy.positions [--rankings other appeal] [--rows 200000] [--work FOLDER]

Each row has the columns click, a (100 values), b (1,000 values) and position (1 to 10). Its appeal is the sum of normal
effects of a and b with deviations of 0.7. The log comes from an old ranking, which put the rows with the largest values
of one of these sums first. `appeal`: the appeal and a noise of deviation 1. `other`: the same noise and other effects
of b, with a deviation of 1. The click's log odds are -1 + appeal - 0.3 · (position - 1).

The scores of the rows of split test are compared with the probability of a click at position 1, which is the truth for
choosing among candidates: by the rank correlation of Spearman, and by the mean score divided by the mean probability.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.stats import spearmanr

from app.api import evaluate, load_run, prepare, train
from benchmarks.harness.commands import work_folder
from benchmarks.harness.timing import new_parser, print_result
from common.packages import PROJECT
from data_prep.prepared.data_files import row_numbers_file

CONFIG = str(PROJECT / "configs/auto.yaml")
MODELS = {  # For each model: the kind of the position, and the value with which it is served.
    "without position": ("ignored", {}),
    "with position": ("string", {}),
    "with position, serve_as 1": ("string", {"position": "1"}),
}


def generate(ranking: str, rows: int) -> tuple[pa.Table, np.ndarray]:
    """Return the log, and the probability of a click at position 1 of each of its rows, [rows]."""
    rng = np.random.default_rng(0)
    values = [rng.integers(0, size, rows) for size in (100, 1000)]
    appeal = sum(rng.normal(0, 0.7, of.max() + 1)[of] for of in values)
    preferred = appeal if ranking == "appeal" else rng.normal(0, 1, 1000)[values[1]]
    order = np.argsort(np.argsort(-preferred - rng.normal(0, 1, rows)))
    position = 1 + order * 10 // rows
    clicks = (rng.random(rows) < 1 / (1 + np.exp(1 - appeal + 0.3 * (position - 1)))).astype(int)
    names = {name: [f"{name}{number}" for number in of] for name, of in zip("ab", values, strict=True)}
    return pa.table({"click": clicks, **names, "position": position}), 1 / (1 + np.exp(1 - appeal))


def measured(log: pa.Table, truth: np.ndarray, kind: str, serve_as: dict[str, str], work: Path) -> dict[str, float]:
    """Train on log.parquet with the position of this kind, and return the figures of the scores of split test."""
    for folder in ("prepared", "run"):
        shutil.rmtree(work / folder, ignore_errors=True)
    columns = {"click": "label", "a": "string", "b": "string", "position": kind}
    prepare(work / "log.parquet", work / "prepared", CONFIG, {"columns": columns, "serve_as": serve_as})
    train(CONFIG, work / "prepared", work / "run", None, None)
    rows = np.load(work / "prepared" / row_numbers_file("test"))
    scores = load_run(work / "run").predict(log.take(rows))
    return {
        "auc of the log": float(evaluate(work / "run", "test").metrics.auc),
        "rank correlation": float(spearmanr(scores, truth[rows]).statistic),
        "mean score by mean truth": float(np.mean(scores) / truth[rows].mean()),
    }


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--rankings", nargs="*", choices=("other", "appeal"), default=("other", "appeal"))
    parser.add_argument("--rows", type=int, default=200_000)
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with work_folder(options.work) as work:
        for ranking in options.rankings:
            log, truth = generate(ranking, options.rows)
            pq.write_table(log, work / "log.parquet")
            for model, (kind, serve_as) in MODELS.items():
                found = results[f"{ranking}, {model}"] = measured(log, truth, kind, serve_as, work)
                print(f"{ranking}, {model}: {found}", flush=True)
    print_result(options, models=results)


if __name__ == "__main__":
    main()
