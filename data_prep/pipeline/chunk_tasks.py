"""Define the tasks that workers run on a chunk of the log.

In the first pass a task counts the chunk's training rows; in the second pass it encodes all rows of the chunk.

Worker processes import this file. It imports neither pyarrow nor tqdm, because either would cost each worker memory
and start-up time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.encoder import RowEncoder
from data_prep.execution.pieces import storable
from data_prep.execution.prepared_folder import REJECTS_FILE, WorkDir
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.numpy_kernels import count_float_bins
from data_prep.kernels.parsed import Chunk, ParsedChunk, ParsedRows, presence
from data_prep.options.columns import CategoricalColumn
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline import memory_and_disk
from data_prep.pipeline.split import TRAIN, SplitRule, are_sampled, assign_rows, splitmix64
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import NO_ID, SPLITS
from data_prep.statistics.statistics import (
    ChunkCounts,
    ChunkSpans,
    LogStatistics,
    NumericStatistics,
    RowSample,
    may_be_sampled,
)
from data_prep.statistics.value_counts import count_numbers, count_texts

if TYPE_CHECKING:
    from data_prep.encoding.prepared_vocabulary import BaseVocabulary
    from data_prep.raw_log.reading import LogReading


# The result of encoding a chunk is a dictionary: the name of each split maps to its rows, and this key to an
# `EncodedRest`.
REST = "rest"


def new_statistics(options: PrepareOptions, work_dir: WorkDir, num_workers: int) -> LogStatistics:
    """Return statistics of a log that have counted nothing yet.

    Counts that later exceed their share of `memory_limit` are written to the work folder.
    """
    return LogStatistics(
        options, work_dir.work_folder, memory_and_disk.counts_bytes(options, num_workers, work_dir.chunk_bytes)
    )


def count_log(
    reading: LogReading,
    split: SplitRule,
    options: PrepareOptions,
    statistics: LogStatistics,
    folder: Path,
    base: BaseVocabulary | None = None,
) -> None:
    """Run the first pass over the log: add the counts of its lines to `statistics`, and write `folder`/rejects.tsv.

    `split` is the rule that says which rows are training rows. `base` is the vocabulary of another prepared folder that
    this preparation extends, or None. A value of a text column that is a whole number is counted in the form that
    `base` has for such values: 7 or 7.0.
    """
    of_options: dict[str, bool | None] = dict.fromkeys(options.data.point_zero, True)
    counter = ChunkCounter(split, options, (base.whole_numbers if base else {}) | of_options)
    with (folder / REJECTS_FILE).open("wb") as rejects:

        def consume(counts: ChunkCounts) -> None:
            statistics.add(counts)
            rejects.write(counts.rejects_tsv)

        reading.run(counter.count, consume, "counts")


@dataclass(frozen=True)
class ChunkCounter:
    """The task that workers run in the first pass: parse a chunk of the log and count its training rows.

    Only training rows with a label and a weight above 0 are counted. A training learns nothing from all other rows, so
    a value that occurs only in them must not get an id.
    """

    split: SplitRule
    options: PrepareOptions
    # For each text column, by name, the form into which its values that are whole numbers are converted before they
    # are counted: True for 7.0, False for 7, None to leave them unchanged.
    whole_numbers: Mapping[str, bool | None] = field(default_factory=dict)

    def count(self, chunk: Chunk) -> ChunkCounts:
        """Parse a chunk of the log.

        Return the counts of its lines, and of each value and number in its training rows.
        """
        kernels = choose_kernels(self.options.kernels)
        parsed: ParsedChunk = kernels.parse_chunk(chunk, self.options.data)
        rows = parsed.rows.with_lists(self.options.data, kernels).with_whole_numbers(self.whole_numbers)
        parsed = replace(parsed, rows=rows)
        rows = parsed.rows
        training = (assign_rows(self.split, rows, chunk.file.place) == TRAIN) & rows.counting
        return replace(
            self.count_lines(chunk, parsed, training),
            numeric=[self._numeric(rows, name, training) for name in self.options.data.numeric_fields],
            sample=self._sample(rows, training) if self.options.samples_rows else None,
            values=count_numbers(rows, self.options, training),
            texts=count_texts(rows, self.options, training),
        )

    def count_lines(self, chunk: Chunk, parsed: ParsedChunk, training: NDArray[np.bool_]) -> ChunkCounts:
        """Return those counts of a chunk that affect neither ids nor numeric transforms.

        They are the numbers of lines, of rejected lines, of missing cells, and of lists that are cut to their maximum
        length, the histograms of numbers, and the number of rows in each span of consecutive lines (`ChunkSpans`).
        `training` [n] marks the training rows of `parsed` to count. The fields `numeric`, `values` and `texts` of the
        result stay empty.
        """
        rows, log_format, columns = parsed.rows, self.options.data, self.options.categorical_columns
        count_bins = choose_kernels(self.options.kernels).count_bins
        present = presence(rows, columns)
        return ChunkCounts(
            num_lines=chunk.num_lines,
            rejects_by_reason=parsed.rejects_by_reason,
            rejects_tsv=parsed.rejects_tsv,
            num_training_rows=int(training.sum()),
            numeric=[],
            missing=[int(np.count_nonzero(training > each)) for each in present],
            missing_vectors=[
                int(np.count_nonzero(training > rows.columns[name].present)) for name in log_format.vector_fields
            ],
            cut={
                name: int(np.count_nonzero(cut & training)) for name, cut in _cut_rows(rows, columns, present).items()
            },
            values=[],
            texts=[],
            bins=[
                (count_float_bins if name in log_format.float_fields else count_bins)(*rows.columns[name], training)
                for name in log_format.sized_fields
            ],
            spans=ChunkSpans.of(rows.row_numbers, rows.labelled, rows.labels),
        )

    def _numeric(self, rows: ParsedRows, name: str, training: NDArray[np.bool_]) -> NumericStatistics:
        numbers, present = rows.columns[name]
        is_float = name in self.options.data.float_fields
        return (NumericStatistics.of_floats if is_float else NumericStatistics.of)(numbers[present & training])

    def _sample(self, rows: ParsedRows, training: NDArray[np.bool_]) -> RowSample:
        log_format = self.options.data
        hashes = splitmix64(self.options.seed, rows.row_numbers)
        if log_format.vector_fields:
            num_components = sum(form.width for form in log_format.vectors.values())
            training = training & may_be_sampled(hashes, rows.row_numbers, num_components)
        chosen = np.flatnonzero(training)
        numbers = np.empty((len(log_format.numeric_fields), len(chosen)))
        for place, name in enumerate(log_format.numeric_fields):
            cells, present = rows.columns[name]
            numbers[place] = np.where(present, cells, np.nan)[training]
        vectors = [np.zeros((len(chosen), 0), np.float32)]
        for name in log_format.vector_fields:
            values, present = rows.columns[name].take(chosen)
            vectors.append(np.where(present[:, None], values, np.float32(np.nan)))
        return RowSample.of(hashes[training], numbers, np.concatenate(vectors, axis=1))


def _cut_rows(
    rows: ParsedRows, columns: Sequence[CategoricalColumn], presence: Sequence[NDArray[np.bool_]]
) -> dict[str, NDArray[np.bool_]]:
    """Return, for each list column by name, a mask [n] of the rows whose list was cut to `max_length` values.

    `presence` [C, n] tells which cells of the categorical columns are present. A cross of list columns is cut in a row
    if the product of the lengths of that row's lists exceeds the cross's `max_length`.
    """
    cut = {name: lists.cut for name, lists in rows.lists.items()}
    for column, present in zip(columns, presence, strict=True):
        if column.cross and column.is_list:
            lengths = [rows.lists[part].lengths for part in column.cross if part in rows.lists]
            cut[column.name] = present & (np.prod(lengths, axis=0) > column.max_length)
    return cut


@dataclass(frozen=True)
class EncodedRest:
    """The result of encoding a chunk of the log besides the encoded rows: line numbers, counts, and weight statistics.

    The keys of the dictionaries are the names of the splits.
    """

    row_numbers: dict[str, NDArray[np.int64]]  # Line numbers in the log of the rows, by split.
    clicks: dict[str, int]
    # For each split, the number of rows without a label (`unlabelled`) and the number of rows of weight 0
    # (`weightless`).
    unlabelled: dict[str, int]
    weightless: dict[str, int]
    weights: dict[str, NumericStatistics]  # Statistics of those weights of the rows that are above 0, by split.
    # For each categorical column [C], the number of training rows with an out-of-vocabulary value. Only rows with a
    # label and a weight above 0 are counted. A row with a list is counted if any value of the list is out of
    # vocabulary.
    unknown: NDArray[np.int64]
    # Counts of the chunk's lines, rejected lines and missing cells. None if a first pass over the log has counted them.
    counts: ChunkCounts | None


storable(Examples, EncodedRest)


@dataclass(frozen=True)
class Encoder:
    """The task that workers run in the second pass: encode a chunk of the log and split its rows.

    The object is the same for all chunks, so each worker receives it only once. If `counts` is true, there was no first
    pass, and the task also counts lines, rejected lines and missing values.
    """

    rows: RowEncoder
    counter: ChunkCounter
    counts: bool

    def encode(self, chunk: Chunk) -> dict[str, Examples | EncodedRest]:
        """Parse a chunk of the log, and encode and split the lines that are not rejected.

        Return a dictionary. For the name of each split, it has the encoded rows of the split. For the last key, `REST`,
        it has the chunk's `EncodedRest`. If only a sample of the negatives is kept, the other training negatives count
        in the `EncodedRest`, but are in no split.
        """
        parsed, encoded = self.rows.encode(chunk)
        rows = parsed.rows
        splits = assign_rows(self.counter.split, rows, chunk.file.place)
        training, is_sampled = splits == TRAIN, self.counter.options.keep_negatives < 1
        if is_sampled:
            encoded = self._weighed(encoded, training & rows.labelled & ~rows.labels)
        row_indices = {name: np.flatnonzero(splits == index) for index, name in enumerate(SPLITS)}
        by_split = {name: encoded.take(of_split) for name, of_split in row_indices.items()}
        counting, ids = rows.counting, by_split["train"].ids
        is_unknown = (ids < self.rows.first_own_id) & (ids != NO_ID) & counting[row_indices["train"], None]
        lengths = self.rows.lengths
        # A list column has several ids per row; combine them into one flag per column. The condition skips this if
        # there are no lists, because reduceat would then take two thirds of the counting time for nothing.
        if ids.shape[1] > len(lengths):
            is_unknown = np.logical_or.reduceat(is_unknown, np.cumsum(lengths) - lengths, axis=1)
        if is_sampled:
            options, of_train = self.counter.options, row_indices["train"]
            in_sample = are_sampled(options.seed, rows.row_numbers[of_train], options.keep_negatives)
            kept = np.flatnonzero(in_sample | rows.labels[of_train] | ~rows.labelled[of_train])
            row_indices["train"], by_split["train"] = of_train[kept], by_split["train"].take(kept)
        rest = EncodedRest(
            {name: rows.row_numbers[of_split] for name, of_split in row_indices.items()},
            {name: int(part.labels.sum()) for name, part in by_split.items()},
            {name: int(np.count_nonzero(~rows.labelled[of_split])) for name, of_split in row_indices.items()},
            {name: 0 if part.weights is None else int((part.weights == 0).sum()) for name, part in by_split.items()},
            {name: _weight_statistics(part) for name, part in by_split.items()},
            is_unknown.sum(axis=0),
            self.counter.count_lines(chunk, parsed, training & counting) if self.counts else None,
        )
        return {**by_split, REST: rest}

    def _weighed(self, rows: Examples, are_negatives: NDArray[np.bool_]) -> Examples:
        """Return rows in which the weights of the negatives are divided by the fraction of them that is kept.

        `are_negatives` [n] marks these rows. Raise ValueError if a weight becomes too large for a float32.
        """
        factor = np.float32(1 / self.counter.options.keep_negatives)
        weights = np.ones(len(rows), np.float32) if rows.weights is None else rows.weights
        with np.errstate(over="ignore"):
            weights = np.where(are_negatives, weights * factor, weights)
        if not np.isfinite(weights).all():
            raise ValueError(
                f"prepare.keep_negatives multiplies the weights of negatives by {factor:g}, and one of the column "
                f"{self.counter.options.weight_source} is then beyond the range of a float32; give smaller weights"
            )
        return replace(rows, weights=weights)


def _weight_statistics(rows: Examples) -> NumericStatistics:
    """Return count, sums and extremes of the weights above 0 of encoded rows.

    The count is 0 if the rows have no weights.
    """
    weights = np.zeros(0, np.float32) if rows.weights is None else rows.weights
    return NumericStatistics.of_floats(weights[weights > 0].astype(np.float64))
