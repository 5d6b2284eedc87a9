"""benchmarks/peers/lightgbm_trees.py: no training row sees its own label."""

import numpy as np
import pytest

pytest.importorskip("lightgbm")

from benchmarks.peers.lightgbm_trees import _statistics


def test_a_row_s_statistic_is_of_the_rows_before_it():
    generator = np.random.default_rng(1)
    ids, judged = generator.integers(5, size=(40, 2)), generator.integers(7, size=(10, 2))
    labels = (generator.random(40) < 0.4).astype(np.float32)
    found = _statistics(ids, labels, judged, prior_rows=3.0)
    for values, known, statistics in ((ids, range(40), found[0]), (judged, [40] * 10, found[1])):
        for row, before in enumerate(known):
            for field in range(2):
                same = labels[:before][ids[:before, field] == values[row, field]]
                rate = (same.sum() + 3 * labels.mean()) / (len(same) + 3)
                assert statistics[row, 2 * field : 2 * field + 2] == pytest.approx([rate, np.log1p(len(same))])
