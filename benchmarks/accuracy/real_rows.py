"""Compare Wide&Deep with logistic regression, LightGBM and PyTorch's Wide&Deep on real rows.

    CRITEO_ROWS=FOLDER python -m benchmarks.accuracy.real_rows [--seeds 3] [--cuts 5 6 7 8 9] [--work FOLDER]

FOLDER holds train.txt, rows of the Criteo DAC log in time order (its terms allow no distribution). There are
five rolling cuts (rolling_cuts.py). Cut k tests the tenth k with a model of all rows before it. The tenth before that
alone chooses each peer's setting and number of epochs. Every peer has as many settings to choose from. This project
has `configs/auto.yaml`, with nothing to choose. Settings are chosen with seed 1. Then a model is trained anew with
every seed on all rows before the test. All contenders read the same prepared folders. Trials already in --work are not
repeated, so an interrupted comparison resumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.packages import require

require("lightgbm", "torch")

from benchmarks.accuracy.paired_auc import Group, differences
from benchmarks.accuracy.real_rows_contenders import (
    CONFIG,
    PREPARE,
    Choice,
    Contender,
    application,
    choose,
    fit_pytorch,
    labels_of,
    regression,
)
from benchmarks.accuracy.rolling_cuts import CUTS, Cut, make_cuts
from benchmarks.harness.commands import folder_of, work_folder
from benchmarks.harness.timing import machine
from benchmarks.peers import lightgbm_trees
from benchmarks.peers.lightgbm_trees import TreeSettings
from benchmarks.peers.pytorch_wide_deep import PeerSettings
from data_prep.prepared.truth import area_under_curve

OURS = "this project"
REPLICATES = 500

# SparseAdam's L2 reaches the rows of a batch only, so it is best with less.
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


def make_contenders(work: Path) -> list[Contender]:
    """This project first, then its peers, each with four settings."""
    return [
        application(OURS, work),
        regression(),
        Contender("LightGBM, ordered target statistics", TREES_GRID, partial(lightgbm_trees.train, threads=1)),
        Contender("PyTorch, SparseAdam and Adagrad", LAZY_GRID, fit_pytorch),
        Contender("PyTorch, Adam and L2 on whole tables", WHOLE_GRID, fit_pytorch),
    ]


def compare(cuts: list[Cut], contenders: list[Contender], seeds: int, memory: Path) -> list[Group]:
    """Scores of every contender on the test tenth of every cut, with the settings that the tenth before chose."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cuts", type=int, nargs="+", choices=range(2, 10), default=list(CUTS))
    parser.add_argument("--work", type=Path, help="prepared folders and what was tried; default: a new one, removed")
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
    arguments: dict[str, Any] = {"recipe": CONFIG.stem, "seeds": options.seeds, "cuts": options.cuts}
    above = {peer: dataclasses.asdict(difference) for peer, difference in difference_to.items()}
    print(json.dumps({"machine": machine(), "arguments": arguments, "above": above, "chosen": tried}))


if __name__ == "__main__":
    main()
