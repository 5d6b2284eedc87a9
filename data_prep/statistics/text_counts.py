"""How often each string of each field of text was seen, in bounded memory; the same as statistics/value_counts.py does
for numbers.

Letters: n strings, K distinct ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.reference import NOTHING, CountedTexts, merge
from data_prep.kernels.texts import Texts, concatenate_texts
from data_prep.statistics.profile import Coverage

_WAITING_STRINGS = 1 << 20  # at least so many wait for a merge

_BLOCK_STRINGS = 1 << 19  # of all runs, merged at a time at the end


@dataclass(frozen=True)
class _Run:
    """Counted strings of a field in a file: K keys, counts, ends of the strings, then the strings."""

    path: Path
    num_strings: int

    @classmethod
    def write(cls, path: Path, counted: CountedTexts) -> _Run:
        """A new file."""
        with path.open("wb") as file:
            for array in (counted.keys, counted.counts, np.cumsum(counted.texts.lengths), counted.texts.data):
                file.write(np.ascontiguousarray(array).data)  # tofile has no errno
        return cls(path, len(counted))

    def keys(self) -> NDArray[np.uint64]:
        """All keys, mapped: only what is looked at is read."""
        return np.memmap(self.path, np.uint64, "r", shape=(self.num_strings,))

    def read(self, first: int, end: int) -> CountedTexts:
        """Some of them, copied: pages of a map would stay in this process's memory."""
        keys = np.fromfile(self.path, np.uint64, end - first, offset=8 * first)
        counts = np.fromfile(self.path, np.int64, end - first, offset=8 * (self.num_strings + first))
        ends = np.fromfile(self.path, np.int64, end - first, offset=8 * (2 * self.num_strings + first))
        start = 0
        if first:
            start = int(np.fromfile(self.path, np.int64, 1, offset=8 * (2 * self.num_strings + first - 1))[0])
        num_bytes = int(ends[-1]) - start if len(ends) else 0
        data = np.fromfile(self.path, np.uint8, num_bytes + 8, offset=24 * self.num_strings + start)
        starts = np.concatenate([[start], ends[:-1]])[: len(ends)] - start
        return CountedTexts(keys, counts, Texts(data, starts, ends - start - starts))


class TextCounts:
    """Counts of the strings of all fields, added up over chunks; what outgrows `limit_bytes` goes to `folder`."""

    def __init__(self, num_fields: int, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._merged = [NOTHING] * num_fields
        self._waiting: list[list[CountedTexts]] = [[] for _ in range(num_fields)]
        self._num_waiting = self._waiting_bytes = 0
        self._runs: list[list[_Run]] = [[] for _ in range(num_fields)]
        self.coverage = [Coverage.none()] * num_fields  # of the fields whose `frequent` strings were asked for

    @property
    def num_runs(self) -> int:
        """Runs written to disk, of all fields."""
        return sum(map(len, self._runs))

    def add(self, counted: Sequence[CountedTexts]) -> None:
        """Add a chunk's strings of each field."""
        for waiting, of_field in zip(self._waiting, counted, strict=True):
            waiting.append(of_field)
            self._num_waiting += len(of_field)
            self._waiting_bytes += of_field.nbytes
        merged_bytes = sum(of_field.nbytes for of_field in self._merged)
        if (
            self._num_waiting >= max(_WAITING_STRINGS, sum(map(len, self._merged)))
            or merged_bytes + self._waiting_bytes > self._limit_bytes
        ):
            self._merge()

    def frequent(self, field: int, min_count: int) -> CountedTexts:
        """A field's strings with a count of at least `min_count`, by rising key."""
        if self._num_waiting:
            self._merge()
        self.coverage[field], parts = Coverage.none(), [NOTHING]
        for block in self._blocks(field):
            self.coverage[field] += Coverage.of(block.counts.astype(np.uint64))
            parts.append(block.take(np.flatnonzero(block.counts >= min_count)))
        return CountedTexts(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.counts for part in parts]),
            concatenate_texts([part.texts for part in parts]),
        )

    def close(self) -> None:
        """Forget all counts, and remove the runs."""
        for runs in self._runs:
            for run in runs:
                run.path.unlink()
        self._runs = [[] for _ in self._runs]
        self._merged = [NOTHING] * len(self._merged)

    def _merge(self) -> None:
        for field, waiting in enumerate(self._waiting):
            self._merged[field], self._waiting[field] = merge([self._merged[field], *waiting]), []
        self._num_waiting = self._waiting_bytes = 0
        # Half of the limit: room for as much again to wait for the next merge.
        if 2 * sum(of_field.nbytes for of_field in self._merged) > self._limit_bytes:
            self._spill()

    def _spill(self) -> None:
        for field, counted in enumerate(self._merged):
            if len(counted):
                path = self._folder / f"texts-{field:03d}-{len(self._runs[field]):05d}.bin"
                self._runs[field].append(_Run.write(path, counted))
        self._merged = [NOTHING] * len(self._merged)

    def _blocks(self, field: int) -> Iterator[CountedTexts]:
        """All of a field's strings added up, a range of keys at a time: keys are hashes, so they spread evenly."""
        runs, merged = self._runs[field], self._merged[field]
        if not runs:
            yield merged
            return
        num_blocks = -(-(sum(run.num_strings for run in runs) + len(merged)) // _BLOCK_STRINGS)
        bounds = [np.uint64(number * 2**64 // num_blocks) for number in range(1, num_blocks)]
        places = [
            [0, *np.searchsorted(keys, np.array(bounds, np.uint64)).tolist(), len(keys)]
            for keys in [*(run.keys() for run in runs), merged.keys]
        ]
        for number in range(num_blocks):
            parts = [run.read(at[number], at[number + 1]) for run, at in zip(runs, places, strict=False)]
            rest = merged.take(slice(places[-1][number], places[-1][number + 1]))
            yield merge([*parts, rest])
