"""Contenders on the real rows, all peers with the same number of settings.

This project's settings follow from the number of rows. A peer evaluates its settings on a cut's valid tenth
(`valid_aucs`) and, with the one chosen there, scores the test tenth by a model of all rows before it (`test_scores`).
Networks and trees also choose after how many epochs to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.batches import Batch
from benchmarks.accuracy.rolling_cuts import Cut
from benchmarks.harness.commands import remembered
from benchmarks.harness.prepared_rows import READ_ROWS, read_rows
from benchmarks.harness.score_rows import train_and_score
from benchmarks.harness.workload import Workload
from benchmarks.peers import logistic_regression
from benchmarks.peers.pytorch_wide_deep import PeerSettings, PyTorchStep, use_threads
from common.packages import PROJECT
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import read_schema
from data_prep.prepared.truth import area_under_curve

CONFIG = PROJECT / "configs" / "auto.yaml"
PREPARE = PrepareOptions(min_count=2)  # of 2, 5, 10 and 20 the regression's best as well
BATCH_SIZE = 1000


@dataclass(frozen=True)
class Contender:
    """A kind of model, of whose settings in `grid`, by name, one is chosen if there are any.

    `fit(folder, split, settings, epochs, seed)` trains one and returns its scores [epochs, rows] after each epoch.
    """

    name: str
    grid: Mapping[str, Any]
    fit: Callable[[Path, str, Any, int, int], np.ndarray]
    most_epochs: int = 10
    is_seeded: bool = True

    def valid_aucs(self, cut: Cut, setting: str) -> list[float]:
        """AUC on the valid tenth after each epoch."""
        folder = cut.choosing(PREPARE)
        labels = labels_of(folder, "valid")
        scores = self.fit(folder, "valid", self.grid[setting], self.most_epochs, 1)
        return [area_under_curve(of_epoch, labels) for of_epoch in scores]

    def test_scores(self, cut: Cut, setting: str, epochs: int, seed: int) -> np.ndarray:
        """A score for each row of the test tenth [rows]."""
        scores: np.ndarray = self.fit(cut.testing(PREPARE), "test", self.grid.get(setting), epochs, seed)[-1]
        return scores


def regression() -> Contender:
    """Return logistic regression, which has no seed."""

    def fit(folder: Path, split: str, penalty: float, _: int, __: int) -> np.ndarray:
        return logistic_regression.predict(folder, split, penalty)[None]

    return Contender("logistic regression", {f"C {c:g}": c for c in (0.03, 0.05, 0.07, 0.1)}, fit, 1, is_seeded=False)


def application(name: str, work: Path) -> Contender:
    """This project as its users run it: `python -m app train` with `auto.yaml`, then its newest checkpoint's scores.

    Settings and epochs follow from the number of rows.
    """

    def fit(folder: Path, split: str, _: None, __: int, seed: int) -> np.ndarray:
        assert split == "test"
        return train_and_score(CONFIG, folder, (f"train.seed={seed}",), work)[0][None]

    return Contender(name, {}, fit)


def _batches(rows: Examples, places: np.ndarray, batch_size: int) -> Iterator[Batch]:
    """Batches of the rows at `places` [n], in that order."""
    for start in range(0, len(places), batch_size):
        of_batch = places[start : start + batch_size]
        yield Batch(rows.ids[of_batch], rows.numeric[of_batch], rows.labels[of_batch])


def fit_pytorch(folder: Path, split: str, settings: PeerSettings, epochs: int, seed: int) -> np.ndarray:
    """Train Wide&Deep of the same size in PyTorch. Return the logits [epochs, rows] of `split` after each epoch."""
    torch.manual_seed(seed)
    use_threads(1)
    schema = read_schema(folder)
    workload = Workload(
        BATCH_SIZE, vocabulary_size=schema.vocabulary_size, embedding_dim=8, hidden_widths=(64, 32), threads=1
    )
    rows, judged = read_rows(folder, schema, "train"), read_rows(folder, schema, split)
    step = PyTorchStep(workload, schema.num_categorical, schema.num_numeric, settings)
    order = np.random.default_rng(seed)
    logits = []
    for _ in range(epochs):
        for batch in _batches(rows, order.permutation(len(rows.labels)), workload.batch_size):
            step(batch, step.prepare(batch))
        in_turn = _batches(judged, np.arange(len(judged.labels)), READ_ROWS)
        logits.append(np.concatenate([step.score(step.prepare(batch)) for batch in in_turn]))
    return np.array(logits)


@dataclass(frozen=True)
class Choice:
    """The setting chosen on a cut's valid tenth, and the AUC after each epoch of every setting tried."""

    setting: str
    epochs: int
    tried: dict[str, list[float]]


def choose(contender: Contender, cut: Cut, memory: Path) -> Choice:
    """Choose setting and epochs by the AUC on the valid tenth. They are "" and 0 if there is nothing to choose."""
    if not contender.grid:
        return Choice("", 0, {})
    tried = {}
    for setting in contender.grid:
        path = memory / f"{contender.name}, cut {cut.k}, {setting}.json"
        tried[setting] = remembered(path, partial(contender.valid_aucs, cut, setting))
    every = ((auc, setting, epoch) for setting, aucs in tried.items() for epoch, auc in enumerate(aucs))
    _, setting, epoch = max(every, key=lambda each: each[0])
    return Choice(setting, epoch + 1, tried)


def labels_of(folder: Path, split: str) -> np.ndarray:
    """[rows] bool, in the order of the prepared folder."""
    labels: np.ndarray = read_rows(folder, read_schema(folder), split).labels > 0
    return labels
