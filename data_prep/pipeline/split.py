"""Assign the rows of a log to train, valid and test.

A rule decides by a hash of the line number, by the position of the line in the log, by time, by label or by file.
"""

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

from common.arrays.hashing import GOLDEN, mix64
from data_prep.execution.pieces import Pieces, storable
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parsed import Chunk, ParsedRows
from data_prep.options.prepare_options import PrepareOptions

if TYPE_CHECKING:  # Workers import this file. Importing the module for reading logs would cost them memory and time.
    from data_prep.raw_log.reading import LogReading

Times: TypeAlias = NDArray[np.int64]  # Milliseconds since 1970.
# To find the row at which a split by time begins, rows are counted first by spans of 2**22 ms, which is 70 minutes, and
# then by ms within one span.
_SPAN_BITS = 22
_BLOCK_ROWS = 1 << 20
NO_TIME, _AFTER_ALL = np.iinfo(np.int64).min, np.iinfo(np.int64).max

TRAIN, VALID, TEST = range(3)  # Indices into schema.SPLITS.
_LABELS = (False, True)
# A stratified split searches for a bound, such as the hash below which 80 % of the clicks lie. Hashes are uniform, so
# this bound is likely near 80 % of the range of hashes, and the first pass over the log only keeps the hashes between
# 78 % and 82 % of the range. In a small log, chance can move the bound further away. Then a second pass keeps all
# hashes.
_HALF_WIDTHS = (0.02, 1.0)


