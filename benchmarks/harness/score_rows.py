"""The logit that a run's model gives each test row.

python -m benchmarks.harness.score_rows RUN OUTPUT.npy

OUTPUT.npy holds float32 [rows] of the split `test`, in the order of the prepared folder (row_numbers-test.npy says
which lines those are).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.config import device
from app.run.folder import best_of_run
from app.scoring.trained.trained_model import open_trained
from benchmarks.harness.commands import run_command, validations
from data_prep.prepared.batches import read_batches, written_order


def score_rows(run: Path, split: str = "test") -> np.ndarray:
    """Return the logits [rows] that a run's best checkpoint, else its newest, gives the rows of a split."""
    trained = open_trained(best_of_run(run))
    device.prepare_environment(trained.config.device)
    device.select_device(trained.config.device)
    from app.scoring.trained.trained_model import load_for_scoring

    scorer, order = load_for_scoring(trained), written_order(trained.schema, split)
    batches = read_batches(trained.folder, trained.schema, split, order, trained.batch_size)
    return np.concatenate([scorer.score(batch, scorer.prepare(batch)).copy() for batch in batches])


def train_and_score(
    config: Path, prepared: Path, changes: Sequence[str], work: Path
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Train a model by `python -m app train`. Return the logits of the test rows, and the evaluations on valid."""
    place = work / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    words = ("--config", str(config), "--dataset", str(prepared.resolve()), *changes)
    run_command("app", "train", *words, folder=place)
    run_command("benchmarks.harness.score_rows", "device_0", "scores.npy", folder=place)
    logits, evaluations = np.load(place / "scores.npy"), validations(place / "device_0")
    shutil.rmtree(place)
    return logits, evaluations


def main() -> None:
    run, output = sys.argv[1:]
    np.save(output, score_rows(Path(run)))


if __name__ == "__main__":
    main()
