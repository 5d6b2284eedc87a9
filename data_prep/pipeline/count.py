"""The readings before the rows are written: labels where the split depends on them, then counts and rejects."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from data_prep.execution import memory
from data_prep.execution.folder import REJECTS_FILE, Workplace
from data_prep.kernels.choose import choose_kernels
from data_prep.kernels.rows import Chunk
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.chunk_counter import ChunkCounter
from data_prep.pipeline.split import HashesOfLabel, LabelHasher, Split
from data_prep.raw_log.reading import LogReading
from data_prep.statistics.statistics import ChunkCounts, LogStatistics

_REJECTS_SHOWN = 5
_REJECT_BYTES_SHOWN = 300
_SEPARATORS = "\t,;|"


def new_statistics(options: PrepareOptions, workplace: Workplace, num_workers: int) -> LogStatistics:
    """Empty statistics, whose counts have the room that `memory_limit` leaves them."""
    return LogStatistics(
        options, workplace.work_folder, memory.counts_bytes(options, num_workers, workplace.chunk_bytes)
    )


@dataclass(frozen=True)
class _LabelReader:
    """What a stratified split has to know of a chunk."""

    hasher: LabelHasher
    options: PrepareOptions

    def look(self, chunk: Chunk) -> list[HashesOfLabel]:
        rows = choose_kernels(self.options.kernels).parse_chunk(chunk, self.options.data).rows
        return self.hasher.look(rows.row_numbers, rows.labels)


def read_labels(reading: LogReading, options: PrepareOptions, hasher: LabelHasher) -> list[list[HashesOfLabel]]:
    """A reading for `split: stratified`: what the hasher finds, by label and chunk."""
    nothing = hasher.look(np.empty(0, np.int64), np.empty(0, np.bool_))
    by_chunk = [nothing]  # of an empty log, too
    title = f"labels-{xxhash.xxh3_64_hexdigest(repr(hasher.ranges).encode())}"  # there may be a second one, of others
    reading.run(_LabelReader(hasher, options).look, by_chunk.append, title)
    return [list(parts) for parts in zip(*by_chunk, strict=True)]


def count_log(
    reading: LogReading, split: Split, options: PrepareOptions, statistics: LogStatistics, folder: Path
) -> None:
    """First reading: statistics of the training rows, and rejects.tsv."""
    counter = ChunkCounter(split, options)
    with (folder / REJECTS_FILE).open("wb") as rejects:

        def consume(counts: ChunkCounts) -> None:
            statistics.add(counts)
            rejects.write(counts.rejects_tsv)

        reading.run(counter.count, consume, "counts")


def check_statistics(
    statistics: LogStatistics, options: PrepareOptions, log_name: str, folder: Path, is_fitted: bool
) -> None:
    """Raise ValueError where the log is empty, has too many bad lines, or no training row to fit anything to."""
    if statistics.num_lines == 0:
        raise ValueError(f"{log_name} is empty; expected lines of {options.data.describe()}")
    limit = options.max_reject_fraction * statistics.num_lines
    if statistics.num_rejects > limit:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(statistics.rejects_by_reason.items()))
        raise ValueError(
            f"{statistics.num_rejects:,} of {statistics.num_lines:,} lines of {log_name} are bad ({reasons}), more "
            f"than prepare.max_reject_fraction={options.max_reject_fraction:g} allows. The first ones "
            f"(line number, reason, line):\n{_first_rejects(folder)}{_other_form(statistics, options, folder)}"
        )
    if statistics.num_training_rows == 0 and is_fitted:
        raise ValueError(
            f"{log_name}: none of {statistics.num_lines:,} lines is a training row; give more lines or a larger "
            "prepare.train_fraction"
        )


def _other_form(statistics: LogStatistics, options: PrepareOptions, folder: Path) -> str:
    """Advice where most bad lines have other columns than the log should."""
    rejects = statistics.rejects_by_reason
    if 2 * (rejects["columns"] + rejects["too long"]) < statistics.num_lines:
        return ""
    line = _reject_lines(folder, 1)[0].split(b"\t", 2)[2].decode(errors="replace")
    if "\r" in line:
        return (
            "\nIt has \\r within; lines end in \\n or \\r\\n here: change the line ends, for example by tr '\\r' '\\n'"
        )
    separator = max(_SEPARATORS, key=line.count)
    return (
        f"\nThe first one has {line.count(separator) + 1} columns between {separator!r}; the preparation expects "
        f"{options.data.describe()}. Another log is described by a file as in configs/data/: --data FILE"
    )


def _first_rejects(folder: Path) -> str:
    lines = _reject_lines(folder, _REJECTS_SHOWN)
    return "\n".join(printable(line[:_REJECT_BYTES_SHOWN]) for line in lines)


def printable(line: bytes) -> str:
    """A line for a terminal: what it would act on is written as escapes."""
    text = line.decode("utf-8", errors="backslashreplace")
    return "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in text)


def _reject_lines(folder: Path, count: int) -> list[bytes]:
    with (folder / REJECTS_FILE).open("rb") as rejects:
        return [line.rstrip(b"\r\n") for line in itertools.islice(rejects, count)]
