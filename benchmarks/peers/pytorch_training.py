"""The PyTorch Wide&Deep trained on a prepared folder: epochs over shuffled rows, scores of another split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from app.batches import Batch
from benchmarks.harness.prepared_rows import READ_ROWS, read_rows
from benchmarks.harness.workload import Workload
from benchmarks.peers.pytorch_wide_deep import PeerSettings, PyTorchStep
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import read_schema


def cut(rows: Examples, places: np.ndarray, batch_size: int) -> Iterator[Batch]:
    """Batches of the rows at `places` [n], in that order."""
    for start in range(0, len(places), batch_size):
        of_batch = places[start : start + batch_size]
        yield Batch(rows.ids[of_batch], rows.numeric[of_batch], rows.labels[of_batch])


def train(folder: Path, split: str, workload: Workload, settings: PeerSettings, epochs: int, seed: int) -> np.ndarray:
    """Return the logits [epochs, rows] of `split` after each epoch. `workload` has sizes, batch size and threads."""
    torch.manual_seed(seed)
    torch.set_num_threads(workload.threads)
    schema = read_schema(folder)
    rows, judged = read_rows(folder, schema, "train"), read_rows(folder, schema, split)
    step = PyTorchStep(workload, schema.num_categorical, schema.num_numeric, settings)
    order = np.random.default_rng(seed)
    logits = []
    for _ in range(epochs):
        for batch in cut(rows, order.permutation(len(rows.labels)), workload.batch_size):
            step(batch, step.prepare(batch))
        in_turn = cut(judged, np.arange(len(judged.labels)), READ_ROWS)
        logits.append(np.concatenate([step.score(step.prepare(batch)) for batch in in_turn]))
    return np.array(logits)
