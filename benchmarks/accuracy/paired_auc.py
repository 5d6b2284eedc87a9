"""Estimate how far one model's AUC is above another's on the same rows, with an interval for other rows.

Rows come in groups (test periods) that a model was trained for one by one, with one or more seeds. A contender's AUC
in a group is the mean over its seeds. Two contenders are compared on the same rows, and the figure is the mean
difference over groups. The interval lies between quantiles of Poisson bootstrap replicates (see
app/evaluation/metrics.py). They draw rows within their group, the same rows for all models. With `clusters` they draw
whole groups first, so that differences between periods count too.

Letters: n rows of a group, S seeds, R replicates, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Group:
    """A test period: `labels` [n] bool and, by contender, `scores` [S, n]."""

    labels: np.ndarray
    scores: dict[str, np.ndarray]


@dataclass(frozen=True)
class Difference:
    """The mean difference of AUC, each group's, and the mean's bootstrap intervals without and with clusters."""

    mean: float
    of_groups: tuple[float, ...]
    rows_interval: tuple[float, float]
    clusters_interval: tuple[float, float]


class RankedScores:
    """A model's scores [n] of a group, sorted once, so that replicates only sum."""

    def __init__(self, scores: np.ndarray, labels: np.ndarray) -> None:
        self.order = np.argsort(scores, kind="stable")
        ranked = scores[self.order]
        self.starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])  # of ties
        self.positive = labels[self.order].astype(np.float64)

    def auc(self, weights: np.ndarray) -> float:
        """P(a click scores above a non-click) + ½ P(they tie), rows [n] weighing `weights` [n]."""
        weights = weights[self.order]
        positives = np.add.reduceat(weights * self.positive, self.starts)
        negatives = np.add.reduceat(weights * (1 - self.positive), self.starts)
        below = np.cumsum(negatives) - negatives
        pairs = positives.sum() * negatives.sum()
        return float(positives @ (below + 0.5 * negatives) / pairs) if pairs else float("nan")


def mean_auc(models: list[RankedScores], weights: np.ndarray) -> float:
    return float(np.mean([model.auc(weights) for model in models]))


def differences(groups: list[Group], ours: str, peers: tuple[str, ...], replicates: int, seed: int) -> list[Difference]:
    """Return the differences of `ours` to each of `peers`, with bootstrap intervals."""
    rng = np.random.default_rng(seed)
    auc_differences = np.empty((len(groups), replicates + 1, len(peers)))  # replicate 0 is the rows as they are
    for place, group in enumerate(groups):
        ranked = {
            name: [RankedScores(scores, group.labels) for scores in group.scores[name]] for name in (ours, *peers)
        }
        for replicate in range(replicates + 1):
            weights = np.ones(len(group.labels)) if replicate == 0 else rng.poisson(1.0, len(group.labels))
            auc = mean_auc(ranked[ours], weights)
            auc_differences[place, replicate] = [auc - mean_auc(ranked[peer], weights) for peer in peers]
    drawn = rng.integers(len(groups), size=(replicates, len(groups)))
    return [_difference(auc_differences[:, :, peer], drawn) for peer in range(len(peers))]


def _difference(auc_differences: np.ndarray, drawn: np.ndarray) -> Difference:
    """From differences [G, 1 + R] and drawn groups [R, G]."""
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
