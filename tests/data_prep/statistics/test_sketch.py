"""Counts in a fixed memory against exact ones: never below, and above by the stated error at most."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.kernels.strings import Strings
from data_prep.statistics.sketch import DEPTH, LEAST_BYTES, ValueSketch


class Exact:
    """Exact counts beside a sketch: occurrences in a current half and in the one before."""

    def __init__(self, width):
        self.width, self.halves = width, [Counter(), Counter()]

    def add(self, part):
        if self.halves[0] and self.halves[0].total() + part.total() > self.width:
            self.halves = [Counter(), self.halves[0]]
        self.halves[0] += part


def noted(sketch, part):
    """Note a part's counts, of numbers and of texts, and return all with those before."""
    numbers = [value for value in part if isinstance(value, int)]
    texts = [value for value in part if isinstance(value, bytes)]
    found = [
        sketch.note(place, values, np.array([part[value] for value in names], np.int64))
        for place, names, values in ((0, numbers, np.array(numbers, np.int64)), (1, texts, Strings.of(texts)))
    ]
    return dict(zip([*numbers, *texts], np.concatenate(found).tolist(), strict=True))


values = st.one_of(st.integers(0, 60), st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=9))


@given(st.lists(st.dictionaries(values, st.integers(1, 40), max_size=30), max_size=12), st.data())
def test_counts_are_never_below_the_true_ones(parts, data):
    sketch, followed = ValueSketch(LEAST_BYTES), ValueSketch(LEAST_BYTES)
    exact = Exact(LEAST_BYTES // (2 * DEPTH * 4))
    for part in map(Counter, parts):
        if data.draw(st.booleans()):  # noted for a part that is held aside
            noted(sketch, part)
            sketch.forget()
        for value, total in noted(sketch, part).items():
            assert total >= part[value] + exact.halves[0][value] + exact.halves[1][value]
        sketch.add()
        exact.add(part)
        followed.add_again(**sketch.added())
        for name, array in sketch.state().items():
            np.testing.assert_array_equal(followed.state()[name], array)
        if data.draw(st.booleans()):
            stored, sketch = sketch.state(), ValueSketch(LEAST_BYTES)
            sketch.load_state(**{name: array.copy() for name, array in stored.items()})


@pytest.mark.parametrize("exponent", [0.0, 1.1])
def test_the_stated_error_is_kept(exponent):
    """Values are all as frequent, or have a long tail, with as many occurrences as a half takes."""
    sketch, chance = ValueSketch(1 << 20), np.random.default_rng(5)
    width = (1 << 20) // (2 * DEPTH * 4)
    shares = np.arange(1, 20_001.0) ** -exponent
    exact = np.zeros(len(shares), np.int64)
    for _ in range(4):
        numbers, counts = np.unique(chance.choice(len(shares), width // 4, p=shares / shares.sum()), return_counts=True)
        sketch.note(3, numbers, counts)
        sketch.add()
        exact[numbers] += counts
    above = sketch.note(3, np.arange(len(shares)), np.zeros(len(shares), np.int64)) - exact
    assert sketch.state()["num_counted"].tolist() == [exact.sum(), 0]
    assert (above >= 0).all()
    assert (above > math.e * exact.sum() / width).mean() <= math.exp(-DEPTH)


def test_equal_values_of_two_columns_are_counted_apart():
    sketch = ValueSketch(1 << 16)
    numbers = np.arange(100)
    sketch.note(0, numbers, np.full(100, 7))
    sketch.add()
    assert (sketch.note(0, numbers, np.ones(100, np.int64)) == 8).mean() > 0.9
    assert (sketch.note(1, numbers, np.ones(100, np.int64)) == 1).mean() > 0.9


def test_counts_of_another_size_are_refused():
    with pytest.raises(ValueError, match="are in 65,536 bytes, expected 131,072"):
        ValueSketch(1 << 17).load_state(**ValueSketch(1 << 16).state())
    with pytest.raises(ValueError, match="4096 bytes at least, found 10"):
        ValueSketch(10)
