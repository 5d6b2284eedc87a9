"""Statistics of the training rows: workers count a chunk each, `count_log` adds the counts up.

Workers import this file, so it imports neither pyarrow nor tqdm: they cost each worker memory and start-up time.

Letters: n rows, C categorical columns.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_prep.execution import memory
from data_prep.execution.folder import REJECTS_FILE, Workplace
from data_prep.kernels.choose import choose_kernels
from data_prep.kernels.rows import Chunk, LogRows, ParsedChunk
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.split import TRAIN, SplitRule
from data_prep.statistics.profile import ChunkSpans
from data_prep.statistics.statistics import ChunkCounts, IntegerStatistics, LogStatistics

if TYPE_CHECKING:
    from data_prep.raw_log.reading import LogReading

_REJECTS_SHOWN = 5
_REJECT_BYTES_SHOWN = 300
_SEPARATORS = "\t,;|"


def new_statistics(options: PrepareOptions, workplace: Workplace, num_workers: int) -> LogStatistics:
    """Return empty statistics; their counts may take the memory that `memory_limit` leaves them."""
    return LogStatistics(
        options, workplace.work_folder, memory.counts_bytes(options, num_workers, workplace.chunk_bytes)
    )


def count_log(
    reading: LogReading, split: SplitRule, options: PrepareOptions, statistics: LogStatistics, folder: Path
) -> None:
    """First pass over the log: fill `statistics` and write rejects.tsv."""
    with (folder / REJECTS_FILE).open("wb") as rejects:

        def consume(counts: ChunkCounts) -> None:
            statistics.add(counts)
            rejects.write(counts.rejects_tsv)

        reading.run(ChunkCounter(split, options).count, consume, "counts")


@dataclass(frozen=True)
class ChunkCounter:
    """The workers' task of the first pass."""

    split: SplitRule
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


def count_lines(
    kernels: ModuleType, chunk: Chunk, parsed: ParsedChunk, training: NDArray[np.bool_], missing: list[int]
) -> ChunkCounts:
    """Return the counts that need no pass of their own: lines, rejects, training rows and their missing values [C]."""
    rows = parsed.rows
    return ChunkCounts(
        num_lines=chunk.num_lines,
        rejects_by_reason=parsed.rejects_by_reason,
        rejects_tsv=parsed.rejects_tsv,
        num_training_rows=int(training.sum()),
        integers=[],
        missing=missing,
        values=[],
        texts=[],
        bins=[
            kernels.count_bins(integers, present, training)
            for integers, present in zip(rows.integers, rows.integers_present, strict=True)
        ],
        spans=ChunkSpans.of(rows.row_numbers, rows.labels),
    )


def count_missing(rows: LogRows, training: NDArray[np.bool_], options: PrepareOptions) -> list[int]:
    """Return the number of training rows in which each categorical column [C] is missing."""
    numbers_present = [*rows.values_present, *rows.integers_present]  # hex values, then buckets
    presence = (
        (rows.texts_present if column.is_text else numbers_present)[column.place]
        for column in options.categorical_columns
    )
    return [int(np.sum(training & ~present)) for present in presence]


def check_statistics(
    statistics: LogStatistics, options: PrepareOptions, log_name: str, folder: Path, is_fitted: bool
) -> None:
    """Raise ValueError if the log is empty, has too many bad lines, or no training row to fit anything to."""
    if statistics.num_lines == 0:
        raise ValueError(f"{log_name} is empty; expected lines of {options.data.in_words}")
    limit = options.max_reject_fraction * statistics.num_lines
    if statistics.num_rejects > limit:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(statistics.rejects_by_reason.items()))
        lines = [printable(line[:_REJECT_BYTES_SHOWN]) for line in _first_rejects(folder, _REJECTS_SHOWN)]
        raise ValueError(
            f"{statistics.num_rejects:,} of {statistics.num_lines:,} lines of {log_name} are bad ({reasons}), more "
            f"than prepare.max_reject_fraction={options.max_reject_fraction:g} allows. The first ones "
            "(line number, reason, line):\n" + "\n".join(lines) + _other_form(statistics, options, folder)
        )
    if statistics.num_training_rows == 0 and is_fitted:
        raise ValueError(
            f"{log_name}: none of {statistics.num_lines:,} lines is a training row; give more lines or a larger "
            "prepare.train_fraction"
        )


def _other_form(statistics: LogStatistics, options: PrepareOptions, folder: Path) -> str:
    """Return advice if most bad lines have other columns than the log should, else ""."""
    rejects = statistics.rejects_by_reason
    if 2 * (rejects["columns"] + rejects["too long"]) < statistics.num_lines:
        return ""
    line = _first_rejects(folder, 1)[0].split(b"\t", 2)[2].decode(errors="replace")
    if "\r" in line:
        return (
            "\nIt has \\r within; lines end in \\n or \\r\\n here: change the line ends, for example by tr '\\r' '\\n'"
        )
    separator = max(_SEPARATORS, key=line.count)
    return (
        f"\nThe first one has {line.count(separator) + 1} columns between {separator!r}; the preparation expects "
        f"{options.data.in_words}. Another log is described by a file as in configs/data/: --data FILE"
    )


def _first_rejects(folder: Path, count: int) -> list[bytes]:
    with (folder / REJECTS_FILE).open("rb") as rejects:
        return [line.rstrip(b"\r\n") for line in itertools.islice(rejects, count)]


def printable(line: bytes) -> str:
    """Return a line for a terminal, with escapes for what a terminal would act on."""
    text = line.decode("utf-8", errors="backslashreplace")
    return "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in text)
