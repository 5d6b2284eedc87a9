"""First reading of the log: counts of values and ranges of integers over the training rows.

Chunks are counted on their own and added up. All sums are of whole numbers, so the result is the same
bits however the log was cut into chunks.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.buckets import number_columns
from data_prep.counts import ValueCounts
from data_prep.kernels import Kernels, choose_kernels
from data_prep.log_profile import NUM_BINS, ChunkSpans, Coverage, Timeline
from data_prep.options import PrepareOptions
from data_prep.pieces import storable
from data_prep.rows import Chunk, LogRows, ParsedChunk
from data_prep.split import TRAIN, Split
from data_prep.text_counts import CountedTexts, TextCounts
from data_prep.texts import Texts

# Of the log's statistics, what is kept in a piece as it is.
_KEPT = ("num_lines", "rejects_by_reason", "num_training_rows", "integers", "missing", "bins")


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
    values: list[NDArray[np.uint64]]  # a column worked on as numbers: words of (value, count), see counts.py
    texts: list[CountedTexts]  # a column of text
    bins: list[NDArray[np.int64]]  # a numeric field: see log_profile.py
    spans: ChunkSpans  # of all kept rows


storable(IntegerStatistics, ChunkSpans, Coverage, Texts, CountedTexts, ChunkCounts)


@dataclass(frozen=True)
class ChunkCounter:
    """Counts chunks; the same for all of them, so workers get it once."""

    split: Split
    options: PrepareOptions

    def count(self, chunk: Chunk) -> ChunkCounts:
        """Parse a chunk and count its training rows."""
        kernels = choose_kernels(self.options.kernels)
        parsed = kernels.parse_chunk(chunk, self.options.data)
        rows = parsed.rows
        training = self.split.assign(rows.row_numbers, rows.labels, chunk.file.place) == TRAIN
        columns = zip(*number_columns(rows, self.options.integer_buckets), strict=True)
        counted = [kernels.count_values(values, present, training) for values, present in columns]
        texts_chosen = [present & training for present in rows.texts_present]
        missing = [
            int(training.sum() - texts_chosen[column.place].sum()) if column.is_text else counted[column.place][1]
            for column in self.options.categorical_columns
        ]
        return dataclasses.replace(
            count_lines(kernels, chunk, parsed, training, missing),
            integers=[
                IntegerStatistics.of(integers[present & training])
                for integers, present in zip(rows.integers, rows.integers_present, strict=True)
            ],
            values=[words for words, _ in counted],
            texts=[
                kernels.count_texts(texts.take(chosen)) for texts, chosen in zip(rows.texts, texts_chosen, strict=True)
            ],
        )


def _bins(kernels: Kernels, rows: LogRows, training: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    columns = zip(rows.integers, rows.integers_present, strict=True)
    return [kernels.count_bins(integers, present, training) for integers, present in columns]


def count_lines(
    kernels: Kernels, chunk: Chunk, parsed: ParsedChunk, training: NDArray[np.bool_], missing: list[int]
) -> ChunkCounts:
    """The counts that need no reading of their own: lines, rejects, training rows and their missing values."""
    return ChunkCounts(
        num_lines=chunk.num_lines,
        rejects_by_reason=parsed.rejects_by_reason,
        rejects_tsv=parsed.rejects_tsv,
        num_training_rows=int(training.sum()),
        integers=[],
        missing=missing,
        values=[],
        texts=[],
        bins=_bins(kernels, parsed.rows, training),
        spans=ChunkSpans.of(parsed.rows.row_numbers, parsed.rows.labels),
    )


def count_missing(rows: LogRows, training: NDArray[np.bool_], options: PrepareOptions) -> list[int]:
    """Training rows in which each categorical column is missing."""
    numbers_present = [*rows.values_present, *rows.integers_present]  # hex values, then buckets
    presence = (
        (rows.texts_present if column.is_text else numbers_present)[column.place]
        for column in options.categorical_columns
    )
    return [int(np.sum(training & ~present)) for present in presence]


class LogStatistics:
    """What the first reading found in the whole log; counts of values go on disk where they outgrow the memory."""

    def __init__(self, options: PrepareOptions, folder: Path, counts_bytes: int) -> None:
        columns = options.categorical_columns
        num_texts = sum(column.is_text for column in columns)
        texts_bytes = counts_bytes * num_texts // len(columns)
        self.num_lines = 0
        self.rejects_by_reason: Counter[str] = Counter()
        self.num_training_rows = 0
        self.integers = [IntegerStatistics() for _ in options.data.numeric_fields]
        self.missing = [0] * len(columns)
        self.bins = [np.zeros(NUM_BINS, np.int64) for _ in options.data.numeric_fields]
        self.timeline = Timeline()
        self.unknown = np.zeros(len(columns), np.int64)  # by the second reading: training rows out of vocabulary
        self._columns = columns
        self.values = ValueCounts(len(columns) - num_texts, folder, counts_bytes - texts_bytes)
        self.texts = TextCounts(num_texts, folder, texts_bytes)

    @property
    def coverage(self) -> list[Coverage]:
        """Of each categorical column, once its frequent values were asked for."""
        return [(self.texts if column.is_text else self.values).coverage[column.place] for column in self._columns]

    @property
    def num_rejects(self) -> int:
        """Rejected lines."""
        return self.rejects_by_reason.total()

    @property
    def num_good_lines(self) -> int:
        """Rows of all splits."""
        return self.num_lines - self.num_rejects

    def add(self, chunk: ChunkCounts) -> None:
        """Add what was counted in a chunk."""
        self.num_lines += chunk.num_lines
        self.rejects_by_reason += chunk.rejects_by_reason
        self.num_training_rows += chunk.num_training_rows
        self.missing = [mine + theirs for mine, theirs in zip(self.missing, chunk.missing, strict=True)]
        self.bins = [mine + theirs for mine, theirs in zip(self.bins, chunk.bins, strict=True)]
        self.timeline.add(chunk.spans)
        if chunk.integers:
            self.integers = [mine + theirs for mine, theirs in zip(self.integers, chunk.integers, strict=True)]
        if chunk.values:
            self.values.add(chunk.values)
        if chunk.texts:
            self.texts.add(chunk.texts)

    def close(self) -> None:
        """Forget all counts of values."""
        self.values.close()
        self.texts.close()

    def kept(self) -> dict[str, Any]:
        """Return what is known once all counts are forgotten, as a piece holds it."""
        timeline = (self.timeline.span_lines, self.timeline.rows, self.timeline.clicks)
        coverage = (self.values.coverage, self.texts.coverage)
        return {name: getattr(self, name) for name in _KEPT} | {"timeline": timeline, "coverage": coverage}

    def restore(self, kept: dict[str, Any]) -> None:
        """Take what `kept` returned."""
        for name in _KEPT:
            setattr(self, name, kept[name])
        self.timeline.span_lines, self.timeline.rows, self.timeline.clicks = kept["timeline"]
        self.values.coverage, self.texts.coverage = kept["coverage"]
