"""Bootstrap intervals from counts, against resampling the rows one by one."""

from dataclasses import asdict

import numpy as np
import pytest

from app.evaluation.metrics import MEASURED, Bins, MetricStream, confidence_intervals


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(4)
    labels = rng.random(2_000) < 0.3
    return rng.normal(labels - 1.0, 1.0).astype(np.float32), labels


def test_intervals_are_those_of_drawing_rows(rows):
    """Both are random; a quantile of 600 replicates moves by about a tenth of the interval."""
    logits, labels = rows
    found = confidence_intervals(Bins.of(*rows), replicates=600, seed=1)
    rng, drawn = np.random.default_rng(2), []
    for _ in range(600):
        chosen = rng.integers(len(labels), size=len(labels))
        stream = MetricStream()
        stream.add(logits[chosen], labels[chosen])
        drawn.append(asdict(stream.result()))
    for name in MEASURED:
        low, high = np.quantile([each[name] for each in drawn], (0.025, 0.975))
        assert found[name] == pytest.approx((low, high), abs=0.15 * (high - low)), name


def test_the_value_lies_within_and_more_rows_narrow_it(rows):
    bins = Bins.of(*rows)
    hundredfold = Bins(bins.keys, 100 * bins.negatives, 100 * bins.positives)
    for name in MEASURED:
        low, high = confidence_intervals(bins, 200, seed=1)[name]
        narrow_low, narrow_high = confidence_intervals(hundredfold, 200, seed=1)[name]
        assert high - low == pytest.approx(10 * (narrow_high - narrow_low), rel=0.25), name
    assert (
        confidence_intervals(bins, 200, seed=1)["auc"][0]
        < bins.auc()
        < confidence_intervals(bins, 200, seed=1)["auc"][1]
    )


def test_the_same_seed_gives_the_same_interval(rows):
    first, again, other = (confidence_intervals(Bins.of(*rows), 50, seed) for seed in (1, 1, 2))
    assert first == again != other
