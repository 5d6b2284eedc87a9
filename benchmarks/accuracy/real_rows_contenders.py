"""Contenders on the real rows, all with the same number of settings.

A contender evaluates its settings on a cut's valid tenth (`valid_aucs`) and, with the one chosen there, scores the test
tenth by a model of all rows before it (`test_scores`). The networks also choose after how many epochs to stop.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.accuracy.paired_auc import RankedScores
from benchmarks.accuracy.rolling_cuts import Cut
from benchmarks.harness.commands import PROJECT, CommandServer, validations
from benchmarks.harness.prepared_rows import read_rows
from benchmarks.harness.workload import Workload
from benchmarks.peers import logistic_regression, pytorch_training
from benchmarks.peers.pytorch_wide_deep import PeerSettings
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import read_schema

CONFIG = PROJECT / "configs" / "few_rows.yaml"
PREPARE = PrepareOptions(min_count=2)  # of 2, 5, 10 and 20 the regression's best as well
MOST_EPOCHS = 10
BATCH_SIZE = 1000
EMBEDDING_DIM, HIDDEN_WIDTHS = 8, (64, 32)


class Contender(Protocol):
    """A kind of model; `settings` are the names of the settings to choose from."""

    @property
    def name(self) -> str:
        """For people, and for the files of what was tried."""
        ...

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings to try."""
        ...

    def valid_aucs(self, cut: Cut, setting: str) -> list[float]:
        """AUC on the valid tenth after each epoch; a model without epochs has one."""
        ...

    def test_scores(self, cut: Cut, setting: str, epochs: int, seed: int) -> np.ndarray:
        """A score for each row of the test tenth [rows]."""
        ...


class Regression:
    """Logistic regression; a seed changes nothing."""

    name = "logistic regression"
    penalties = {f"C {c:g}": c for c in (0.03, 0.05, 0.07, 0.1)}

    @property
    def settings(self) -> tuple[str, ...]:
        """See `Contender`."""
        return tuple(self.penalties)

    def valid_aucs(self, cut: Cut, setting: str) -> list[float]:
        """See `Contender`."""
        folder = cut.choosing(PREPARE)
        return [auc(self._scores(folder, "valid", setting), labels_of(folder, "valid"))]

    def test_scores(self, cut: Cut, setting: str, epochs: int, seed: int) -> np.ndarray:
        """See `Contender`."""
        return self._scores(cut.testing(PREPARE), "test", setting)

    def _scores(self, folder: Path, split: str, setting: str) -> np.ndarray:
        return logistic_regression.predict(folder, split, self.penalties[setting])


@dataclass(frozen=True)
class PyTorch:
    """Wide&Deep in PyTorch, of the same size."""

    name: str
    grid: Mapping[str, PeerSettings]
    threads: int = 1

    @property
    def settings(self) -> tuple[str, ...]:
        """See `Contender`."""
        return tuple(self.grid)

    def valid_aucs(self, cut: Cut, setting: str) -> list[float]:
        """See `Contender`."""
        folder = cut.choosing(PREPARE)
        labels = labels_of(folder, "valid")
        return [auc(scores, labels) for scores in self._scores(folder, "valid", setting, MOST_EPOCHS, seed=1)]

    def test_scores(self, cut: Cut, setting: str, epochs: int, seed: int) -> np.ndarray:
        """See `Contender`."""
        scores: np.ndarray = self._scores(cut.testing(PREPARE), "test", setting, epochs, seed)[-1]
        return scores

    def _scores(self, folder: Path, split: str, setting: str, epochs: int, seed: int) -> np.ndarray:
        workload = Workload(
            batch_size=BATCH_SIZE,
            vocabulary_size=read_schema(folder).vocabulary_size,
            embedding_dim=EMBEDDING_DIM,
            hidden_widths=HIDDEN_WIDTHS,
            threads=self.threads,
        )
        return pytorch_training.train(folder, split, workload, self.grid[setting], epochs, seed)


@dataclass(frozen=True)
class Application:
    """This project as its users run it: `python -m app train`, then its newest checkpoint's scores."""

    name: str
    grid: Mapping[str, tuple[str, ...]]
    commands: CommandServer
    work: Path

    @property
    def settings(self) -> tuple[str, ...]:
        """See `Contender`."""
        return tuple(self.grid)

    def valid_aucs(self, cut: Cut, setting: str) -> list[float]:
        """See `Contender`."""
        run = self._train(cut.choosing(PREPARE), setting, MOST_EPOCHS, seed=1)
        aucs = [line["auc"] for line in validations(run)]
        shutil.rmtree(run.parent)
        return aucs

    def test_scores(self, cut: Cut, setting: str, epochs: int, seed: int) -> np.ndarray:
        """See `Contender`."""
        run = self._train(cut.testing(PREPARE), setting, epochs, seed)
        output = run.parent / "scores.npy"
        self.commands.run("benchmarks.harness.score_rows", str(run), str(output), folder=run.parent)
        scores: np.ndarray = np.load(output)
        shutil.rmtree(run.parent)
        return scores

    def _train(self, folder: Path, setting: str, epochs: int, seed: int) -> Path:
        place = self.work / "run"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        changes = (f"train.epochs={epochs}", f"train.seed={seed}", *self.grid[setting])
        dataset = ("--config", str(CONFIG), "--dataset", str(folder.resolve()))
        self.commands.run("app", "train", *dataset, *changes, folder=place)
        return place / "device_0"


@dataclass(frozen=True)
class Choice:
    """The setting chosen on a cut's valid tenth, and the AUC after each epoch of every setting tried."""

    setting: str
    epochs: int
    tried: dict[str, list[float]]


def choose(contender: Contender, cut: Cut, memory: Path) -> Choice:
    """The setting and number of epochs with the highest AUC on the valid tenth."""
    tried = {}
    for setting in contender.settings:
        path = memory / f"{contender.name}, cut {cut.k}, {setting}.json"
        if not path.is_file():
            path.write_text(json.dumps(contender.valid_aucs(cut, setting)), encoding="utf-8")
        tried[setting] = json.loads(path.read_text(encoding="utf-8"))
    setting, epoch = max(
        ((s, e) for s in tried for e in range(len(tried[s]))), key=lambda place: tried[place[0]][place[1]]
    )
    return Choice(setting, epoch + 1, tried)


def labels_of(folder: Path, split: str) -> np.ndarray:
    """[rows] bool, in the order of the prepared folder."""
    labels: np.ndarray = read_rows(folder, read_schema(folder), split).labels > 0
    return labels


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """AUC of scores [rows]."""
    return RankedScores(scores, labels).auc(np.ones(len(labels)))
