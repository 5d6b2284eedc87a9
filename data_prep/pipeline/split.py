"""Rules that assign rows to splits: by a hash of the row's number, by its position in the log, or by its file."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.hashing import GOLDEN, mix64
from data_prep.execution.pieces import Pieces, storable
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parsed import Chunk, ParsedRows
from data_prep.options.prepare_options import PrepareOptions

if TYPE_CHECKING:  # workers import this file without what passes over the log need
    from data_prep.raw_log.reading import LogReading

Times: TypeAlias = NDArray[np.int64]  # in ms since 1970
_SPAN_BITS = 22  # spans of 70 minutes: one of them holds few of most logs' rows
_BLOCK_ROWS = 1 << 20
NO_TIME, _AFTER_ALL = np.iinfo(np.int64).min, np.iinfo(np.int64).max

TRAIN, VALID, TEST = range(3)  # positions in schema.SPLITS
_LABELS = (False, True)
# A stratified split searches for each bound among the hashes within this distance of the bound's fraction. If chance
# has moved the bound further away, as in a small log, among all hashes.
_HALF_WIDTHS = (0.02, 1.0)


def splitmix64(seed: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a hash of (seed, number) for each number [n]: that output, from 0, of the SplitMix64 generator."""
    return mix64(np.uint64(seed) + (numbers.astype(np.uint64) + np.uint64(1)) * GOLDEN)


class RowsToSplit(NamedTuple):
    """Rows [n] of a file of the log, for a rule's `assign`, which returns TRAIN, VALID or TEST for each [n]."""

    numbers: NDArray[np.int64]  # of their lines
    labels: NDArray[np.bool_] = np.empty(0, np.bool_)  # for a stratified split
    file: int = 0  # for a split by files
    times: Times = np.empty(0, np.int64)  # for a split by time


@dataclass(frozen=True)
class HashSplit:
    """Assigns rows by the top 53 bits of their hash, so that bounds computed as floats are exact."""

    seed: int
    train_end: int
    valid_end: int

    def assign(self, rows: RowsToSplit) -> NDArray[np.int8]:
        return _between(splitmix64(self.seed, rows.numbers) >> np.uint64(11), self.train_end, self.valid_end)


@dataclass(frozen=True)
class ChronologicalSplit:
    """Assigns the log's last lines to test, those before them to valid."""

    train_end: int
    valid_end: int

    def assign(self, rows: RowsToSplit) -> NDArray[np.int8]:
        return _between(rows.numbers, self.train_end, self.valid_end)


@dataclass(frozen=True)
class TimeSplit:
    """Assigns the newest rows to test, those before them to valid. Rows of one time are ordered by their lines.

    A bound is the time and the line of the first row after it. Rows without a time are the oldest.
    """

    column: str
    train_end: tuple[int, int]
    valid_end: tuple[int, int]

    def assign(self, rows: RowsToSplit) -> NDArray[np.int8]:
        splits = np.zeros(len(rows.numbers), np.int8)
        for time, line in (self.train_end, self.valid_end):
            splits += (rows.times > time) | (rows.times == time) & (rows.numbers >= line)
        return splits


@dataclass(frozen=True)
class StratifiedSplit:
    """Assigns exact fractions of the clicks and of the other rows, each in the order of their hashes."""

    seed: int
    train_ends: tuple[int, int]  # by label: the first hash after train, 2**64 if there is none
    valid_ends: tuple[int, int]

    def assign(self, rows: RowsToSplit) -> NDArray[np.int8]:
        hashes = splitmix64(self.seed, rows.numbers)
        splits = np.empty(len(hashes), np.int8)
        for label in _LABELS:
            of_label = rows.labels == label
            splits[of_label] = _between(hashes[of_label], self.train_ends[label], self.valid_ends[label])
        return splits


@dataclass(frozen=True)
class FileSplit:
    """Assigns all rows of a file of the log to one split."""

    of_files: tuple[int, ...]  # TRAIN, VALID or TEST of each file of the log

    def assign(self, rows: RowsToSplit) -> NDArray[np.int8]:
        return np.full(len(rows.numbers), self.of_files[rows.file], np.int8)


SplitRule = HashSplit | ChronologicalSplit | TimeSplit | StratifiedSplit | FileSplit


def assign_rows(split: SplitRule, rows: ParsedRows, file: int) -> NDArray[np.int8]:
    """Return TRAIN, VALID or TEST for each row [n] of the log's file number `file`."""
    times = times_of(rows, split.column) if isinstance(split, TimeSplit) else np.empty(0, np.int64)
    return split.assign(RowsToSplit(rows.row_numbers, rows.labels, file, times))


