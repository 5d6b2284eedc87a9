"""Do bfloat16 and distinct rows cost accuracy? AUC of runs from the same seeds, on the same synthetic rows.

    python -m benchmarks.training.bfloat16_auc                [--rows 1000000] [--seeds 5] [--work FOLDER]
    python -m benchmarks.training.bfloat16_auc --first-layer

The runs of a seed differ in `device.precision` alone: configs/demo.yaml, one epoch, AUC on the test rows. With
--first-layer they differ in `model.first_layer` as well, and have the widths of configs/criteo.yaml at batch 4,000.
What was run in --work is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.harness.commands import remembered, run_command, work_folder
from benchmarks.harness.timing import machine
from common.packages import PROJECT


@dataclass(frozen=True)
class Comparison:
    """Runs by name, each with the settings in which it differs. Each is compared with the one before it."""

    config: Path
    settings: tuple[str, ...]
    runs: dict[str, tuple[str, ...]]


PRECISIONS = Comparison(
    PROJECT / "configs" / "demo.yaml",
    (),
    {precision: (f"device.precision={precision}",) for precision in ("float32", "bfloat16")},
)
FIRST_LAYER = Comparison(
    PROJECT / "configs" / "criteo.yaml",
    ("train.epochs=1", "train.batch_size=4000"),
    {
        "direct": ("device.precision=float32", "model.first_layer=direct"),
        "distinct": ("device.precision=float32", "model.first_layer=distinct"),
        "distinct bfloat16": ("device.precision=bfloat16", "model.first_layer=distinct"),
    },
)


def auc(folder: Path, config: Path, settings: tuple[str, ...]) -> float:
    """Train and evaluate on the test rows."""
    settings += ("train.resume=never",)
    run_command("app", "train", "--config", str(config), "--dataset", "prepared", *settings, folder=folder)
    run_command("app", "evaluate", folder=folder)
    line = (folder / "device_0" / "eval.log").read_text(encoding="utf-8").splitlines()[-1]
    return float(line.partition("auc is ")[2].partition(",")[0])


def measure(folder: Path, comparison: Comparison, rows: int, seeds: int) -> list[dict[str, float]]:
    """The AUC of each seed's runs, printed as they come."""
    if not (folder / "prepared").is_dir():
        run_command("data_prep", "synthesize", "rows.txt", "--rows", str(rows), folder=folder)
        run_command("data_prep", "prepare", "rows.txt", "prepared", "--config", str(comparison.config), folder=folder)
    results = []
    for seed in range(1, seeds + 1):
        of_seed = (*comparison.settings, f"train.seed={seed}")
        aucs: dict[str, float] = {
            name: remembered(
                folder / f"{name} {seed}.json",
                lambda changes=changes: auc(folder, comparison.config, (*of_seed, *changes)),  # noqa: B023
            )
            for name, changes in comparison.runs.items()
        }
        results.append(aucs)
        print(f"seed {seed}: " + ", ".join(f"{name} {value:.6f}" for name, value in aucs.items()), flush=True)
    return results


def main() -> None:
    """Print each seed's runs, the mean differences and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-layer", action="store_true")
    parser.add_argument("--work", type=Path, help="log, prepared rows and figures; default: a new one, removed")
    options = parser.parse_args()
    comparison = FIRST_LAYER if options.first_layer else PRECISIONS
    with work_folder(options.work) as work:
        results = measure(work, comparison, options.rows, options.seeds)
    means = {}
    for before, name in pairwise(comparison.runs):
        differences = [aucs[name] - aucs[before] for aucs in results]
        means[f"{name} - {before}"] = mean = statistics.fmean(differences)
        print(f"{name} - {before}: mean {mean:+.6f}, standard deviation {statistics.pstdev(differences):.6f}")
    for name in comparison.runs:
        print(f"{name}: standard deviation over seeds {statistics.pstdev([aucs[name] for aucs in results]):.6f}")
    print(json.dumps({"rows": options.rows, "runs": results, "mean_differences": means, "machine": machine()}))


if __name__ == "__main__":
    main()
