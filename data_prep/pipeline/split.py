"""Which split a row belongs to: a function of the options, the row's number in the log or its file and, stratified, all
labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from data_prep.execution.pieces import storable
from data_prep.options.prepare_options import PrepareOptions

TRAIN, VALID, TEST = range(3)  # places in schema.SPLITS
_LABELS = (False, True)
# A stratified split looks for its bounds among the hashes within so much of a bound's fraction; where the log is so
# small that chance moves the bound further, among all of them.
_HALF_WIDTHS = (0.02, 1.0)


def splitmix64(seed: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A hash of (seed, number) for each of the numbers [n]: output `number`, from 0, of the SplitMix64 generator.

    Different numbers have different hashes. G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014, with the constants of S. Vigna's splitmix64.c.
    """
    state = np.uint64(seed) + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return state ^ state >> np.uint64(31)


@dataclass(frozen=True)
class HashSplit:
    """Rows go to a split by the top 53 bits of their hash; the bounds are exact as floats have 53 bits."""

    seed: int
    train_end: int
    valid_end: int

    def assign(self, row_numbers: NDArray[np.int64], labels: NDArray[np.bool_], file: int = 0) -> NDArray[np.int8]:
        """TRAIN, VALID or TEST for each row [n]."""
        return _between(splitmix64(self.seed, row_numbers) >> np.uint64(11), self.train_end, self.valid_end)


@dataclass(frozen=True)
class ChronologicalSplit:
    """The log's last lines are the test split, those before them the validation split."""

    train_end: int
    valid_end: int

    def assign(self, row_numbers: NDArray[np.int64], labels: NDArray[np.bool_], file: int = 0) -> NDArray[np.int8]:
        """TRAIN, VALID or TEST for each row [n]."""
        return _between(row_numbers, self.train_end, self.valid_end)


@dataclass(frozen=True)
class StratifiedSplit:
    """Exact shares of the clicks and of the other rows: the rows of a label go by the order of their hashes."""

    seed: int
    train_ends: tuple[int, int]  # by label: the first hash that is not train any more, 2**64 where there is none
    valid_ends: tuple[int, int]

    def assign(self, row_numbers: NDArray[np.int64], labels: NDArray[np.bool_], file: int = 0) -> NDArray[np.int8]:
        """TRAIN, VALID or TEST for each row [n]."""
        hashes = splitmix64(self.seed, row_numbers)
        splits = np.empty(len(hashes), np.int8)
        for label in _LABELS:
            of_label = labels == label
            splits[of_label] = _between(hashes[of_label], self.train_ends[label], self.valid_ends[label])
        return splits


@dataclass(frozen=True)
class FileSplit:
    """All rows of a file of the log are in one split."""

    of_files: tuple[int, ...]

    def assign(self, row_numbers: NDArray[np.int64], labels: NDArray[np.bool_], file: int = 0) -> NDArray[np.int8]:
        """TRAIN, VALID or TEST for each row [n] of the file with that place in the log."""
        return np.full(len(row_numbers), self.of_files[file], np.int8)


Split = HashSplit | ChronologicalSplit | StratifiedSplit | FileSplit


@dataclass(frozen=True)
class HashesOfLabel:
    """The hashes of the rows of a label: how many there are and, for each range asked for, what is below and in it."""

    num_rows: int
    num_below: tuple[int, ...]
    inside: tuple[NDArray[np.uint64], ...]

    @classmethod
    def of(cls, hashes: NDArray[np.uint64], ranges: tuple[tuple[int, int], ...]) -> HashesOfLabel:
        """Of hashes [n] and half-open ranges of them."""
        parts = [_between(hashes, low, high) for low, high in ranges]
        return cls(
            len(hashes),
            tuple(int(np.sum(part == 0)) for part in parts),
            tuple(hashes[part == 1] for part in parts),
        )

    def end_of(self, place: int, fraction: float) -> int | None:
        """The first hash after the lowest `fraction` of them; None where it is not in range `place`."""
        rank = round(fraction * self.num_rows)
        if rank == self.num_rows:
            return 2**64
        inside = rank - self.num_below[place]
        if not 0 <= inside < len(self.inside[place]):
            return None
        return int(np.partition(self.inside[place], inside)[inside])


