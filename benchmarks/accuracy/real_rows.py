"""Compare Wide&Deep with logistic regression, LightGBM and PyTorch's Wide&Deep on real rows.

    CRITEO_ROWS=FOLDER python -m benchmarks.accuracy.real_rows [--seeds 3] [--cuts 5 6 7 8 9] [--work FOLDER]

FOLDER holds train.txt, rows of the Criteo DAC log in time order (its terms allow no distribution). There are
five rolling cuts (rolling_cuts.py). Cut k tests the tenth k with a model of all rows before it. The tenth before that
alone chooses each peer's setting and, for networks and trees, the number of epochs. Every peer has as many settings to
choose from. This project has `configs/auto.yaml`, with nothing to choose. Settings are chosen with seed 1. Then a model
is trained anew with every seed on all rows before the test. All contenders read the same prepared folders. Trials
already in --work are not repeated, so an interrupted comparison resumes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.packages import PROJECT, require

require("lightgbm", "torch")

import torch

from benchmarks.accuracy.paired_auc import Group, differences
from benchmarks.accuracy.rolling_cuts import CUTS, Cut, make_cuts
from benchmarks.harness.commands import folder_of, read_rows, remembered, work_folder
from benchmarks.harness.score_rows import train_and_score
from benchmarks.harness.timing import new_parser, print_result
from benchmarks.harness.workload import Workload
from benchmarks.peers import lightgbm_trees, logistic_regression
from benchmarks.peers.lightgbm_trees import TreeSettings
from benchmarks.peers.pytorch_wide_deep import PeerSettings, PyTorchStep, use_threads
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.batches import Batch
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import read_schema
from data_prep.prepared.truth import area_under_curve

OURS = "this project"
REPLICATES = 500
CONFIG = PROJECT / "configs" / "auto.yaml"
# Of 2, 5, 10 and 20, min_count 2 is the best value for this project, and also for logistic regression.
PREPARE = PrepareOptions(min_count=2)
BATCH_SIZE, SCORED_ROWS = 1000, 100_000  # Rows of a training step, and rows that are scored at a time.

# With SparseAdam, L2 acts only on the rows of a batch. The best values were smaller than with Adam on whole tables.
LAZY_GRID = {
    f"rate {rate:g}, L2 {l2:g}": PeerSettings(rate, l2, wide_learning_rate=0.05, wide_initial_accumulator=1e-6)
    for rate in (5e-4, 1e-3)
    for l2 in (1e-3, 1e-2)
}
WHOLE_GRID = {
    f"rate {rate:g}, L2 {l2:g}": PeerSettings(rate, l2, whole_table=True, wide_l2_coef=5e-4)
    for rate in (2e-3, 3e-3)
    for l2 in (1e-2, 2e-2)
}
TREES_GRID = {
    f"leaves {leaves}, prior {prior_rows:g}": TreeSettings(leaves, prior_rows)
    for leaves in (7, 15)
    for prior_rows in (10.0, 30.0)
}


@dataclass(frozen=True)
class Contender:
    """A kind of model. If it has settings in `grid`, by name, one of them is chosen for each cut.

    `fit(folder, split, settings, epochs, seed)` trains a model and returns its scores [epochs, rows] of the split after
    each epoch.
    """

    name: str
    grid: Mapping[str, Any]
    fit: Callable[[Path, str, Any, int, int], np.ndarray]
    most_epochs: int = 10
    is_seeded: bool = True

    def valid_aucs(self, cut: Cut, setting: str) -> list[float]:
        """Train with a setting. Return the AUC on the valid tenth of a cut after each epoch."""
        folder = cut.choosing(PREPARE)
        labels = labels_of(folder, "valid")
        scores = self.fit(folder, "valid", self.grid[setting], self.most_epochs, 1)
        return [area_under_curve(of_epoch, labels) for of_epoch in scores]

    def test_scores(self, cut: Cut, setting: str, epochs: int, seed: int) -> np.ndarray:
        """Train with a setting. Return the score of each row of the test tenth of a cut, [rows]."""
        return np.asarray(self.fit(cut.testing(PREPARE), "test", self.grid.get(setting), epochs, seed)[-1])


def regression() -> Contender:
    """Return logistic regression as a contender. It has no seed."""

    def fit(folder: Path, split: str, penalty: float, _: int, __: int) -> np.ndarray:
        return logistic_regression.predict(folder, split, penalty)[None]

    return Contender("logistic regression", {f"C {c:g}": c for c in (0.03, 0.05, 0.07, 0.1)}, fit, 1, is_seeded=False)


def application(name: str, work: Path) -> Contender:
    """Return this project as a contender, as its users run it: `python -m app train` with `auto.yaml`.

    The scores are those of the run's best checkpoint. Settings and epochs follow from the number of rows.
    """

    def fit(folder: Path, split: str, _: None, __: int, seed: int) -> np.ndarray:
        assert split == "test"
        return train_and_score(CONFIG, folder, (f"train.seed={seed}",), work)[0][None]

    return Contender(name, {}, fit)


def _batches(rows: Examples, places: np.ndarray, batch_size: int) -> Iterator[Batch]:
    """Yield the rows whose indices in `rows` are `places` [n], in that order, in batches of `batch_size` rows."""
    for start in range(0, len(places), batch_size):
        of_batch = places[start : start + batch_size]
        yield Batch(rows.ids[of_batch], rows.numeric[of_batch], rows.labels[of_batch])


def fit_pytorch(folder: Path, split: str, settings: PeerSettings, epochs: int, seed: int) -> np.ndarray:
    """Train a Wide&Deep of the same size in PyTorch. Return its logits [epochs, rows] of `split` after each epoch."""
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
        in_turn = _batches(judged, np.arange(len(judged.labels)), SCORED_ROWS)
        logits.append(np.concatenate([step.score(step.prepare(batch)) for batch in in_turn]))
    return np.array(logits)


@dataclass(frozen=True)
class Choice:
    """The setting and the number of epochs that were chosen on the valid tenth of a cut.

    `tried` has, for every setting, the AUC on the valid tenth after each epoch.
    """

    setting: str
    epochs: int
    tried: dict[str, list[float]]


def choose(contender: Contender, cut: Cut, memory: Path) -> Choice:
    """Return the setting and the number of epochs with the best AUC on the valid tenth of a cut.

    They are "" and 0 if the contender has no settings to choose from.
    """
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
    """Return the labels of a split, bool [rows], in the order of the prepared folder."""
    return np.asarray(read_rows(folder, read_schema(folder), split).labels > 0)


def make_contenders(work: Path) -> list[Contender]:
    """Return all contenders: this project first, then its peers. Each peer has four settings."""
    return [
        application(OURS, work),
        regression(),
        Contender("LightGBM, ordered target statistics", TREES_GRID, partial(lightgbm_trees.train, threads=1)),
        Contender("PyTorch, SparseAdam and Adagrad", LAZY_GRID, fit_pytorch),
        Contender("PyTorch, Adam and L2 on whole tables", WHOLE_GRID, fit_pytorch),
    ]


def compare(cuts: list[Cut], contenders: list[Contender], seeds: int, memory: Path) -> list[Group]:
    """Return labels and scores of every contender on the test tenth of every cut, as a `Group` for each cut.

    A contender's settings are those with the best AUC on the tenth before the test tenth.
    """
    groups = []
    for cut in cuts:
        labels = labels_of(cut.testing(PREPARE), "test")
        scores = {}
        for contender in contenders:
            choice = choose(contender, cut, memory)
            scores[contender.name] = np.array(list(_all_scores(contender, cut, choice, seeds, memory)))
            print(_line(cut, contender, choice, scores[contender.name], labels), flush=True)
        groups.append(Group(labels, scores))
    return groups


def _all_scores(contender: Contender, cut: Cut, choice: Choice, seeds: int, memory: Path) -> Iterable[np.ndarray]:
    for seed in range(1, seeds + 1 if contender.is_seeded else 2):
        path = memory / f"{contender.name}, cut {cut.k}, {choice.setting}, {choice.epochs} epochs, seed {seed}.npy"
        if not path.is_file():
            np.save(path, contender.test_scores(cut, choice.setting, choice.epochs, seed))
        yield np.load(path)


def _line(cut: Cut, contender: Contender, choice: Choice, scores: np.ndarray, labels: np.ndarray) -> str:
    aucs = [area_under_curve(of_seed, labels) for of_seed in scores]
    chosen = "auto.yaml"
    if choice.tried:
        valid = choice.tried[choice.setting][choice.epochs - 1]
        chosen = f"{choice.setting}, {choice.epochs} epochs (valid {valid:.4f})"
    return f"cut {cut.k}  {contender.name:37} {chosen}: test {np.mean(aucs):.4f}  [{min(aucs):.4f} … {max(aucs):.4f}]"


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cuts", type=int, nargs="+", choices=range(2, 10), default=list(CUTS))
    options = parser.parse_args()
    log = folder_of("CRITEO_ROWS") / "train.txt"
    with work_folder(options.work) as work, work_folder(work / "tried") as memory:
        contenders = make_contenders(work)
        cuts = make_cuts(log, work, tuple(options.cuts))
        groups = compare(cuts, contenders, options.seeds, memory)
        tried = {c.name: {cut.k: dataclasses.asdict(choose(c, cut, memory)) for cut in cuts} for c in contenders}
    peers = tuple(contender.name for contender in contenders[1:])
    difference_to = dict(zip(peers, differences(groups, OURS, peers, REPLICATES, seed=1), strict=True))
    for peer, difference in difference_to.items():
        by_cut = " ".join(f"{value:+.4f}" for value in difference.of_groups)
        print(f"above {peer}: {difference}   by cut {by_cut}")
    above = {peer: dataclasses.asdict(difference) for peer, difference in difference_to.items()}
    print_result(options, above=above, chosen=tried)


if __name__ == "__main__":
    main()
