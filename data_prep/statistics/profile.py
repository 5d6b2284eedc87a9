"""Count what only the report shows: rows and clicks over the log, and the vocabulary's size by `min_count`.

The counts are sums of integers over chunks, so they do not depend on how the log was cut. They take bounded memory,
and about one per cent of a pass's time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHORTEST_SPAN = 1 << 10  # Number of lines of the shortest span.
MOST_SPANS = 1 << 12


@dataclass(frozen=True)
class ChunkSpans:
    """Counts of a chunk's rows, by spans of SHORTEST_SPAN lines of the log."""

    first_span: int
    counts: NDArray[np.int64]  # [3, spans]: kept rows, rows with a label, and clicks.

    @classmethod
    def of(cls, row_numbers: NDArray[np.int64], labelled: NDArray[np.bool_], labels: NDArray[np.bool_]) -> ChunkSpans:
        """Count rows with ascending `row_numbers` [n]."""
        if not len(row_numbers):
            return cls(0, np.empty((3, 0), np.int64))
        first, last = int(row_numbers[0]) // SHORTEST_SPAN, int(row_numbers[-1]) // SHORTEST_SPAN
        starts = np.arange(first, last + 2) * SHORTEST_SPAN
        ends = np.searchsorted(row_numbers, starts)
        sums = np.zeros((3, len(labels) + 1), np.int64)
        np.cumsum([np.ones_like(labels), labelled, labels], axis=1, out=sums[:, 1:])
        return cls(first, np.diff(sums[:, ends]))


class Timeline:
    """Counts over the lines of the log, in at most MOST_SPANS spans of equal length.

    The counts are those of `ChunkSpans`. The spans become twice as long whenever there would be too many, so their
    length depends on the number of lines only.
    """

    def __init__(self) -> None:
        self.span_lines = SHORTEST_SPAN
        self.counts: NDArray[np.int64] = np.zeros((3, 0), np.int64)

    def add(self, chunk: ChunkSpans) -> None:
        num_spans = chunk.counts.shape[1]
        while (chunk.first_span + num_spans) * SHORTEST_SPAN > MOST_SPANS * self.span_lines:
            if self.counts.size:
                self.counts = np.add.reduceat(self.counts, np.arange(0, self.counts.shape[1], 2), axis=1)
            self.span_lines *= 2
        indices = (chunk.first_span + np.arange(num_spans)) * SHORTEST_SPAN // self.span_lines
        if num_spans and (num_more := indices[-1] + 1 - self.counts.shape[1]) > 0:
            self.counts = np.pad(self.counts, ((0, 0), (0, num_more)))
        np.add.at(self.counts.T, indices, chunk.counts.T)


# Values of `min_count` for which the report shows the size of the vocabulary.
MIN_COUNTS = tuple(step * 10**power for power in range(7) for step in (1, 2, 3, 5, 7))

_SMALL_COUNTS = 1 << 10


@dataclass(frozen=True)
class Coverage:
    """Size of a field's vocabulary for each of MIN_COUNTS: distinct values, and training rows in which they occur."""

    values: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def none(cls) -> Coverage:
        return cls(np.zeros(len(MIN_COUNTS), np.int64), np.zeros(len(MIN_COUNTS), np.int64))

    @classmethod
    def of(cls, counts: NDArray[np.uint64]) -> Coverage:
        """Return the coverage of values with the given counts, which must be at least 1."""
        # Nearly all counts are small. A histogram of small counts is much faster than a search for each count.
        is_large = counts >= _SMALL_COUNTS
        large = counts[is_large].astype(np.int64)
        of_small = np.bincount(counts[~is_large].astype(np.int64), minlength=_SMALL_COUNTS)
        every = np.concatenate([np.arange(_SMALL_COUNTS), large])
        values = np.concatenate([of_small, np.ones(len(large), np.int64)])
        firsts = np.searchsorted(MIN_COUNTS, every, side="right") - 1
        by_first = np.zeros((2, len(MIN_COUNTS)), np.int64)
        np.add.at(by_first[0], firsts, values)
        np.add.at(by_first[1], firsts, values * every)
        return cls(*np.cumsum(by_first[:, ::-1], axis=1)[:, ::-1])

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(self.values + other.values, self.rows + other.rows)
