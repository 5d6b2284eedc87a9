"""Statistics of the training rows: counts of values, and sums over integers.

Chunks are counted separately and added up. All sums are of whole numbers, so the result has the same bits however the
log was cut into chunks.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.execution.pieces import storable
from data_prep.kernels.reference import NUM_BINS, CountedStrings
from data_prep.kernels.strings import Strings
from data_prep.options.prepare_options import PrepareOptions
from data_prep.statistics.profile import ChunkSpans, Coverage, Timeline
from data_prep.statistics.value_counts import StringCounts, ValueCounts

# Attributes of LogStatistics that are stored as they are.
_KEPT = ("num_lines", "rejects_by_reason", "num_training_rows", "integers", "missing", "cut", "bins")


@dataclass(frozen=True)
class IntegerStatistics:
    """Exact sums over the present cells of an integer field."""

    count: int = 0
    total: int = 0
    total_squares: int = 0
    maximum: int | None = None

    @classmethod
    def of(cls, integers: NDArray[np.int64]) -> IntegerStatistics:
        if len(integers) == 0:
            return cls()
        largest = max(abs(int(integers.min())), abs(int(integers.max())))
        # Python's integers if a sum of squares could exceed int64.
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
        """NaN if no cell is present."""
        return self.total / self.count if self.count else math.nan

    @property
    def standard_deviation(self) -> float:
        """The population's standard deviation, not that of a sample; NaN if no cell is present."""
        if not self.count:
            return math.nan
        # The variance is one division of integers: rounded once, and nothing cancels.
        return math.sqrt((self.count * self.total_squares - self.total**2) / self.count**2)


@dataclass(frozen=True)
class ChunkCounts:
    """Counts of a chunk's lines, and counts and statistics of its training rows."""

    num_lines: int
    rejects_by_reason: Counter[str]
    rejects_tsv: bytes
    num_training_rows: int
    integers: list[IntegerStatistics]  # by numeric field
    missing: list[int]  # by categorical column
    cut: dict[str, int]  # by column of kind list: rows with more values than are kept
    values: list[NDArray[np.uint64]]  # by column of numbers: packed (value, count) pairs, see reference.count_values
    texts: list[CountedStrings]  # by vocabulary of text
    bins: list[NDArray[np.int64]]  # by numeric field, see reference.count_bins
    spans: ChunkSpans  # of all kept rows


storable(IntegerStatistics, ChunkSpans, Coverage, Strings, CountedStrings, ChunkCounts)


class LogStatistics:
    """Statistics of the whole log. Counts of values that exceed `counts_bytes` of memory are written to `folder`."""

    def __init__(self, options: PrepareOptions, folder: Path, counts_bytes: int) -> None:
        columns, num_vocabularies = options.categorical_columns, len(options.vocabularies)
        num_texts = sum(column.is_text for column in options.vocabularies)
        texts_bytes = counts_bytes * num_texts // num_vocabularies
        self.num_lines = 0
        self.rejects_by_reason: Counter[str] = Counter()
        self.num_training_rows = 0
        self.integers = [IntegerStatistics() for _ in options.data.numeric_fields]
        self.missing = [0] * len(columns)
        self.cut: Counter[str] = Counter()
        self.bins = [np.zeros(NUM_BINS, np.int64) for _ in options.data.numeric_fields]
        self.timeline = Timeline()
        self.unknown = np.zeros(len(columns), np.int64)  # training rows out of vocabulary; from the second pass
        self._columns = columns
        self.values = ValueCounts(num_vocabularies - num_texts, folder, counts_bytes - texts_bytes)
        self.texts = StringCounts(num_texts, folder, texts_bytes)

    @property
    def coverage(self) -> list[Coverage]:
        """Coverage of each categorical column whose frequent values were asked for."""
        return [(self.texts if column.is_text else self.values).coverage[column.place] for column in self._columns]

    @property
    def num_rejects(self) -> int:
        return self.rejects_by_reason.total()

    @property
    def num_good_lines(self) -> int:
        return self.num_lines - self.num_rejects

    def add(self, chunk: ChunkCounts) -> None:
        self.num_lines += chunk.num_lines
        self.rejects_by_reason += chunk.rejects_by_reason
        self.num_training_rows += chunk.num_training_rows
        self.missing = [mine + theirs for mine, theirs in zip(self.missing, chunk.missing, strict=True)]
        self.cut.update(chunk.cut)
        self.bins = [mine + theirs for mine, theirs in zip(self.bins, chunk.bins, strict=True)]
        self.timeline.add(chunk.spans)
        if chunk.integers:
            self.integers = [mine + theirs for mine, theirs in zip(self.integers, chunk.integers, strict=True)]
        if chunk.values:
            self.values.add(chunk.values)
        if chunk.texts:
            self.texts.add(chunk.texts)

    def close(self) -> None:
        self.values.close()
        self.texts.close()

    def kept(self) -> dict[str, Any]:
        """Return what remains once the counts of values are forgotten, to be stored."""
        timeline = (self.timeline.span_lines, self.timeline.rows, self.timeline.clicks)
        coverage = (self.values.coverage, self.texts.coverage)
        return {name: getattr(self, name) for name in _KEPT} | {"timeline": timeline, "coverage": coverage}

    def restore(self, kept: dict[str, Any]) -> None:
        for name in _KEPT:
            setattr(self, name, kept[name])
        self.timeline.span_lines, self.timeline.rows, self.timeline.clicks = kept["timeline"]
        self.values.coverage, self.texts.coverage = kept["coverage"]