def times_of(rows: ParsedRows, column: str) -> Times:
    """Return the times [n] that decide a chronological split, those that are missing below all others."""
    times, present = rows.columns[column]
    return np.where(present, times, NO_TIME)


@dataclass(frozen=True)
class TimeReader:
    """The workers' task of a split by time."""

    options: PrepareOptions

    def read(self, chunk: Chunk) -> Times:
        """Return time and line [n, 2] of a chunk's good lines."""
        rows = choose_kernels(self.options.kernels).parse_chunk(chunk, self.options.data).rows
        return np.stack([times_of(rows, self.options.split_time), rows.row_numbers], axis=1)


def split_by_time(column: str, fractions: tuple[float, float], path: Path) -> TimeSplit:
    """Return the rule by which the oldest rows are train, the next valid. The file has what `TimeReader` returned.

    Memory is that of the log's spans of time, 7,500 a year.
    """
    by_span: Counter[int] = Counter()
    for times, _ in _blocks(path):
        in_block, counts = np.unique(times >> _SPAN_BITS, return_counts=True)
        by_span.update(dict(zip(in_block.tolist(), counts.tolist(), strict=True)))
    spans = sorted(by_span)
    ends = np.cumsum([0, *(by_span[span] for span in spans)])
    bounds = []
    for fraction in fractions:
        rank = round(fraction * int(ends[-1]))
        place = int(np.searchsorted(ends[1:], rank, side="right"))
        is_within = place < len(spans)
        bounds.append(_row_of_span(path, spans[place], rank - int(ends[place])) if is_within else (_AFTER_ALL, 0))
    return TimeSplit(column, *bounds)


def _row_of_span(path: Path, span: int, rank: int) -> tuple[int, int]:
    """Return time and line of a span's row with this rank, by time, then line. The file has rows in the log's order."""
    first, counts = span << _SPAN_BITS, np.zeros(1 << _SPAN_BITS, np.int64)
    for times, _ in _blocks(path):
        counts += np.bincount(times[times >> _SPAN_BITS == span] - first, minlength=len(counts))
    np.cumsum(counts, out=counts)
    place = int(np.searchsorted(counts, rank, side="right"))
    rank -= int(counts[place - 1]) if place else 0
    for times, lines in _blocks(path):
        of_time = lines[times == first + place]
        if rank < len(of_time):
            return first + place, int(of_time[rank])
        rank -= len(of_time)
    raise AssertionError("the passes over the log counted the same rows")


def _blocks(path: Path) -> Iterator[tuple[Times, Times]]:
    with path.open("rb") as file:
        while len(rows := np.fromfile(file, np.int64, 2 * _BLOCK_ROWS).reshape(-1, 2)):
            yield rows[:, 0], rows[:, 1]


@dataclass(frozen=True)
class LabelHashes:
    """Hashes of the rows of one label: their number and, for each range, the number below it and the hashes inside."""

    num_rows: int
    num_below: tuple[int, ...]
    inside: tuple[NDArray[np.uint64], ...]

    @classmethod
    def of(cls, hashes: NDArray[np.uint64], ranges: tuple[tuple[int, int], ...]) -> LabelHashes:
        """Sort hashes [n] into half-open ranges."""
        parts = [_between(hashes, low, high) for low, high in ranges]
        return cls(
            len(hashes),
            tuple(int(np.sum(part == 0)) for part in parts),
            tuple(hashes[part == 1] for part in parts),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[LabelHashes]) -> LabelHashes:
        """Join the hashes of at least one part."""
        return cls(
            sum(part.num_rows for part in parts),
            tuple(map(sum, zip(*(part.num_below for part in parts), strict=True))),
            tuple(map(np.concatenate, zip(*(part.inside for part in parts), strict=True))),
        )

    def end_of(self, index: int, fraction: float) -> int | None:
        """Return the first hash after the lowest `fraction` of them, or None if it is not in range `index`."""
        rank = round(fraction * self.num_rows)
        if rank == self.num_rows:
            return 2**64
        inside = rank - self.num_below[index]
        if not 0 <= inside < len(self.inside[index]):
            return None
        return int(np.partition(self.inside[index], inside)[inside])


storable(HashSplit, ChronologicalSplit, TimeSplit, StratifiedSplit, FileSplit, LabelHashes)


@dataclass(frozen=True)
class LabelHasher:
    """The workers' task of a stratified split's pass: hash the rows of each label."""

    options: PrepareOptions
    ranges: tuple[tuple[int, int], ...]

    def hash_chunk(self, chunk: Chunk) -> list[LabelHashes]:
        rows = choose_kernels(self.options.kernels).parse_chunk(chunk, self.options.data).rows
        return self.hash_rows(rows.row_numbers, rows.labels)

    def hash_rows(self, row_numbers: NDArray[np.int64], labels: NDArray[np.bool_]) -> list[LabelHashes]:
        hashes = splitmix64(self.options.seed, row_numbers)
        return [LabelHashes.of(hashes[labels == label], self.ranges) for label in _LABELS]


