"""Paired differences of AUC and their bootstrap intervals."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.accuracy.paired_auc import Group, differences, mean_auc


def test_weighted_auc_is_scikit_learns_with_ties():
    rng = np.random.default_rng(1)
    labels, scores, weights = rng.random(500) < 0.3, rng.integers(0, 20, 500).astype(float), rng.poisson(1.0, 500)
    expected = roc_auc_score(labels, scores, sample_weight=weights)
    assert mean_auc(scores[None], labels, weights) == pytest.approx(expected, abs=1e-12)


def make_groups(rng, gains):
    """Groups in which `ours` has less noise than `peer` where `gains` is positive."""
    groups = []
    for gain in gains:
        truth = rng.normal(size=2000)
        labels = rng.random(2000) < 1 / (1 + np.exp(1 - truth))
        noise = rng.normal(size=(3, 2000))
        groups.append(Group(labels, {"ours": truth + noise * (1 - gain), "peer": truth + noise[:1]}))
    return groups


def test_the_mean_is_that_of_the_groups_and_the_interval_holds_it():
    groups = make_groups(np.random.default_rng(2), (0.5, 0.5, 0.5))
    (found,) = differences(groups, "ours", ("peer",), replicates=200, seed=1)
    by_hand = [
        np.mean([roc_auc_score(group.labels, scores) for scores in group.scores["ours"]])
        - roc_auc_score(group.labels, group.scores["peer"][0])
        for group in groups
    ]
    assert found.of_groups == pytest.approx(by_hand)
    assert found.mean == pytest.approx(np.mean(by_hand))
    assert 0 < found.rows_interval[0] < found.mean < found.rows_interval[1]


def test_periods_that_differ_widen_the_interval_over_clusters_only():
    groups = make_groups(np.random.default_rng(3), (0.5, -0.5, 0.5, -0.5))
    (found,) = differences(groups, "ours", ("peer",), replicates=200, seed=1)
    rows, clusters = (high - low for low, high in (found.rows_interval, found.clusters_interval))
    assert clusters > 2 * rows
    assert found.clusters_interval[0] < 0 < found.clusters_interval[1]


def test_the_same_seed_gives_the_same_interval():
    groups = make_groups(np.random.default_rng(4), (0.1,))
    assert differences(groups, "ours", ("peer",), 20, seed=1) == differences(groups, "ours", ("peer",), 20, seed=1)
