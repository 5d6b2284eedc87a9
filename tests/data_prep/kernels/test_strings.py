import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.encoding.vocabulary import FieldVocabulary, write_lookup_tables
from data_prep.kernels.numpy_kernels import concatenate_strings, count_strings, find_strings, group_equal
from data_prep.kernels.parsed import MISSING
from data_prep.kernels.strings import Strings
from data_prep.statistics.value_counts import StringCounts

# Many that are equal, and some of every length around the eight bytes that are worked on at once.
strings = st.sampled_from([b"", b"a", b"b", b"12345678", b"123456789"]) | st.binary(max_size=40)
lists = st.lists(strings, max_size=40)


@pytest.fixture(name="few_keys")
def few_keys_fixture(monkeypatch):
    """Strings share four keys: what happens when a hash collides."""
    monkeypatch.setattr(Strings, "keys", lambda self: self.lengths.astype(np.uint64) % np.uint64(4) << np.uint64(62))


@given(lists, st.data())
def test_strings_stay_what_they_are(some, data):
    texts = Strings.of(some)
    assert texts.tolist() == some
    chosen = data.draw(st.lists(st.integers(0, len(some) - 1), max_size=10)) if some else []
    taken = texts.take(np.array(chosen, np.int64))
    assert taken.tolist() == taken.compact().tolist() == [some[place] for place in chosen]
    assert concatenate_strings([texts, taken, texts]).tolist() == [*some, *taken.tolist(), *some]


@given(lists, lists)
def test_strings_are_compared_by_their_bytes(some, others):
    some, others = some[: len(others)], others[: len(some)]
    assert Strings.of(some).equal(Strings.of(others)).tolist() == [a == b for a, b in zip(some, others, strict=True)]
    assert Strings.of(some).one_of(["a", "123456789"]).tolist() == [s in (b"a", b"123456789") for s in some]
    assert Strings.of(some).are_ascii().tolist() == [s.isascii() for s in some]


@given(lists)
def test_a_key_depends_on_the_string_alone(some):
    # In other surroundings: what follows a string must not count.
    apart = np.concatenate([Strings.of([string]).keys() for string in some] or [np.empty(0, np.uint64)])
    assert np.array_equal(Strings.of(some).keys(), apart)
    assert len({int(key) for key in apart}) == len(set(some))


def test_keys_spread():
    keys = Strings.of([str(number).encode() for number in range(100_000)]).keys()
    assert len(np.unique(keys)) == 100_000
    for shift in (0, 30, 56):
        uses = np.bincount((keys >> np.uint64(shift)).astype(np.int64) & 0xFF, minlength=256)
        assert 390 - 120 < uses.min() <= uses.max() < 390 + 120  # six standard deviations of a uniform hash


def check_groups(some):
    texts = Strings.of(some)
    order, firsts = group_equal(texts.keys(), texts)
    assert sorted(order.tolist()) == list(range(len(some)))
    groups = [{some[place] for place in group} for group in np.split(order, firsts[1:]) if len(group)]
    assert all(len(group) == 1 for group in groups)
    assert len(groups) == len(set(some))


@given(lists)
def test_equal_strings_are_grouped(some):
    check_groups(some)


def test_strings_that_share_a_key_stay_apart(few_keys):
    generator = np.random.default_rng(1)
    for _ in range(50):
        check_groups([bytes(generator.integers(97, 99, generator.integers(0, 6))) for _ in range(30)])


def counted_as_dict(counted):
    assert np.array_equal(counted.keys, np.sort(counted.keys))
    return dict(zip(counted.texts.tolist(), counted.counts.tolist(), strict=True))


@settings(max_examples=50)
@given(st.lists(lists, min_size=1, max_size=6), st.sampled_from([1, 2000, 10**6]), st.integers(1, 3))
def test_strings_are_counted_alike_in_any_memory(tmp_path_factory, chunks, limit_bytes, min_count):
    counts = StringCounts(1, tmp_path_factory.mktemp("counts"), limit_bytes)
    for chunk in chunks:
        counts.add([count_strings(Strings.of(chunk))])
    together = [string for chunk in chunks for string in chunk]
    expected = {s: together.count(s) for s in set(together) if together.count(s) >= min_count}
    assert counted_as_dict(counts.frequent(0, min_count)) == expected
    if limit_bytes == 1 and together:
        assert any(counts._runs)
    counts.close()


@pytest.mark.parametrize("block", [3, 1 << 19])
def test_runs_on_disk_are_merged_block_by_block(tmp_path, monkeypatch, block, few_keys):
    monkeypatch.setattr("data_prep.statistics.value_counts._BLOCK_STRINGS", block)
    counts = StringCounts(2, tmp_path, limit_bytes=1)
    words = [f"value-{number % 17}".encode() for number in range(100)]
    for first in range(0, 100, 10):
        counts.add([count_strings(Strings.of(words[first : first + 10])), count_strings(Strings.of([]))])
    assert sum(map(len, counts._runs)) == 10
    assert counted_as_dict(counts.frequent(0, 1)) == {word: words.count(word) for word in set(words)}
    assert len(counts.frequent(1, 1)) == 0
    counts.close()
    assert list(tmp_path.iterdir()) == []


def test_strings_that_share_a_key_are_found(tmp_path, few_keys):
    known = [f"value-{number}".encode() for number in range(50)]
    numbers, texts = np.array([MISSING, *range(1, 51)]), Strings.of([b"", *known])
    field = FieldVocabulary("C", (3, 10), ((1000, 1051),), numbers, np.ones_like(numbers), texts)
    lookup = write_lookup_tables([field], tmp_path / "lookup.bin").opened[1][0]
    asked = [b"unknown", *known, b"", b"x" * 100]
    ids = find_strings(lookup, Strings.of(asked), np.array([string != b"" for string in asked])).tolist()
    assert ids[1:-1] == [*range(1001, 1051), 1000]
    assert 3 <= ids[0] < 10 and 3 <= ids[-1] < 10
