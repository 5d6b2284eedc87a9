"""Statistics of the training rows: workers count a chunk each, `count_log` adds the counts up.

Workers import this file, so it imports neither pyarrow nor tqdm: they cost each worker memory and start-up time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_prep.execution import memory_limit
from data_prep.execution.prepared_folder import REJECTS_FILE, WorkDir
from data_prep.kernels.counting import count_float_bins
from data_prep.kernels.crosses import presence
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.native_counting import choose_counting
from data_prep.kernels.parsed import Chunk, ParsedChunk, ParsedRows
from data_prep.options.columns import CategoricalColumn
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.split import TRAIN, SplitRule, assign_rows, splitmix64
from data_prep.prepared.examples import Examples
from data_prep.statistics.profile import ChunkSpans
from data_prep.statistics.statistics import ChunkCounts, LogStatistics, NumericStatistics, RowSample
from data_prep.statistics.value_counts import count_numbers, count_texts

if TYPE_CHECKING:
    from data_prep.encoding.base import BaseVocabulary
    from data_prep.raw_log.reading import LogReading


def new_statistics(options: PrepareOptions, work_dir: WorkDir, num_workers: int) -> LogStatistics:
    """Return empty statistics. Their counts may take the memory that `memory_limit` leaves them."""
    return LogStatistics(
        options, work_dir.work_folder, memory_limit.counts_bytes(options, num_workers, work_dir.chunk_bytes)
    )


def count_log(
    reading: LogReading,
    split: SplitRule,
    options: PrepareOptions,
    statistics: LogStatistics,
    folder: Path,
    base: BaseVocabulary | None = None,
) -> None:
    """First pass over the log: fill `statistics` and write rejects.tsv. Values are counted in the form of `base`."""
    of_options: dict[str, bool | None] = dict.fromkeys(options.data.point_zero, True)
    counter = ChunkCounter(split, options, (base.whole_numbers if base else {}) | of_options)
    with (folder / REJECTS_FILE).open("wb") as rejects:

        def consume(counts: ChunkCounts) -> None:
            statistics.add(counts)
            rejects.write(counts.rejects_tsv)

        reading.run(counter.count, consume, "counts")


@dataclass(frozen=True)
class ChunkCounter:
    """The workers' task of the first pass."""

    split: SplitRule
    options: PrepareOptions
    whole_numbers: Mapping[str, bool | None] = field(default_factory=dict)  # see `ParsedRows.with_whole_numbers`

    def count(self, chunk: Chunk) -> ChunkCounts:
        kernels = choose_kernels(self.options.kernels)
        parsed: ParsedChunk = kernels.parse_chunk(chunk, self.options.data)
        rows = parsed.rows.with_lists(self.options.data, kernels).with_whole_numbers(self.whole_numbers)
        parsed = dataclasses.replace(parsed, rows=rows)
        rows = parsed.rows
        training = assign_rows(self.split, rows, chunk.file.place) == TRAIN
        return dataclasses.replace(
            self.count_lines(chunk, parsed, training),
            numeric=[self._numeric(rows, name, training) for name in self.options.data.numeric_fields],
            sample=self._sample(rows, training) if self.options.numeric_transform == "quantile" else None,
            values=count_numbers(rows, self.options, training),
            texts=count_texts(rows, self.options, training),
        )

    def count_lines(self, chunk: Chunk, parsed: ParsedChunk, training: NDArray[np.bool_]) -> ChunkCounts:
        """Return the counts that need no pass of their own: lines, rejects, training rows, cells missing and cut."""
        rows, log_format, columns = parsed.rows, self.options.data, self.options.categorical_columns
        count_bins = choose_counting(self.options.kernels).count_bins
        present = presence(rows, columns)
        return ChunkCounts(
            num_lines=chunk.num_lines,
            rejects_by_reason=parsed.rejects_by_reason,
            rejects_tsv=parsed.rejects_tsv,
            num_training_rows=int(training.sum()),
            numeric=[],
            missing=[int(np.count_nonzero(training > each)) for each in present],
            cut={
                name: int(np.count_nonzero(cut & training)) for name, cut in _cut_rows(rows, columns, present).items()
            },
            values=[],
            texts=[],
            bins=[
                (count_float_bins if name in log_format.float_fields else count_bins)(*rows.columns[name], training)
                for name in log_format.sized_fields
            ],
            spans=ChunkSpans.of(rows.row_numbers, self.labelled(rows), rows.labels),
        )

    def labelled(self, rows: ParsedRows | Examples) -> NDArray[np.bool_]:
        """Return which rows [n] have a label. One that lacks it is no click and has weight 0."""
        if self.options.data.label != "optional" or rows.weights is None:
            return np.ones(len(rows.labels), np.bool_)
        return (rows.weights != 0) | (rows.labels != 0)

    def _numeric(self, rows: ParsedRows, name: str, training: NDArray[np.bool_]) -> NumericStatistics:
        numbers, present = rows.columns[name]
        is_float = name in self.options.data.float_fields
        return (NumericStatistics.of_floats if is_float else NumericStatistics.of)(numbers[present & training])

    def _sample(self, rows: ParsedRows, training: NDArray[np.bool_]) -> RowSample:
        names = self.options.data.numeric_fields
        numbers = np.empty((len(names), int(training.sum())))
        for place, name in enumerate(names):
            cells, present = rows.columns[name]
            numbers[place] = np.where(present, cells, np.nan)[training]
        return RowSample.of(splitmix64(self.options.seed, rows.row_numbers[training]), numbers)


def _cut_rows(
    rows: ParsedRows, columns: Sequence[CategoricalColumn], presence: Sequence[NDArray[np.bool_]]
) -> dict[str, NDArray[np.bool_]]:
    """Return by name which rows [n] have more values than are kept. `presence` is that of the columns [C, n]."""
    cut = {name: lists.cut for name, lists in rows.lists.items()}
    for column, present in zip(columns, presence, strict=True):
        if column.cross and column.is_list:
            lengths = [rows.lists[part].lengths for part in column.cross if part in rows.lists]
            cut[column.name] = present & (np.prod(lengths, axis=0) > column.max_length)
    return cut
