"""Contenders on the real rows, all peers with the same number of settings.

This project's settings follow from the number of rows. A peer evaluates its settings on a cut's valid tenth
(`valid_aucs`) and, with the one chosen there, scores the test tenth by a model of all rows before it (`test_scores`).
Networks and trees also choose after how many epochs to stop.
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
from benchmarks.harness.commands import PROJECT, CommandServer
from benchmarks.harness.prepared_rows import read_rows
from benchmarks.harness.workload import Workload
from benchmarks.peers import lightgbm_trees, logistic_regression, pytorch_training
from benchmarks.peers.lightgbm_trees import TreeSettings
from benchmarks.peers.pytorch_wide_deep import PeerSettings
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import read_schema

CONFIG = PROJECT / "configs" / "auto.yaml"
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
class Trees:
    """LightGBM on the integers and ordered target statistics; an epoch is some rounds of boosting."""

    name: str
    grid: Mapping[str, TreeSettings]
    threads: int = 1

    @property
    def settings(self) -> tuple[str, ...]:
        """See `Contender`."""
        return tuple(self.grid)

    def valid_aucs(self, cut: Cut, setting: str) -> list[float]:
        """See `Contender`."""
        folder = cut.choosing(PREPARE)
        labels = labels_of(folder, "valid")
        scores = lightgbm_trees.train(folder, "valid", self.grid[setting], MOST_EPOCHS, 1, self.threads)
        return [auc(of_epoch, labels) for of_epoch in scores]

    def test_scores(self, cut: Cut, setting: str, epochs: int, seed: int) -> np.ndarray:
        """See `Contender`."""
        folder = cut.testing(PREPARE)
        scores: np.ndarray = lightgbm_trees.train(folder, "test", self.grid[setting], epochs, seed, self.threads)[-1]
        return scores


@dataclass(frozen=True)
class Application:
    """This project as its users run it: `python -m app train` with `auto.yaml`, then its newest checkpoint's scores."""

    name: str
    commands: CommandServer
    work: Path
    settings: tuple[str, ...] = ()  # they follow from the number of rows, and so do the epochs

    def valid_aucs(self, cut: Cut, setting: str) -> list[float]:
        """See `Contender`."""
        raise AssertionError("there is no setting to choose")

    def test_scores(self, cut: Cut, setting: str, epochs: int, seed: int) -> np.ndarray:
        """See `Contender`."""
        place = self.work / "run"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        dataset = ("--config", str(CONFIG), "--dataset", str(cut.testing(PREPARE).resolve()))
        self.commands.run("app", "train", *dataset, f"train.seed={seed}", folder=place)
        self.commands.run("benchmarks.harness.score_rows", "device_0", "scores.npy", folder=place)
        scores: np.ndarray = np.load(place / "scores.npy")
        shutil.rmtree(place)
        return scores


@dataclass(frozen=True)
class Choice:
    """The setting chosen on a cut's valid tenth, and the AUC after each epoch of every setting tried.

    Without settings to choose from, `setting` is empty and `epochs` 0.
    """

    setting: str
    epochs: int
    tried: dict[str, list[float]]


def choose(contender: Contender, cut: Cut, memory: Path) -> Choice:
    """The setting and number of epochs with the highest AUC on the valid tenth."""
    if not contender.settings:
        return Choice("", 0, {})
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
