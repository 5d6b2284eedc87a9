import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.encoding.vocabulary import order_values
from data_prep.kernels.numpy_kernels import count_values
from data_prep.kernels.strings import Strings
from data_prep.statistics import value_counts
from data_prep.statistics.value_counts import DEPTH, LEAST_BYTES, ValueCounts, ValueSketch

values = st.integers(0, 5) | st.integers(0, 2**32 - 1) | st.just(2**32 - 1)


def count(chunk):
    everything = np.ones(len(chunk), np.bool_)
    return count_values(np.array(chunk, np.uint32), everything, everything)


def as_counter(words):
    assert (words[1:] > words[:-1]).all()
    return {int(word) >> 32: int(word) & 0xFFFFFFFF for word in words}


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.lists(values, max_size=20), st.lists(values, max_size=20)), max_size=12),
    st.integers(1, 30),
    st.sampled_from([8, 100, 1 << 20]),
    st.integers(1, 3),
)
def test_counts_add_up_over_chunks_in_memory_and_on_disk(tmp_path_factory, chunks, block_words, limit, min_count):
    folder = tmp_path_factory.mktemp("counts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_counts, "_BLOCK_WORDS", block_words)
        patch.setattr(value_counts, "_WAITING_WORDS", block_words)
        log = ValueCounts(2, folder, limit)
        for chunk in chunks:
            log.add([count(field) for field in chunk])
        found = [as_counter(log.frequent(field, min_count)) for field in range(2)]
    for field in range(2):
        expected = Counter(value for chunk in chunks for value in chunk[field])
        assert found[field] == {value: n for value, n in expected.items() if n >= min_count}
    log.close()
    assert list(folder.iterdir()) == []


def test_a_count_that_would_change_its_value_is_an_error(tmp_path):
    log = ValueCounts(1, tmp_path, 1 << 20)
    most = np.array([7 << 32 | 2**32 - 1], np.uint64)
    log.add([most])
    assert as_counter(log.frequent(0, 1)) == {7: 2**32 - 1}
    log.add([np.array([7 << 32 | 1], np.uint64)])
    with pytest.raises(ValueError, match=r"4,294,967,296 training rows, and at most 4,294,967,295 can be counted"):
        log.frequent(0, 1)
    with pytest.raises(ValueError, match="can be counted"):
        order_values(most, num_missing=2**32)


def test_a_fields_frequent_values_are_in_memory_once(tmp_path, monkeypatch):
    monkeypatch.setattr(value_counts, "_BLOCK_WORDS", 1 << 14)
    log = ValueCounts(1, tmp_path, 1 << 30)
    log.add([count(range(1 << 18))])
    log.frequent(0, 1)  # merges what waits
    tracemalloc.start()
    found = log.frequent(0, 1)
    (_, peak), _ = tracemalloc.get_traced_memory(), tracemalloc.stop()
    assert len(found) == 1 << 18
    assert peak < 1.3 * found.nbytes


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
        sketch.note(place, each, np.array([part[value] for value in names], np.int64))
        for place, names, each in (
            (0, numbers, np.array(numbers, np.int64)),
            (1, texts, Strings.of(texts)),
        )
    ]
    return dict(zip([*numbers, *texts], np.concatenate(found).tolist(), strict=True))


numbers_and_texts = st.one_of(st.integers(0, 60), st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=9))


@given(st.lists(st.dictionaries(numbers_and_texts, st.integers(1, 40), max_size=30), max_size=12), st.data())
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