storable(HashSplit, ChronologicalSplit, StratifiedSplit, FileSplit, HashesOfLabel)


def concatenate_hashes(parts: list[HashesOfLabel]) -> HashesOfLabel:
    """Of the rows of all parts, at least one."""
    return HashesOfLabel(
        sum(part.num_rows for part in parts),
        tuple(map(sum, zip(*(part.num_below for part in parts), strict=True))),
        tuple(map(np.concatenate, zip(*(part.inside for part in parts), strict=True))),
    )


@dataclass(frozen=True)
class LabelHasher:
    """What a stratified split has to know of rows, taken chunk by chunk."""

    seed: int
    ranges: tuple[tuple[int, int], ...]

    def look(self, row_numbers: NDArray[np.int64], labels: NDArray[np.bool_]) -> list[HashesOfLabel]:
        """Of the rows [n], for each label."""
        hashes = splitmix64(self.seed, row_numbers)
        return [HashesOfLabel.of(hashes[labels == label], self.ranges) for label in _LABELS]


# Reads the log and gives what the hasher found, by label and chunk.
ReadLabels = Callable[[LabelHasher], list[list[HashesOfLabel]]]


def make_split(
    options: PrepareOptions,
    count_lines: Callable[[], int],
    read_labels: ReadLabels,
    file_names: Sequence[str] = (),
) -> Split:
    """The rule the options name; `count_lines` and `read_labels` read the log, where the rule depends on that.

    `file_names` are those of the log's files. Raises ValueError where they cannot be split as the options say.
    """
    if options.split == "files":
        return _by_file(options, file_names)
    train_end = options.train_fraction
    valid_end = options.train_fraction + options.valid_fraction
    if options.split == "hash":
        return HashSplit(options.seed, round(train_end * 2**53), round(valid_end * 2**53))
    if options.split == "stratified":
        return _stratify(options.seed, (train_end, valid_end), read_labels)
    num_lines = count_lines()
    return ChronologicalSplit(round(train_end * num_lines), round(valid_end * num_lines))


def _by_file(options: PrepareOptions, names: Sequence[str]) -> FileSplit:
    chosen: dict[int, int] = {}
    for split, patterns in ((VALID, options.valid_files), (TEST, options.test_files)):
        for pattern in patterns:
            matching = [place for place, name in enumerate(names) if _matches(name, pattern)]
            if not matching:
                raise ValueError(f"no file of the log is named {pattern!r}; they are: {', '.join(names)}")
            for place in matching:
                if chosen.setdefault(place, split) != split:
                    raise ValueError(f"{names[place]} is in prepare.valid_files and in prepare.test_files")
    return FileSplit(tuple(chosen.get(place, TRAIN) for place in range(len(names))))


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(PurePosixPath(name).name, pattern)


def _stratify(seed: int, fractions: tuple[float, float], read_labels: ReadLabels) -> StratifiedSplit:
    for half_width in _HALF_WIDTHS:
        ranges = tuple(
            (round(max(fraction - half_width, 0) * 2**64), round(min(fraction + half_width, 1) * 2**64))
            for fraction in fractions
        )
        by_label = [concatenate_hashes(parts) for parts in read_labels(LabelHasher(seed, ranges))]
        found = [label.end_of(i, fractions[i]) for i in range(2) for label in by_label]
        ends = [end for end in found if end is not None]
        if len(ends) == len(found):
            return StratifiedSplit(seed, (ends[0], ends[1]), (ends[2], ends[3]))
    raise AssertionError("all hashes are within the whole range")


def _between(numbers: NDArray[np.integer], train_end: int, valid_end: int) -> NDArray[np.int8]:
    # A bound of 2**64 is no uint64; NumPy compares arrays with whole numbers of any size.
    return (numbers >= train_end).astype(np.int8) + (numbers >= valid_end)
