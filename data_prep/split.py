"""Which split a row belongs to: a function of the options and the row's number in the log alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.options import PrepareOptions

TRAIN, VALID, TEST = range(3)  # places in schema.SPLITS


def splitmix64(seed: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A hash of (seed, number) for each of the numbers [n]: output `number`, from 0, of the SplitMix64 generator.

    G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the
    constants of S. Vigna's splitmix64.c.
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


def make_split(options: PrepareOptions, count_lines: Callable[[], int]) -> Split:
    """The rule the options name; `count_lines` reads the log and is called only if the rule depends on its length."""
    train_end = options.train_fraction
    valid_end = options.train_fraction + options.valid_fraction
    if options.split == "hash":
        return HashSplit(options.seed, round(train_end * 2**53), round(valid_end * 2**53))
    num_lines = count_lines()
    return ChronologicalSplit(round(train_end * num_lines), round(valid_end * num_lines))


def _between(numbers: NDArray[np.integer], train_end: int, valid_end: int) -> NDArray[np.int8]:
    return (numbers >= train_end).astype(np.int8) + (numbers >= valid_end).astype(np.int8)
