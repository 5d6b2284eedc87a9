"""The logit that a run's model gives each row of a split, beside `python -m app evaluate`'s metrics of the same rows.

python -m benchmarks.harness.score_rows RUN OUTPUT.npy [--split test]

OUTPUT.npy holds float32 [rows] in the order of the prepared folder (row_numbers-SPLIT.npy says which lines those are).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np

from app import device
from app.batches import Batch
from app.cli.evaluate import saved_config
from app.evaluation.measure import measure
from app.evaluation.metrics import Metrics
from app.run.folder import best_of_run
from app.tables.interface import UniqueIds
from data_prep.prepared.schema import read_schema


def score_rows(run: Path, split: str) -> tuple[np.ndarray, Metrics]:
    """Logits [rows] and metrics of a split, by the run's best checkpoint, else its newest."""
    checkpoint = best_of_run(run)
    config, manifest = saved_config(checkpoint), checkpoint.manifest
    device.prepare_environment(config.device)
    device.select_device(config.device)
    from app.training.assemble import load_for_scoring

    folder = Path(manifest.dataset)
    schema = read_schema(folder)
    batch_size = config.eval.batch_size or config.train.batch_size
    scorer = load_for_scoring(checkpoint, config, schema, batch_size)
    logits: list[np.ndarray] = []

    def score(batch: Batch, unique: UniqueIds) -> np.ndarray:
        logits.append(scorer(batch, unique).copy())
        return logits[-1]

    metrics = measure(folder, schema, split, batch_size, scorer.prepare, score).metrics
    return np.concatenate(logits), metrics


def main(arguments: list[str] | None = None) -> int:
    """Write the logits and print the metrics as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--split", default="test")
    options = parser.parse_args(arguments)
    logits, metrics = score_rows(options.run, options.split)
    np.save(options.output, logits)
    print(json.dumps(dataclasses.asdict(metrics)))
    return 0


if __name__ == "__main__":
    main()
