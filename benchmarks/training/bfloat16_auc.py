"""Do bfloat16 and distinct rows cost accuracy? AUC of runs from the same seeds, on the same rows.

    python -m benchmarks.training.bfloat16_auc      [--of precision] [--rows 1000000] [--seeds 5] [--work FOLDER]

The runs of a seed see one epoch of synthetic rows, unless said otherwise. AUC is that on the test rows. They differ in:

    precision                   `device.precision`, with configs/demo.yaml
    first_layer                 `model.first_layer` as well, with the widths of configs/criteo.yaml at batch 4,000
    rows_400k, rows_5m          `tables.dtype`, with criteo.yaml in batches of 4,000, and with many_rows.yaml
    rows_real                   `tables.dtype`, with the epochs of few_rows.yaml on CRITEO_ROWS/train.txt

What was run in --work is not run again.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.accuracy.recipes import ALL, Data, prepare, train
from benchmarks.harness.commands import folder_of, remembered, run_command, work_folder
from benchmarks.harness.timing import new_parser, print_result


@dataclass(frozen=True)
class Comparison:
    """Several runs on one log, by name, each with the settings in which it differs from the others."""

    config: str
    rows: int  # Number of rows to synthesize, or 0 for the rows of CRITEO_ROWS.
    settings: tuple[str, ...]
    runs: Mapping[str, tuple[str, ...]]
    pairs: tuple[tuple[str, str], ...]  # Pairs of runs whose difference of AUC is measured.

    def measure(self, folder: Path, seeds: int) -> dict[str, Any]:
        """Train all runs with each seed.

        Print and return the AUC of each run, and the mean differences between runs.
        """
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "rows.txt" if self.rows else folder_of("CRITEO_ROWS") / "train.txt"
        if not log.is_file():
            run_command("data_prep", "synthesize", str(log), "--rows", str(self.rows), folder=folder)
        prepared = prepare(Data("prepared", log), self.config, folder)
        results: list[dict[str, float]] = []
        for seed in range(1, seeds + 1):
            results.append({})
            for name, changes in self.runs.items():
                settings = (*self.settings, f"train.seed={seed}", *changes)
                known = folder / f"{name} {seed}.json"
                run = remembered(known, partial(train, prepared, self.config, settings, folder))
                results[-1][name] = run["test"][ALL]["auc"]
            print(f"seed {seed}: " + ", ".join(f"{n} {value:.6f}" for n, value in results[-1].items()), flush=True)
        means = {}
        for name, other in self.pairs:
            differences = [aucs[name] - aucs[other] for aucs in results]
            means[f"{name} - {other}"] = mean = statistics.fmean(differences)
            spread = statistics.pstdev(differences)
            print(f"{name} - {other}: mean {mean:+.6f}, standard deviation {spread:.6f}", flush=True)
        return {"runs": results, "mean_differences": means}


PAIRS = (("bfloat16", "float32"),)
PRECISIONS, DTYPES = (
    {value: (f"{setting}={value}",) for value in ("float32", "bfloat16")}
    for setting in ("device.precision", "tables.dtype")
)
COMPARISONS = {
    "precision": Comparison("demo", 1_000_000, (), PRECISIONS, PAIRS),
    "first_layer": Comparison(
        "criteo",
        1_000_000,
        ("train.epochs=1", "train.batch_size=4000"),
        {
            "direct": ("device.precision=float32", "model.first_layer=direct"),
            "distinct": ("device.precision=float32", "model.first_layer=distinct"),
            "distinct bfloat16": ("device.precision=bfloat16", "model.first_layer=distinct"),
        },
        (("distinct", "direct"), ("distinct bfloat16", "distinct")),
    ),
    "rows_400k": Comparison("criteo", 400_000, ("train.epochs=1", "train.batch_size=4000"), DTYPES, PAIRS),
    "rows_5m": Comparison("many_rows", 5_000_000, ("train.epochs=1", "eval.every_steps=0"), DTYPES, PAIRS),
    "rows_real": Comparison("few_rows", 0, (), DTYPES, PAIRS),
}


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--of", choices=tuple(COMPARISONS), default="precision")
    parser.add_argument("--rows", type=int, help="to be synthesized; default: as many as the comparison says")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    comparison = COMPARISONS[options.of]
    comparison = replace(comparison, rows=options.rows or comparison.rows)
    with work_folder(options.work) as work:
        result = comparison.measure(work / options.of, options.seeds)
    print_result(options, rows=comparison.rows, **result)


if __name__ == "__main__":
    main()
