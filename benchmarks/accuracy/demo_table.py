"""The short table that `make demo` ends with.

python -m benchmarks.accuracy.demo_table RUN PREPARED
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from app.evaluation.evaluate import best_on
from benchmarks.peers.logistic_regression import fit
from data_prep.prepared.schema import read_schema


def median_speed(metrics_path: Path) -> float:
    """Median samples/s over the logged intervals of training, without the first (it compiles the graph)."""
    lines = [json.loads(line) for line in metrics_path.read_text(encoding="utf-8").splitlines()]
    speeds = [line["samples_per_second"] for line in lines if "samples_per_second" in line]
    return statistics.median(speeds[1:] or speeds)


def test_metrics(eval_path: Path) -> dict[str, float]:
    """The metrics in the newest line of eval.log for split `test`."""
    line = [line for line in eval_path.read_text(encoding="utf-8").splitlines() if "split: test" in line][-1]
    return {name: float(value) for name, value in (part.split(" is ") for part in line.split(", ")[1:])}


def main() -> None:
    """Print the table and the path of the run folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("prepared", type=Path)
    arguments = parser.parse_args()
    schema = read_schema(arguments.prepared)
    print("== logistic regression on the same rows")
    regression, best = fit(arguments.prepared), best_on(arguments.prepared, schema, "test")
    model = test_metrics(arguments.run / "eval.log")
    rows: list[tuple[str, str]] = [
        ("rows (train / valid / test)", " / ".join(f"{split.rows:,}" for split in schema.splits.values())),
        ("vocabulary size", f"{schema.vocabulary_size:,}"),
        ("training speed, median", f"{median_speed(arguments.run / 'metrics.jsonl'):,.0f} samples/s"),
        ("AUC: Wide&Deep", f"{model['auc']:.4f}"),
        ("AUC: logistic regression", f"{regression.auc:.4f}"),
        ("AUC: best possible", f"{best.auc:.4f}" if best else "unknown: not a synthetic log"),
        ("log loss: Wide&Deep", f"{model['log_loss']:.4f}"),
        ("log loss: logistic regression", f"{regression.log_loss:.4f}"),
        ("log loss: best possible", f"{best.log_loss:.4f}" if best else "unknown: not a synthetic log"),
    ]
    print()
    for name, value in rows:
        print(f"  {name:<30} {value}")
    print(f"\nrun folder: {arguments.run.resolve()}")


if __name__ == "__main__":
    main()
