"""How often each value of each categorical field was seen, in bounded memory.

Letters: n rows, K distinct values of a field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.reference import COUNT_BITS, COUNT_MASK
from data_prep.statistics.profile import Coverage

_WORD_BYTES = 8

_WAITING_WORDS = 1 << 22  # at least so many wait for a merge

_BLOCK_WORDS = 1 << 20  # worked on at a time, so that only the words themselves need much memory


@dataclass(frozen=True)
class _Run:
    """Words of all fields written to a file, one field after the other, each ascending."""

    path: Path
    bounds: NDArray[np.int64]  # [C + 1] in words

    def words(self, field: int) -> NDArray[np.uint64]:
        """A field's words, mapped: only what is looked at is read."""
        first, end = self.bounds[field : field + 2]
        if first == end:  # no file can be mapped from its end on
            return np.empty(0, np.uint64)
        return np.memmap(self.path, np.uint64, "r", offset=int(first) * _WORD_BYTES, shape=(int(end - first),))

    def read(self, field: int, first: int, end: int) -> NDArray[np.uint64]:
        """Some of a field's words as a copy: pages of a map would stay in this process's memory."""
        offset = (int(self.bounds[field]) + first) * _WORD_BYTES
        return np.fromfile(self.path, np.uint64, end - first, offset=offset)


class ValueCounts:
    """Counts of the values of all fields, added up over chunks.

    Chunks' counts wait until they are as many as the distinct values so far, then all are merged: a value is
    merged a logarithmic number of times. What outgrows `limit_bytes` is written to `folder` as a run of
    ascending values, and the runs are merged at the end, a range of values at a time.
    """

    def __init__(self, num_fields: int, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_words = max(limit_bytes // _WORD_BYTES, 1)
        self._merged: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)] * num_fields
        self._waiting: list[list[NDArray[np.uint64]]] = [[] for _ in range(num_fields)]
        self._num_waiting = 0
        self._runs: list[_Run] = []
        self.coverage = [Coverage.none()] * num_fields  # of the fields whose `frequent` values were asked for

    @property
    def num_runs(self) -> int:
        """Runs written to disk."""
        return len(self._runs)

    def add(self, words_by_field: Sequence[NDArray[np.uint64]]) -> None:
        """Add a chunk's words of (value, count) of each field."""
        for waiting, words in zip(self._waiting, words_by_field, strict=True):
            waiting.append(words)
            self._num_waiting += len(words)
        num_merged = sum(map(len, self._merged))
        if self._num_waiting >= max(_WAITING_WORDS, num_merged) or num_merged + self._num_waiting > self._limit_words:
            self._merge()

    def frequent(self, field: int, min_count: int) -> NDArray[np.uint64]:
        """A field's words of (value, count), ascending, with a count of at least `min_count`."""
        if self._num_waiting:
            self._merge()
        self.coverage[field] = Coverage.none()
        if not self._runs:
            self._cover(field, self._merged[field])
            return _at_least(self._merged[field], min_count)
        maps = [run.words(field) for run in self._runs]
        parts = [np.empty(0, np.uint64)]
        for bounds in _even_ranges([*maps, self._merged[field]]):
            read = [run.read(field, *pair) for run, pair in zip(self._runs, bounds, strict=False)]
            words = np.concatenate([*read, self._merged[field][slice(*bounds[-1])]])
            words.sort()
            words = _add_up(words)
            self._cover(field, words)
            parts.append(_at_least(words, min_count))
        return np.concatenate(parts)

    def close(self) -> None:
        """Forget all counts, and remove the runs."""
        for run in self._runs:
            run.path.unlink()
        self._runs, self._merged = [], []

    def _cover(self, field: int, words: NDArray[np.uint64]) -> None:
        for first in range(0, len(words), _BLOCK_WORDS):
            self.coverage[field] += Coverage.of(words[first : first + _BLOCK_WORDS] & COUNT_MASK)

    def _merge(self) -> None:
        for field, waiting in enumerate(self._waiting):
            words = np.concatenate([self._merged[field], *waiting])
            self._merged[field], self._waiting[field] = words, []
            words.sort()
            num_distinct = len(_add_up(words))
            words.resize(num_distinct, refcheck=False)
        self._num_waiting = 0
        # Half of the limit: room for as many counts again to wait for the next merge.
        if 2 * sum(map(len, self._merged)) > self._limit_words:
            self._spill()

    def _spill(self) -> None:
        run = _Run(
            self._folder / f"counts-{len(self._runs):05d}.bin",
            np.cumsum([0, *map(len, self._merged)]),
        )
        with run.path.open("wb") as file:
            for words in self._merged:
                file.write(words.data)  # tofile has no errno
        self._runs.append(run)
        self._merged = [np.empty(0, np.uint64)] * len(self._merged)


def _at_least(words: NDArray[np.uint64], min_count: int) -> NDArray[np.uint64]:
    return words[words & COUNT_MASK >= np.uint64(min_count)]


def _add_up(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One word a value, with the sum of its counts, from ascending words; at the front of the same array."""
    first = num_distinct = 0
    while first < len(words):
        end = min(first + _BLOCK_WORDS, len(words))
        end = int(np.searchsorted(words, words[end - 1] | COUNT_MASK, side="right"))  # all of the last value
        block = words[first:end]
        values = block >> COUNT_BITS
        firsts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
        counts = np.add.reduceat(block & COUNT_MASK, firsts)
        check_count(int(counts.max()))
        words[num_distinct : num_distinct + len(firsts)] = values[firsts] << COUNT_BITS | counts
        num_distinct += len(firsts)
        first = end
    return words[:num_distinct]


def check_count(count: int) -> None:
    """Raise ValueError where a count does not fit its bits, as it would change the value beside it."""
    if count > COUNT_MASK:
        raise ValueError(
            f"a value is in {count:,} training rows, and at most {COUNT_MASK:,} can be counted; prepare some of the "
            "files first, then the others with the ids of those (--vocabulary DIR), or lower prepare.train_fraction"
        )


def _even_ranges(runs: Sequence[NDArray[np.uint64]]) -> Iterator[list[tuple[int, int]]]:
    """Ascending ranges of values, of _BLOCK_WORDS words at most: for each, the places [first, end) in each run."""

    def cut(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
        bounds = [_places(run, low, high) for run in runs]
        if sum(end - first for first, end in bounds) <= _BLOCK_WORDS or high - low == 1:
            yield bounds
        else:
            middle = (low + high) // 2
            yield from cut(low, middle)
            yield from cut(middle, high)

    yield from cut(0, 2**32)


def _places(run: NDArray[np.uint64], low: int, high: int) -> tuple[int, int]:
    """Where the words of the values low … high - 1 are."""
    # The largest word of a value, as 2**32 << 32 would leave 64 bits; a count is never 0, so `low << 32` is no word.
    last = np.uint64((high - 1) << 32) | COUNT_MASK
    return int(np.searchsorted(run, np.uint64(low << 32))), int(np.searchsorted(run, last, side="right"))
