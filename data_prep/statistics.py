"""First reading of the log: counts of values and ranges of integers over the training rows.

Chunks are counted on their own and added up. All sums are of whole numbers, so the result is the same
bits however the log was cut into chunks.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from data_prep.criteo import CATEGORICAL_FIELDS, NUMERIC_FIELDS, Chunk, parse_chunk
from data_prep.split import TRAIN, Split

# A value and its count in one 64-bit word: what is sorted by value stays with its count, and sorting plain
# numbers is several times faster than sorting by an index. A count is one of at most 2**32 training rows.
_COUNT_BITS = np.uint64(32)
_COUNT_MASK = np.uint64(2**32 - 1)
_MERGE_WORDS = 1 << 20


@dataclass(frozen=True)
class IntegerStatistics:
    """Of the present cells of an integer field; exact."""

    count: int = 0
    total: int = 0
    total_squares: int = 0
    maximum: int | None = None

    @classmethod
    def of(cls, integers: NDArray[np.int64]) -> IntegerStatistics:
        """Statistics of integers [n]."""
        if len(integers) == 0:
            return cls()
        largest = max(abs(int(integers.min())), abs(int(integers.max())))
        # Python's whole numbers where a sum of squares could leave int64.
        exact = integers if largest**2 * len(integers) < 2**63 else integers.astype(object)
        return cls(len(integers), int(exact.sum()), int(np.dot(exact, exact)), int(integers.max()))

    def __add__(self, other: IntegerStatistics) -> IntegerStatistics:
        maxima = [part.maximum for part in (self, other) if part.maximum is not None]
        return IntegerStatistics(
            self.count + other.count,
            self.total + other.total,
            self.total_squares + other.total_squares,
            max(maxima, default=None),
        )

    @property
    def mean(self) -> float:
        """NaN where no cell is present."""
        return self.total / self.count if self.count else math.nan

    @property
    def standard_deviation(self) -> float:
        """Of the cells as the whole population; NaN where no cell is present."""
        if not self.count:
            return math.nan
        # Variance as one division of whole numbers: rounded once, nothing cancels.
        return math.sqrt((self.count * self.total_squares - self.total**2) / self.count**2)


@dataclass(frozen=True)
class ChunkCounts:
    """What the first reading takes from a chunk; counts and statistics of its training rows."""

    num_lines: int
    rejects_by_reason: Counter[str]
    rejects_tsv: bytes
    num_training_rows: int
    integers: list[IntegerStatistics]  # a numeric field
    missing: list[int]  # a categorical field
    values: list[NDArray[np.uint64]]  # a categorical field: words of (value, count)


def count_chunk(split: Split, chunk: Chunk) -> ChunkCounts:
    """Parse a chunk and count its training rows."""
    parsed = parse_chunk(chunk)
    rows = parsed.rows.take(split.assign(parsed.rows.row_numbers) == TRAIN)
    return ChunkCounts(
        num_lines=chunk.num_lines,
        rejects_by_reason=parsed.rejects_by_reason,
        rejects_tsv=parsed.rejects_tsv,
        num_training_rows=len(rows.labels),
        integers=[
            IntegerStatistics.of(integers[present])
            for integers, present in zip(rows.integers, rows.integers_present, strict=True)
        ],
        missing=[int(np.sum(~present)) for present in rows.values_present],
        values=[
            count_values(values[present]) for values, present in zip(rows.values, rows.values_present, strict=True)
        ],
    )


def count_values(values: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Words of (value, count), sorted, from values [n]."""
    unique, counts = np.unique(values, return_counts=True)
    return unique.astype(np.uint64) << _COUNT_BITS | counts.astype(np.uint64)


class ValueCounts:
    """Counts of the values of one field, added up over chunks.

    Chunks' counts wait until they are as many as the distinct values so far: a value is then merged a
    logarithmic number of times, and memory stays within a few times 8 bytes a distinct value.
    """

    def __init__(self) -> None:
        self._merged: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._waiting: list[NDArray[np.uint64]] = []
        self._num_waiting = 0

    def add(self, words: NDArray[np.uint64]) -> None:
        """Add the words of (value, count) of a chunk."""
        self._waiting.append(words)
        self._num_waiting += len(words)
        if self._num_waiting >= max(_MERGE_WORDS, len(self._merged)):
            self._merge()

    def result(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All distinct values in rising order, and their counts."""
        self._merge()
        return (self._merged >> _COUNT_BITS).astype(np.int64), (self._merged & _COUNT_MASK).astype(np.int64)

    def _merge(self) -> None:
        words = np.concatenate([self._merged, *self._waiting])
        words.sort()
        values = words >> _COUNT_BITS
        firsts = np.flatnonzero(np.diff(values, prepend=values[:1] + 1))
        self._waiting, self._num_waiting = [], 0
        if len(words):
            self._merged = values[firsts] << _COUNT_BITS | np.add.reduceat(words & _COUNT_MASK, firsts)


@dataclass
class LogStatistics:
    """What the first reading found in the whole log."""

    num_lines: int = 0
    rejects_by_reason: Counter[str] = field(default_factory=Counter)
    num_training_rows: int = 0
    integers: list[IntegerStatistics] = field(default_factory=lambda: [IntegerStatistics() for _ in NUMERIC_FIELDS])
    missing: list[int] = field(default_factory=lambda: [0 for _ in CATEGORICAL_FIELDS])
    values: list[ValueCounts] = field(default_factory=lambda: [ValueCounts() for _ in CATEGORICAL_FIELDS])

    @property
    def num_rejects(self) -> int:
        """Rejected lines."""
        return self.rejects_by_reason.total()

    def add(self, chunk: ChunkCounts) -> None:
        """Add what was counted in a chunk."""
        self.num_lines += chunk.num_lines
        self.rejects_by_reason += chunk.rejects_by_reason
        self.num_training_rows += chunk.num_training_rows
        self.integers = [mine + theirs for mine, theirs in zip(self.integers, chunk.integers, strict=True)]
        self.missing = [mine + theirs for mine, theirs in zip(self.missing, chunk.missing, strict=True)]
        for counts, words in zip(self.values, chunk.values, strict=True):
            counts.add(words)