def splitmix64(seed: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each of `numbers` [n].

    The hash of number i is output i, counted from 0, of the SplitMix64 random number generator that starts with `seed`.
    """
    return mix64(np.uint64(seed) + (numbers.astype(np.uint64) + np.uint64(1)) * GOLDEN)


def are_sampled(seed: int, numbers: NDArray[np.int64], fraction: float) -> NDArray[np.bool_]:
    """Return a mask [n] of the rows with the line numbers `numbers` [n] that a sample of `fraction` of all rows has.

    The hash that decides is a hash of the one that splits the rows, so the sample does not depend on the splits.
    """
    return mix64(splitmix64(seed, numbers)) >> np.uint64(11) < round(fraction * 2**53)


class RowsToSplit(NamedTuple):
    """Properties of n rows, from one file of the log, by which a split rule assigns them to train, valid and test.

    The rules' method `assign` takes such an object and returns an array [n] with TRAIN, VALID or TEST for each row.
    """

    numbers: NDArray[np.int64]  # Line numbers of the rows in the log.
    labels: NDArray[np.bool_] = np.empty(0, np.bool_)  # Labels of the rows, which only a stratified split needs.
    file: int = 0  # Index of the rows' file in the log, which only a split by files needs.
    times: Times = np.empty(0, np.int64)  # Times of the rows, which only a split by time needs.


@dataclass(frozen=True)
class HashSplit:
    """A rule that assigns each row by the top 53 bits of the hash of its line number.

    Hashes below `train_end` go to train, the next ones below `valid_end` to valid, and the rest to test. Only 53 bits
    are compared, because a float represents such whole numbers exactly, and the bounds are computed as floats.
    """

    seed: int
    train_end: int
    valid_end: int

    def assign(self, rows: RowsToSplit) -> NDArray[np.int8]:
        return _between(splitmix64(self.seed, rows.numbers) >> np.uint64(11), self.train_end, self.valid_end)


@dataclass(frozen=True)
class ChronologicalSplit:
    """A rule that assigns the first lines of the log to train, the next lines to valid and the last ones to test."""

    train_end: int
    valid_end: int

    def assign(self, rows: RowsToSplit) -> NDArray[np.int8]:
        return _between(rows.numbers, self.train_end, self.valid_end)


@dataclass(frozen=True)
class TimeSplit:
    """A rule that assigns the oldest rows to train, the next ones to valid and the newest ones to test.

    Rows of the same time are ordered by their line numbers. Rows without a time count as the oldest. `train_end` and
    `valid_end` are the time in ms and the line number of the first row after train and after valid.
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
    """A rule that divides clicks and other rows separately, so that all splits have the same click rate.

    Among the rows of each label, those with the lowest hashes go to train, the next ones to valid, and the rest to
    test. The bounds are set so that each split gets exactly its fraction of the clicks and of the other rows.
    """

    seed: int
    # The lowest hash of a row that is not in train, by label (0, 1), or 2**64 if all rows are in train.
    train_ends: tuple[int, int]
    # The lowest hash of a row in test with label 0, and with label 1, or 2**64 if there is no such row.
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
    """A rule that assigns all rows of a file of the log to the same split."""

    of_files: tuple[int, ...]  # The split (TRAIN, VALID or TEST) of each file of the log.

    def assign(self, rows: RowsToSplit) -> NDArray[np.int8]:
        return np.full(len(rows.numbers), self.of_files[rows.file], np.int8)


SplitRule = HashSplit | ChronologicalSplit | TimeSplit | StratifiedSplit | FileSplit


def assign_rows(split: SplitRule, rows: ParsedRows, file: int) -> NDArray[np.int8]:
    """Return TRAIN, VALID or TEST for each row [n], as the rule `split` assigns it.

    `file` is the index, in the log, of the file from which all these rows are.
    """
    times = times_of(rows, split.column) if isinstance(split, TimeSplit) else np.empty(0, np.int64)
    return split.assign(RowsToSplit(rows.row_numbers, rows.labels, file, times))


def times_of(rows: ParsedRows, column: str) -> Times:
    """Return the times [n] that rows have in a timestamp column, in milliseconds since 1970.

    A missing time becomes `NO_TIME`, a number below all times.
    """
    times, present = rows.columns[column]
    return np.where(present, times, NO_TIME)


def read_times(options: PrepareOptions, chunk: Chunk) -> Times:
    """Return the time and the line number of each line of the chunk that is not rejected, int64 [n, 2].

    Times are in milliseconds since 1970. Line numbers count from the start of the log. Workers call this function for a
    split by time.
    """
    rows = choose_kernels(options.kernels).parse_chunk(chunk, options.data).rows
    return np.stack([times_of(rows, options.split_time), rows.row_numbers], axis=1)


def split_by_time(column: str, fractions: tuple[float, float], path: Path) -> TimeSplit:
    """Return the rule that divides the rows of a log by time, so that train, valid and test get fractions of all rows.

    `fractions` are the fraction of the rows in train, and the fraction in train and valid together. The file at `path`
    holds the results of `read_times` for all chunks, one after another. Memory does not grow with the number of
    rows, only with the number of 70-minute spans that have rows: 7,500 for a year.
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
    """Return the time and the line number of one of the rows whose times lie in a certain 70-minute span.

    `span` is the number of the span since 1970. `rank` is the row's index among the rows of the span, ordered by time
    and then by line number. The file at `path` holds (time, line number) of all rows in the order of the log.
    """
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
    """Hashes of the line numbers of the rows with one label (click or no click), kept only in some ranges of values.

    `num_rows` is the number of all hashes. For each range, `num_below` is the number of hashes below the range, and
    `inside` holds the hashes in the range.
    """

    num_rows: int
    num_below: tuple[int, ...]
    inside: tuple[NDArray[np.uint64], ...]

    @classmethod
    def of(cls, hashes: NDArray[np.uint64], ranges: tuple[tuple[int, int], ...]) -> LabelHashes:
        """Count the `hashes` [n] of the rows with one label, and keep the hashes within each of `ranges`."""
        parts = [_between(hashes, low, high) for low, high in ranges]
        return cls(
            len(hashes),
            tuple(int(np.sum(part == 0)) for part in parts),
            tuple(hashes[part == 1] for part in parts),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[LabelHashes]) -> LabelHashes:
        """Return the combined `LabelHashes` of several parts of the log. There must be at least one part."""
        return cls(
            sum(part.num_rows for part in parts),
            tuple(map(sum, zip(*(part.num_below for part in parts), strict=True))),
            tuple(map(np.concatenate, zip(*(part.inside for part in parts), strict=True))),
        )

    def end_of(self, index: int, fraction: float) -> int | None:
        """Return the bound below which `fraction` of all hashes lie: the lowest hash that is not among them.

        The bound is searched among `inside[index]`, the hashes that were kept for one of the ranges. Return None if the
        bound is not one of these hashes. Return 2**64 if all hashes lie below the bound.
        """
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
    """The task for workers that hashes the line numbers of a chunk's rows, separately for each label.

    A stratified split needs these hashes. `ranges` are the ranges of hash values whose hashes are kept (see
    `LabelHashes`).
    """

    options: PrepareOptions
    ranges: tuple[tuple[int, int], ...]

    def hash_chunk(self, chunk: Chunk) -> list[LabelHashes]:
        rows = choose_kernels(self.options.kernels).parse_chunk(chunk, self.options.data).rows
        return self.hash_rows(rows.row_numbers, rows.labels)

    def hash_rows(self, row_numbers: NDArray[np.int64], labels: NDArray[np.bool_]) -> list[LabelHashes]:
        hashes = splitmix64(self.options.seed, row_numbers)
        return [LabelHashes.of(hashes[labels == label], self.ranges) for label in _LABELS]


def find_split(reading: LogReading, options: PrepareOptions, pieces: Pieces) -> SplitRule:
    """Return the rule by which the rows of a log are split, as the options (`prepare.split` and others) ask.

    A chronological or stratified split needs a pass over the log to find its bounds. The rule is stored in `pieces`,
    the files of intermediate results, and a resumed run reads it from there.
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
        reading.run(functools.partial(read_times, options), lambda rows: file.write(rows.data), "times")
    fractions = (options.train_fraction, options.train_fraction + options.valid_fraction)
    return split_by_time(options.split_time, fractions, path)


def _read_labels(reading: LogReading, hasher: LabelHasher) -> list[list[LabelHashes]]:
    # The first element is the result for no rows, so that the list is not empty even if the log has no chunks.
    by_chunk = [hasher.hash_rows(np.empty(0, np.int64), np.empty(0, np.bool_))]
    # The log may be read a second time with other ranges of hashes. That pass must not reuse the stored results of the
    # first one, so the title of the results contains a hash of the ranges.
    title = f"labels-{xxhash.xxh3_64_hexdigest(repr(hasher.ranges).encode())}"
    reading.run(hasher.hash_chunk, by_chunk.append, title)
    return [list(parts) for parts in zip(*by_chunk, strict=True)]


# Type of a function that runs a `LabelHasher` on all chunks of the log. It returns two lists, one for each label (no
# click, click), with the `LabelHashes` of each chunk.
ReadLabels = Callable[[LabelHasher], list[list[LabelHashes]]]


def make_split(
    options: PrepareOptions,
    count_lines: Callable[[], int],
    read_labels: ReadLabels,
    file_names: Sequence[str] = (),
) -> SplitRule:
    """Return the rule by which the rows of a log are split, as the options ask, except for a split by time.

    A chronological split by line number calls `count_lines`, and a stratified split calls `read_labels`. Both read the
    whole log. Raise ValueError if the options assign files that are not among the log's `file_names`, or one file to
    two splits.
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
    """Return, for each number [n], TRAIN if it is below `train_end`, else VALID if below `valid_end`, else TEST."""
    # A bound of 2**64 does not fit in uint64, but NumPy compares arrays with Python integers of any size.
    return (numbers >= train_end).astype(np.int8) + (numbers >= valid_end)