def find_split(reading: LogReading, options: PrepareOptions, pieces: Pieces) -> SplitRule:
    """Return the rule that the options name, which an interrupted run may have found. Finding it may take a pass of its
    own.
    """
    split: SplitRule | None = pieces.read("split")
    if split is None:
        if options.split_time:
            split = _find_times(reading, options, pieces.folder / "times-of-rows")
        else:
            names = [file.name for file in reading.files]
            split = make_split(options, reading.count_lines, functools.partial(_read_labels, reading), names)
        pieces.write("split", split)
        pieces.clear("labels-")
        pieces.clear("times-")
    return split


def _find_times(reading: LogReading, options: PrepareOptions, path: Path) -> TimeSplit:
    with path.open("wb") as file:
        reading.run(TimeReader(options).read, lambda rows: file.write(rows.data), "times")
    fractions = (options.train_fraction, options.train_fraction + options.valid_fraction)
    return split_by_time(options.split_time, fractions, path)


def _read_labels(reading: LogReading, hasher: LabelHasher) -> list[list[LabelHashes]]:
    by_chunk = [hasher.hash_rows(np.empty(0, np.int64), np.empty(0, np.bool_))]  # so that an empty log has one
    # A second pass, over other ranges, is another task.
    title = f"labels-{xxhash.xxh3_64_hexdigest(repr(hasher.ranges).encode())}"
    reading.run(hasher.hash_chunk, by_chunk.append, title)
    return [list(parts) for parts in zip(*by_chunk, strict=True)]


# Passes over the log and returns the hasher's results by label and chunk.
ReadLabels = Callable[[LabelHasher], list[list[LabelHashes]]]


def make_split(
    options: PrepareOptions,
    count_lines: Callable[[], int],
    read_labels: ReadLabels,
    file_names: Sequence[str] = (),
) -> SplitRule:
    """Return the rule that the options name. If it needs a pass over the log, it calls `count_lines` or `read_labels`.

    Raises ValueError if the log's files, `file_names`, cannot be split as the options ask.
    """
    if options.split == "files":
        return _by_file(options, file_names)
    train_end = options.train_fraction
    valid_end = options.train_fraction + options.valid_fraction
    if options.split == "hash":
        return HashSplit(options.seed, round(train_end * 2**53), round(valid_end * 2**53))
    if options.split == "stratified":
        return _stratify(options, (train_end, valid_end), read_labels)
    num_lines = count_lines()
    return ChronologicalSplit(round(train_end * num_lines), round(valid_end * num_lines))


def _by_file(options: PrepareOptions, names: Sequence[str]) -> FileSplit:
    split_of: dict[int, int] = {}
    for split, patterns in ((VALID, options.valid_files), (TEST, options.test_files)):
        for pattern in patterns:
            matching = [
                index
                for index, name in enumerate(names)
                if fnmatchcase(name, pattern) or fnmatchcase(PurePosixPath(name).name, pattern)
            ]
            if not matching:
                raise ValueError(f"no file of the log is named {pattern!r}; they are: {', '.join(names)}")
            for index in matching:
                if split_of.setdefault(index, split) != split:
                    raise ValueError(f"{names[index]} is in prepare.valid_files and in prepare.test_files")
    return FileSplit(tuple(split_of.get(index, TRAIN) for index in range(len(names))))


def _stratify(options: PrepareOptions, fractions: tuple[float, float], read_labels: ReadLabels) -> StratifiedSplit:
    for half_width in _HALF_WIDTHS:
        ranges = tuple(
            (round(max(fraction - half_width, 0) * 2**64), round(min(fraction + half_width, 1) * 2**64))
            for fraction in fractions
        )
        by_label = [LabelHashes.concatenate(parts) for parts in read_labels(LabelHasher(options, ranges))]
        all_ends = [label.end_of(i, fractions[i]) for i in range(2) for label in by_label]
        ends = [end for end in all_ends if end is not None]
        if len(ends) == len(all_ends):
            return StratifiedSplit(options.seed, (ends[0], ends[1]), (ends[2], ends[3]))
    raise AssertionError("all hashes are within the whole range")


def _between(numbers: NDArray[np.integer], train_end: int, valid_end: int) -> NDArray[np.int8]:
    # A bound of 2**64 is no uint64. NumPy compares arrays with whole numbers of any size.
    return (numbers >= train_end).astype(np.int8) + (numbers >= valid_end)
