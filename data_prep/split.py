"""Which split a row belongs to: a function of the options and the row's number in the log alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.options import PrepareOptions

TRAIN, VALID, TEST = range(3)  # places in schema.SPLITS


def splitmix64(seed: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A hash of (seed, number) for each number [n]: the number-th output of SplitMix64 started at the seed's hash.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants as in
    Vigna's splitmix64.c.
    """
    start = _mix(np.array([seed], np.uint64))
    return _mix(start + (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA)


_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ state >> np.uint64(30)) * _MULTIPLIERS[0]
    state = (state ^ state >> np.uint64(27)) * _MULTIPLIERS[1]
    return state ^ state >> np.uint64(31)


@dataclass(frozen=True)
class HashSplit:
    """Rows go to a split by the top 53 bits of their hash; the bounds are exact as floats have 53 bits."""

    seed: int
    train_end: int
    valid_end: int

    def assign(self, row_numbers: NDArray[np.int64]) -> NDArray[np.int8]:
        """TRAIN, VALID or TEST for each row [n]."""
        return _between(splitmix64(self.seed, row_numbers) >> np.uint64(11), self.train_end, self.valid_end)


@dataclass(frozen=True)
class ChronologicalSplit:
    """The log's last lines are the test split, those before them the validation split."""

    train_end: int
    valid_end: int

    def assign(self, row_numbers: NDArray[np.int64]) -> NDArray[np.int8]:
        """TRAIN, VALID or TEST for each row [n]."""
        return _between(row_numbers, self.train_end, self.valid_end)


Split = HashSplit | ChronologicalSplit


def make_split(options: PrepareOptions, num_lines: int | None) -> Split:
    """The rule the options name; `num_lines` of the log is needed for `chronological` only."""
    train_end = options.train_fraction
    valid_end = options.train_fraction + options.valid_fraction
    if options.split == "hash":
        return HashSplit(options.seed, round(train_end * 2**53), round(valid_end * 2**53))
    assert num_lines is not None
    return ChronologicalSplit(round(train_end * num_lines), round(valid_end * num_lines))


def _between(numbers: NDArray[np.integer], train_end: int, valid_end: int) -> NDArray[np.int8]:
    return (numbers >= train_end).astype(np.int8) + (numbers >= valid_end).astype(np.int8)
