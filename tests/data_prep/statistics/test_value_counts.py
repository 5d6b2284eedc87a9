import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.encoding.vocabulary import order_values
from data_prep.kernels.numpy_kernels import count_values
from data_prep.statistics import value_counts
from data_prep.statistics.value_counts import ValueCounts

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
