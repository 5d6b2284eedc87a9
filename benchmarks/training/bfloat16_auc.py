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
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.commands import remembered, run_command, work_folder
from benchmarks.harness.timing import machine
from common.packages import PROJECT


def auc(folder: Path, config: Path, settings: tuple[str, ...]) -> float:
    """Train and evaluate on the test rows."""
    settings += ("train.resume=never",)
    run_command("app", "train", "--config", str(config), "--dataset", "prepared", *settings, folder=folder)
    run_command("app", "evaluate", folder=folder)
    line = (folder / "device_0" / "eval.log").read_text(encoding="utf-8").splitlines()[-1]
    return float(line.partition("auc is ")[2].partition(",")[0])


@dataclass(frozen=True)
class Comparison:
    """Runs on one log by name, each with the settings in which it differs."""

    config: str
    rows: int  # to be synthesized; 0: those of CRITEO_ROWS
    settings: tuple[str, ...]
    runs: Mapping[str, tuple[str, ...]]
    pairs: tuple[tuple[str, str], ...]  # the runs whose difference is taken

    def measure(self, folder: Path, seeds: int) -> dict[str, Any]:
        """Print the AUC of each seed's runs as they come, and the mean differences, and return both."""
        config = PROJECT / "configs" / f"{self.config}.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "prepared").is_dir():
            raw = "rows.txt" if self.rows else str(Path(os.environ["CRITEO_ROWS"]) / "train.txt")
            if self.rows:
                run_command("data_prep", "synthesize", raw, "--rows", str(self.rows), folder=folder)
            run_command("data_prep", "prepare", raw, "prepared", "--config", str(config), folder=folder)
        results: list[dict[str, float]] = []
        for seed in range(1, seeds + 1):
            results.append({})
            for name, changes in self.runs.items():
                make = partial(auc, folder, config, (*self.settings, f"train.seed={seed}", *changes))
                results[-1][name] = remembered(folder / f"{name} {seed}.json", make)
            print(f"seed {seed}: " + ", ".join(f"{n} {value:.6f}" for n, value in results[-1].items()), flush=True)
        means = {}
        for name, other in self.pairs:
            differences = [aucs[name] - aucs[other] for aucs in results]
            means[f"{name} - {other}"] = mean = statistics.fmean(differences)
            spread = statistics.pstdev(differences)
            print(f"{name} - {other}: mean {mean:+.6f}, standard deviation {spread:.6f}", flush=True)
        return {"runs": results, "mean_differences": means}


PRECISIONS = Comparison(
    "demo",
    1_000_000,
    (),
    {precision: (f"device.precision={precision}",) for precision in ("float32", "bfloat16")},
    (("bfloat16", "float32"),),
)
FIRST_LAYER = Comparison(
    "criteo",
    1_000_000,
    ("train.epochs=1", "train.batch_size=4000"),
    {
        "direct": ("device.precision=float32", "model.first_layer=direct"),
        "distinct": ("device.precision=float32", "model.first_layer=distinct"),
        "distinct bfloat16": ("device.precision=bfloat16", "model.first_layer=distinct"),
    },
    (("distinct", "direct"), ("distinct bfloat16", "distinct")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=PRECISIONS.rows)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-layer", action="store_true")
    parser.add_argument("--work", type=Path, help="log, prepared rows and figures; default: a new one, removed")
    options = parser.parse_args()
    comparison = replace(FIRST_LAYER if options.first_layer else PRECISIONS, rows=options.rows)
    with work_folder(options.work) as work:
        result = comparison.measure(work, options.seeds)
    print(json.dumps({"rows": options.rows, **result, "machine": machine()}))


if __name__ == "__main__":
    main()
