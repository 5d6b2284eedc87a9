"""How far a metric would move on other rows of the same kind: percentile intervals of the Poisson bootstrap.

Each replicate takes each row Poisson(1) times (Oza and Russell, AISTATS 2001; Chamandy et al., Google 2012), so of c
rows with one logit and label Poisson(c): the rows need not be there, only their counts. The interval lies between
quantiles of the replicates' metrics (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13).

Letters: K bins.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from app.metrics import Metrics, metrics_of
from app.score_bins import Bins

LEVEL = 0.95
MOST_BINS = 2**14  # ranks within a bin are ties, which at this many changes no metric's spread
MEASURED = ("auc", "log_loss", "normalized_entropy", "calibration", "pr_auc")


def confidence_intervals(
    bins: Bins, replicates: int, seed: int, level: float = LEVEL
) -> dict[str, tuple[float, float]]:
    """(low, high) of each metric, by name; the same for the same bins and seed. Both classes have rows."""
    bins = bins.joined(MOST_BINS)
    keys = bins.keys.astype(np.float64)
    costs = np.logaddexp(0, keys), -keys, bins.probabilities
    rng = np.random.default_rng(seed)
    found = [asdict(_replicate(bins, costs, rng)) for _ in range(replicates)]
    tails = ((1 - level) / 2, (1 + level) / 2)
    intervals = {name: np.nanquantile([each[name] for each in found], tails) for name in MEASURED}
    return {name: (float(low), float(high)) for name, (low, high) in intervals.items()}


def _replicate(bins: Bins, costs: tuple[np.ndarray, ...], rng: np.random.Generator) -> Metrics:
    """`costs`, each [K]: the cross-entropy of a row, what a click adds to it, and the prediction."""
    drawn = Bins(bins.keys, rng.poisson(bins.negatives), rng.poisson(bins.positives))
    # Sums of products, not `@`: at this size BLAS starts its threads, which costs more than the sums.
    cross_entropy = (drawn.counts * costs[0] + drawn.positives * costs[1]).sum()
    predictions = (drawn.counts * costs[2]).sum()
    return metrics_of(drawn, drawn.counts.sum(), drawn.positives.sum(), float(cross_entropy), float(predictions))
