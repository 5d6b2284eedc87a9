"""Train auto.yaml on generated logs with a vector column, beside the best possible AUC and a model without the vector.

    python -m benchmarks.accuracy.vectors [--logs plain missing …] [--rows 400000] [--work FOLDER]

Each log has the columns click, a (100 values), b (1,000 values) and v, a vector of width 64. The click's log odds are
-1.2 + 1.15 u · v + effects of a and b, with normal components, a unit vector u and normal effects of deviation 0.5,
except where a log of LOGS says otherwise. A vector that is missing adds 0. All AUCs are of the rows in split test.
"""

from __future__ import annotations

import shutil
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
LOGS = {
    "plain": "as above",
    "missing": "5 % of the vectors are missing",
    "scaled": "the components are multiplied by 1,000",
    "curved": "0.8 u · v, and a product and an absolute value of other projections of v",
}
WIDTH = 64


def generate(log: str, rows: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write a log of LOGS. Return the clicks of its rows and their true probabilities, both [rows]."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((rows, WIDTH), np.float32)
    values = [rng.integers(0, size, rows) for size in (100, 1000)]
    effects = [rng.normal(0, 0.5, size)[of] for size, of in zip((100, 1000), values, strict=True)]
    direction = rng.standard_normal(WIDTH)
    along = vectors @ (direction / np.linalg.norm(direction))
    of_vector = 1.15 * along
    if log == "curved":
        others = (vectors @ rng.normal(0, 1 / 8, (WIDTH, 3))).T
        of_vector = 0.8 * along + 0.675 * (others[0] * others[1] + np.abs(others[2]) - 0.8)
    is_missing = rng.random(rows) < (0.05 if log == "missing" else 0)
    odds = -1.2 + np.where(is_missing, 0, of_vector) + effects[0] + effects[1]
    probabilities = 1 / (1 + np.exp(-odds))
    clicks = (rng.random(rows) < probabilities).astype(int)
    components = vectors[~is_missing].reshape(-1) * np.float32(1000 if log == "scaled" else 1)
    ends = np.cumsum([0, *(WIDTH * ~is_missing)], dtype=np.int32)
    cells = pa.ListArray.from_arrays(ends, components, mask=pa.array(is_missing))
    names = {name: [f"{name}{number}" for number in of] for name, of in zip("ab", values, strict=True)}
    pq.write_table(pa.table({"click": clicks, **names, "v": cells}), path)
    return clicks, probabilities


def auc_of(kind: str, work: Path) -> float:
    """Prepare log.parquet with the column v of this kind, train auto.yaml, and return the AUC on test."""
    for name in ("prepared", "run"):
        shutil.rmtree(work / name, ignore_errors=True)
    columns = {"click": "label", "a": "string", "b": "string", "v": kind}
    vectors = {"v": {"width": WIDTH}} if kind == "vector" else {}
    prepare(work / "log.parquet", work / "prepared", CONFIG, {"columns": columns, "vectors": vectors})
    train(CONFIG, work / "prepared", work / "run", None, None)
    return float(evaluate(work / "run", "test").metrics.auc)


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--logs", nargs="*", choices=tuple(LOGS), default=tuple(LOGS))
    parser.add_argument("--rows", type=int, default=400_000)
    options = parser.parse_args()
    results, lines = {}, []
    with work_folder(options.work) as work:
        for log in options.logs:
            clicks, probabilities = generate(log, options.rows, work / "log.parquet")
            found = {"without the vector": auc_of("ignored", work), "auto.yaml": auc_of("vector", work)}
            rows = np.load(work / "prepared" / row_numbers_file("test"))
            found["best possible"] = float(roc_auc_score(clicks[rows], probabilities[rows]))
            results[log] = found
            below = found["best possible"] - found["auto.yaml"]
            shown = ", ".join(f"{name} {auc:.4f}" for name, auc in found.items())
            lines.append(f"{log:8} AUC {shown}; auto.yaml is {below:.4f} below the best possible")
    print("\n".join(lines), flush=True)
    print_result(options, logs=results)


if __name__ == "__main__":
    main()
