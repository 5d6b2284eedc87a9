"""Strings written on purpose to share a key: they are counted and found rightly, and about as fast as others."""

import os
import time

import numpy as np
import pytest

from data_prep.encoding.vocabulary import FieldVocabulary, write_lookup_tables
from data_prep.kernels import native, numpy_kernels
from data_prep.kernels.parsed import MISSING
from data_prep.kernels.strings import Strings

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
