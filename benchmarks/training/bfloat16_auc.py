"""Does bfloat16 cost accuracy? AUC of float32 and bfloat16 runs from the same seeds, on the same synthetic rows.

    python -m benchmarks.training.bfloat16_auc [--rows 1000000] [--seeds 5]

Each pair differs in `device.precision` alone; configs/demo.yaml, one epoch, AUC on the test rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.harness.commands import PROJECT, run_command
from benchmarks.harness.timing import machine

CONFIG = PROJECT / "configs" / "demo.yaml"
PRECISIONS = ("float32", "bfloat16")


def auc(folder: Path, seed: int, precision: str) -> float:
    """Train one epoch and evaluate it on the test rows."""
    settings = (f"train.seed={seed}", f"device.precision={precision}", "train.resume=never")
    run_command("app", "train", "--config", str(CONFIG), "--dataset", "prepared", *settings, folder=folder)
    run_command("app", "evaluate", folder=folder)
    line = (folder / "device_0" / "eval.log").read_text(encoding="utf-8").splitlines()[-1]
    return float(line.partition("auc is ")[2].partition(",")[0])


def measure(folder: Path, rows: int, seeds: int) -> list[dict[str, float]]:
    """The AUC of each pair, printed as it comes."""
    run_command("data_prep", "synthesize", "rows.txt", "--rows", str(rows), folder=folder)
    run_command("data_prep", "prepare", "rows.txt", "prepared", "--config", str(CONFIG), folder=folder)
    pairs = []
    for seed in range(1, seeds + 1):
        pair = {precision: auc(folder, seed, precision) for precision in PRECISIONS}
        pairs.append(pair)
        print(f"seed {seed}: float32 {pair['float32']:.6f}, bfloat16 {pair['bfloat16']:.6f}", flush=True)
    return pairs


def main() -> None:
    """Print each pair, the mean difference and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pairs = measure(Path(folder), options.rows, options.seeds)
    differences = [pair["bfloat16"] - pair["float32"] for pair in pairs]
    mean, spread = statistics.fmean(differences), statistics.pstdev(differences)
    print(f"bfloat16 - float32: mean {mean:+.6f}, standard deviation {spread:.6f}")
    print(json.dumps({"rows": options.rows, "pairs": pairs, "mean_difference": mean, "machine": machine()}))


if __name__ == "__main__":
    main()
