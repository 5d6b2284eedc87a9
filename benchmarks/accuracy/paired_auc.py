"""Estimate how far one model's AUC is above another's on the same rows, with an interval for other rows.

Rows come in groups (test periods). For each group, every contender has trained models of its own, one for each seed. A
contender's AUC in a group is the mean over these models. Two contenders are compared on the same rows, and the figure
is the mean over groups of the difference of their AUCs. An interval lies between quantiles of Poisson bootstrap
replicates: in a replicate, each row is counted as often as a Poisson variable of mean 1 says, for all models alike. In
`rows_interval` every group counts once. In `clusters_interval` whole groups are drawn too, with replacement, so that
differences between periods widen it.

Letters: n rows of a group, S seeds, R replicates, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.prepared.truth import area_under_curve

LEVEL = 0.95


@dataclass(frozen=True)
class Group:
    """A test period: `labels` [n] bool of its rows, and `scores` [S, n] of each contender by name."""

    labels: np.ndarray
    scores: dict[str, np.ndarray]


@dataclass(frozen=True)
class Difference:
    """How far the AUC of one contender is above that of another: the mean over groups, and the value of each group.

    The mean has two bootstrap intervals: with rows drawn anew, and with whole groups drawn anew as well.
    """

    mean: float
    of_groups: tuple[float, ...]
    rows_interval: tuple[float, float]
    clusters_interval: tuple[float, float]

    def __str__(self) -> str:
        rows, groups = (f"{low:+.4f} … {high:+.4f}" for low, high in (self.rows_interval, self.clusters_interval))
        return f"{self.mean:+.4f}   rows drawn anew {rows}; groups as well {groups}"


def mean_auc(models: np.ndarray, labels: np.ndarray, times: np.ndarray) -> float:
    """Return the mean AUC of S models, whose scores of the same n rows are `models` [S, n].

    `labels` [n] bool are the labels of the rows. Row i is counted times[i] times.
    """
    repeated = np.repeat(labels, times)
    return float(np.mean([area_under_curve(np.repeat(scores, times), repeated) for scores in models]))


def differences(groups: list[Group], ours: str, peers: tuple[str, ...], replicates: int, seed: int) -> list[Difference]:
    """Return, for each of `peers`, how far the AUC of `ours` is above it, with bootstrap intervals."""
    rng = np.random.default_rng(seed)
    auc_differences = np.empty((len(groups), replicates + 1, len(peers)))  # Replicate 0 has each row once.
    for place, group in enumerate(groups):
        for replicate in range(replicates + 1):
            size = len(group.labels)
            times = np.ones(size, np.int64) if replicate == 0 else rng.poisson(1.0, size)
            auc = mean_auc(group.scores[ours], group.labels, times)
            peer_aucs = np.array([mean_auc(group.scores[peer], group.labels, times) for peer in peers])
            auc_differences[place, replicate] = auc - peer_aucs
    drawn = rng.integers(len(groups), size=(replicates, len(groups)))
    return [_difference(auc_differences[:, :, peer], drawn) for peer in range(len(peers))]


def _difference(auc_differences: np.ndarray, drawn: np.ndarray) -> Difference:
    """Return the mean over groups of the difference between two contenders' AUCs, and its intervals.

    `auc_differences` [G, 1 + R] has the difference in each group: in column 0 with each row counted once, then in each
    replicate. `drawn` [R, G] are the indices of the groups that each replicate draws, with replacement.
    """
    replicates = auc_differences[:, 1:]
    clusters = np.take_along_axis(replicates, drawn.T, axis=0)
    return Difference(
        mean=float(auc_differences[:, 0].mean()),
        of_groups=tuple(float(value) for value in auc_differences[:, 0]),
        rows_interval=_interval(replicates.mean(axis=0)),
        clusters_interval=_interval(clusters.mean(axis=0)),
    )


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
