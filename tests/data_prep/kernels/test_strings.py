import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.encoding.vocabulary import FieldVocabulary, write_lookup_tables
from data_prep.kernels import native, numpy_kernels
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


BITS_64 = 2**64 - 1
LENGTH_FACTOR, WORD_FACTOR = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93  # of strings.Strings.keys
NUM_STRINGS = 40_000
MOST_TIMES_SLOWER = 40  # a hundred and more where each string is compared with all others; two to ten else

if not native.is_available() and "CI" not in os.environ:
    pytest.skip("the native log kernels are not built; run: make native", allow_module_level=True)

kernels = pytest.mark.parametrize(
    ("count_strings", "find_strings"),
    [(native.count_strings, native.find_strings), (numpy_kernels.count_strings, numpy_kernels.find_strings)],
    ids=["native", "numpy"],
)


def strings_of_one_key(count, state=0x0123456789ABCDEF):
    """So many strings of two, three or four words, the last of which is chosen to end in the same state of the hash."""
    strings = []
    for number in range(count):
        prefix = [number, *[number] * (number % 3)]
        reached = 8 * (len(prefix) + 1) * LENGTH_FACTOR & BITS_64
        for word in prefix:
            reached = (reached ^ word) * WORD_FACTOR & BITS_64
            reached ^= reached >> 32
        before_shift = state ^ state >> 32
        last = before_shift * pow(WORD_FACTOR, -1, 2**64) & BITS_64 ^ reached
        strings.append(b"".join(word.to_bytes(8, "little") for word in [*prefix, last]))
    return strings


def other_strings(count):
    generator = np.random.default_rng(1)
    return [generator.bytes(16 + 8 * (number % 3)) for number in range(count)]


def lookup_of(folder, known):
    numbers = np.array([MISSING, *range(1, 1 + len(known))])
    field = FieldVocabulary(
        "C", (3, 4), ((4, 5 + len(known)),), numbers, np.ones_like(numbers), Strings.of([b"", *known])
    )
    return write_lookup_tables([field], folder / "lookup.bin").opened[1][0]


def seconds(function, *arguments):
    """The shorter of two runs."""
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        function(*arguments)
        taken.append(time.perf_counter() - start)
    return min(taken)


def test_the_strings_share_a_key():
    strings = strings_of_one_key(100)
    assert len(set(strings)) == 100
    assert len(np.unique(Strings.of(strings).keys())) == 1
    assert len(np.unique(Strings.of([*strings, *strings_of_one_key(100, state=5)]).keys())) == 2


@kernels
def test_they_are_counted_one_by_one(count_strings, find_strings):
    strings = strings_of_one_key(300) + strings_of_one_key(200, state=5)
    repeated = [string for place, string in enumerate(strings) for _ in range(1 + place % 3)]
    np.random.default_rng(1).shuffle(repeated)
    counted = count_strings(Strings.of(repeated))
    found = dict(zip(counted.texts.tolist(), counted.counts.tolist(), strict=True))
    assert found == {string: 1 + place % 3 for place, string in enumerate(strings)}
    order = list(zip(counted.keys.tolist(), counted.texts.tolist(), strict=True))
    assert order == sorted(order)


@kernels
def test_they_are_found_one_by_one(tmp_path, count_strings, find_strings):
    strings = strings_of_one_key(300) + strings_of_one_key(200, state=5) + strings_of_one_key(1, state=6)
    known, unknown = strings[::2], [*strings[1::2], *strings_of_one_key(2, state=7), b"other", b""]
    field = lookup_of(tmp_path, known)
    asked = Strings.of([*known, *unknown])
    present = np.array([True] * len(known) + [False] + [True] * (len(unknown) - 1))
    expected = [5 + place for place in range(len(known))] + [4] + [3] * (len(unknown) - 1)
    assert find_strings(field, asked, present).tolist() == expected


@kernels
def test_they_are_counted_about_as_fast_as_others(count_strings, find_strings):
    crafted, others = Strings.of(strings_of_one_key(NUM_STRINGS)), Strings.of(other_strings(NUM_STRINGS))
    assert seconds(count_strings, crafted) < MOST_TIMES_SLOWER * seconds(count_strings, others)


@kernels
def test_they_are_found_about_as_fast_as_others(tmp_path, count_strings, find_strings):
    taken = []
    for strings in (strings_of_one_key(NUM_STRINGS), other_strings(NUM_STRINGS)):
        field = lookup_of(tmp_path, strings[::2])
        taken.append(seconds(find_strings, field, Strings.of(strings), np.ones(NUM_STRINGS, np.bool_)))
    assert taken[0] < MOST_TIMES_SLOWER * taken[1]


def test_no_count_depends_on_the_secret_of_a_process(monkeypatch):
    texts = Strings.of([*strings_of_one_key(50), *other_strings(500), *other_strings(300), b"", b"a", b""])
    counted = []
    for secret in ([0, 0], [1, 2**64 - 1], [2**63, 7]):
        secret = np.array(secret, np.uint64)
        monkeypatch.setattr(native, "_secret", lambda secret=secret: secret)
        found = native.count_strings(texts)
        counted.append((found.keys.tobytes(), found.counts.tobytes(), found.texts.tolist()))
    assert counted[0] == counted[1] == counted[2]
    monkeypatch.undo()
    assert native._secret() is native._secret()
    assert native._secret().tolist() != [0, 0]
