import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.pipeline.split import splitmix64
from data_prep.statistics.statistics import NumericStatistics, may_be_sampled, sampled_rows

int64s = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 1000)


@settings(max_examples=50)
@given(st.lists(int64s, max_size=20), st.integers(0, 20))
def test_integer_statistics_are_exact_however_they_are_cut(integers, cut):
    parts = [NumericStatistics.of(np.array(part, np.int64)) for part in (integers[:cut], integers[cut:])]
    total = parts[0] + parts[1]
    assert total == NumericStatistics(
        len(integers),
        sum(integers),
        sum(x * x for x in integers),
        max(integers, default=None),
        min(integers, default=None),
    )
    if integers:
        mean = Fraction(sum(integers), len(integers))
        variance = sum((x - mean) ** 2 for x in integers) / len(integers)
        assert total.mean == float(mean)
        assert total.standard_deviation == math.sqrt(variance)


float32s = st.floats(-3e38, 3e38, allow_subnormal=False) | st.floats(-1, 1, allow_subnormal=False) | st.just(0.1)


@settings(max_examples=100)
@given(st.lists(float32s, min_size=1, max_size=20), st.integers(0, 20))
def test_float_statistics_are_exact_however_they_are_cut(floats, cut):
    parts = [NumericStatistics.of_floats(np.array(part, np.float64)) for part in (floats[:cut], floats[cut:])]
    total = parts[0] + parts[1]
    assert total == NumericStatistics.of_floats(np.array(floats, np.float64))
    exact = list(map(Fraction, floats))
    mean = sum(exact) / len(exact)
    assert (total.count, total.maximum, total.minimum) == (len(floats), max(floats), min(floats))
    assert total.mean == float(mean)
    assert total.standard_deviation == math.sqrt(sum((x - mean) ** 2 for x in exact) / len(exact))


def test_statistics_of_nothing_are_nan():
    assert math.isnan(NumericStatistics().mean)
    assert math.isnan(NumericStatistics().standard_deviation)


@pytest.mark.parametrize("num_components", [0, 64, 768, 4096, 65_536])
def test_samples_of_wide_vectors_are_bounded(num_components):
    rows = sampled_rows(num_components)
    assert 512 <= rows <= 1 << 14 and rows * num_components <= max(1 << 21, 512 * num_components)
    hashes = splitmix64(7, np.arange(60_000))
    may_be = may_be_sampled(hashes, np.arange(60_000), num_components)
    assert may_be[np.argsort(hashes)[:rows]].all()
    # So few rows of a late chunk are copied.
    assert may_be[50_000:].sum() <= 10_000 * min(1, 2.5 * rows / 50_000)
