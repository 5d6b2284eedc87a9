import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.kernels.numpy_kernels import INTEGER_BINS, bin_bounds, count_bins
from data_prep.pipeline.split import splitmix64
from data_prep.statistics import statistics
from data_prep.statistics.value_counts import MIN_COUNTS, Coverage

int64s = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 1000)


@settings(max_examples=50)
@given(st.lists(int64s, max_size=20), st.integers(0, 20))
def test_integer_statistics_are_exact_however_they_are_cut(integers, cut):
    parts = [statistics.NumericStatistics.of(np.array(part, np.int64)) for part in (integers[:cut], integers[cut:])]
    total = parts[0] + parts[1]
    assert total == statistics.NumericStatistics(
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
    parts = [
        statistics.NumericStatistics.of_floats(np.array(part, np.float64)) for part in (floats[:cut], floats[cut:])
    ]
    total = parts[0] + parts[1]
    assert total == statistics.NumericStatistics.of_floats(np.array(floats, np.float64))
    exact = list(map(Fraction, floats))
    mean = sum(exact) / len(exact)
    assert (total.count, total.maximum, total.minimum) == (len(floats), max(floats), min(floats))
    assert total.mean == float(mean)
    assert total.standard_deviation == math.sqrt(sum((x - mean) ** 2 for x in exact) / len(exact))


def test_statistics_of_nothing_are_nan():
    assert math.isnan(statistics.NumericStatistics().mean)
    assert math.isnan(statistics.NumericStatistics().standard_deviation)


@pytest.mark.parametrize("num_components", [0, 64, 768, 4096, 65_536])
def test_samples_of_wide_vectors_are_bounded(num_components):
    rows = statistics.sampled_rows(num_components)
    assert 512 <= rows <= 1 << 14 and rows * num_components <= max(1 << 21, 512 * num_components)
    hashes = splitmix64(7, np.arange(60_000))
    may_be = statistics.may_be_sampled(hashes, np.arange(60_000), num_components)
    assert may_be[np.argsort(hashes)[:rows]].all()
    # So few rows of a late chunk are copied.
    assert may_be[50_000:].sum() <= 10_000 * min(1, 2.5 * rows / 50_000)


@given(st.lists(int64s, min_size=1, max_size=30))
def test_every_integer_is_in_the_bin_that_has_it(integers):
    every = np.ones(len(integers), np.bool_)
    assert count_bins(np.array(integers), every, every).sum() == len(integers)
    for integer in integers:
        one = np.array([integer])
        (number,) = np.flatnonzero(count_bins(one, one == one, one == one))
        low, high = bin_bounds(int(number))
        size = abs(float(integer))
        assert (low, high) == (0, 0) if integer == 0 else min(abs(low), abs(high)) <= size < max(abs(low), abs(high))
        assert math.copysign(1, low + high) == math.copysign(1, integer) or integer == 0


def test_small_integers_have_bins_of_their_own():
    integers = np.arange(-16, 17)
    every = np.ones(len(integers), np.bool_)
    assert set(count_bins(integers, every, every)) == {0, 1}


def test_only_present_and_chosen_integers_are_counted():
    yes_no = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert count_bins(np.zeros(4, np.int64), *yes_no)[INTEGER_BINS.zero] == 1


@settings(max_examples=30)
@given(st.data(), st.integers(1, 6000))
def test_a_timeline_does_not_depend_on_chunks(data, num_lines):
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    numbers = np.flatnonzero(random.random(num_lines * 7) < 0.6)  # the others were rejected
    labelled = random.random(len(numbers)) < 0.8
    labels = labelled & (random.random(len(numbers)) < 0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "SHORTEST_SPAN", 16)
        patch.setattr(statistics, "MOST_SPANS", 32)
        timelines = []
        for num_cuts in (0, 5):
            cuts = np.sort(random.integers(0, len(numbers) + 1, num_cuts))
            timeline = statistics.Timeline()
            for rows in zip(*(np.split(each, cuts) for each in (numbers, labelled, labels)), strict=True):
                timeline.add(statistics.ChunkSpans.of(*rows))
            timelines.append(timeline)
    for timeline in timelines:
        assert timeline.counts.shape[1] <= 32
        for found, counted in zip(timeline.counts, (np.ones_like(labels), labelled, labels), strict=True):
            expected = np.bincount(numbers // timeline.span_lines, counted) if len(numbers) else []
            np.testing.assert_array_equal(found, expected)
    assert timelines[0].span_lines == timelines[1].span_lines


def test_a_timeline_of_billions_of_lines_is_short():
    timeline = statistics.Timeline()
    last = 4_370_000_000
    timeline.add(statistics.ChunkSpans.of(np.array([0]), np.array([True]), np.array([True])))
    timeline.add(statistics.ChunkSpans.of(np.array([last]), np.array([False]), np.array([False])))
    assert timeline.counts.shape[1] <= statistics.MOST_SPANS
    assert timeline.counts.sum(axis=1).tolist() == [2, 1, 1]
    assert timeline.counts[:, 0].tolist() == [1, 1, 1]


@given(
    st.lists(st.integers(1, 5) | st.integers(900, 1100) | st.integers(1, 2**32 - 1), max_size=50), st.integers(0, 50)
)
def test_coverage_is_what_a_vocabulary_would_hold(counts, cut):
    parts = [Coverage.of(np.array(part, np.uint64)) for part in (counts[:cut], counts[cut:])]
    coverage = parts[0] + parts[1]
    for place, min_count in enumerate(MIN_COUNTS):
        kept = [count for count in counts if count >= min_count]
        assert (coverage.values[place], coverage.rows[place]) == (len(kept), sum(kept))


def test_coverage_is_of_merged_counts(tmp_path):
    """However they were merged and spilled to disk."""
    from data_prep.statistics.value_counts import ValueCounts

    seen = np.random.default_rng(1).zipf(1.5, 20_000) % 5_000
    expected = Coverage.of(np.array(list(Counter(seen.tolist()).values()), np.uint64))
    for limit in (1 << 30, 1 << 12):
        counts = ValueCounts(1, tmp_path, limit)
        for part in np.array_split(seen, 40):
            values, times = np.unique(part, return_counts=True)
            counts.add([values.astype(np.uint64) << np.uint64(32) | times.astype(np.uint64)])
        counts.frequent(0, 3)
        np.testing.assert_array_equal(counts.coverage[0].values, expected.values)
        np.testing.assert_array_equal(counts.coverage[0].rows, expected.rows)
        assert any(counts._runs) == (limit < 1 << 20)
        counts.close()
