"""Count a chunk of the log. Workers import this: neither pyarrow nor tqdm, which cost memory and start of each.

Letters: n rows, C categorical fields, N integer fields.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.choose import choose_kernels
from data_prep.kernels.rows import Chunk, LogRows, ParsedChunk
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.split import TRAIN, Split
from data_prep.statistics.profile import ChunkSpans
from data_prep.statistics.statistics import ChunkCounts, IntegerStatistics


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
        columns = zip(*rows.number_columns(self.options.integer_buckets), strict=True)
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


def _bins(kernels: ModuleType, rows: LogRows, training: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    columns = zip(rows.integers, rows.integers_present, strict=True)
    return [kernels.count_bins(integers, present, training) for integers, present in columns]


def count_lines(
    kernels: ModuleType, chunk: Chunk, parsed: ParsedChunk, training: NDArray[np.bool_], missing: list[int]
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
