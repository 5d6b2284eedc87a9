"""Lists of values: the texts of a column of kind list, cut into their values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.strings import PADDING_BYTES, Strings, trim_blanks


@dataclass(frozen=True)
class Lists:
    """The values of lists [n], those of a row one after the other."""

    values: Strings  # [M]
    lengths: NDArray[np.int64]  # [n] values of each row, 0 if the cell is missing
    cut: NDArray[np.bool_]  # [n] where there were more values than are kept

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each value [M]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def places(self) -> NDArray[np.int64]:
        """The place of each value [M] in its list, from 0."""
        return places_in_lists(self.lengths)

    def copies(self, kept: NDArray[np.bool_]) -> Lists:
        """Return a copy of the lists for each row of `kept` [copies, n], one after the other, other lists empty."""
        values = self.values.take(np.nonzero(kept[:, self.rows])[1])
        return Lists(values, (self.lengths * kept).ravel(), (self.cut & kept).ravel())


def places_in_lists(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each value of lists of these lengths, from 0."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def shorten(lengths: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return how many values lists of these lengths [K, n] keep, so that a row has at most `most` combinations of them.

    The longest list loses its last value, of equally long ones the last list, until they are few enough.
    """
    num_values = lengths.copy()
    while len(rows := np.flatnonzero(num_values.prod(axis=0) > most)):
        longest = len(num_values) - 1 - num_values[::-1, rows].argmax(axis=0)
        num_values[longest, rows] -= 1
    return num_values


def combinations(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row of each combination [M] of values of lists of these lengths [K, n], and its values' places [K, M].

    The place in the last list changes first.
    """
    of_row = lengths.prod(axis=0)
    rows, rest = np.repeat(np.arange(len(of_row)), of_row), places_in_lists(of_row)
    places = np.empty((len(lengths), len(rows)), np.int64)
    for index in reversed(range(len(lengths))):
        rest, places[index] = np.divmod(rest, lengths[index, rows])
    return rows, places


def split_lists(cells: Strings, separator: str, max_length: int, trim: bool = False) -> Lists:
    """Return the first `max_length` values of each cell [n], without the blanks around them if they are to `trim`.

    Nothing between two separators is no value.
    """
    cells = cells.compact()
    filled = np.flatnonzero(cells.lengths)
    starts, ends = cells.starts[filled], (cells.starts + cells.lengths)[filled]
    separators = np.flatnonzero(cells.data[:-PADDING_BYTES] == ord(separator))
    # Cells lie end to end, so the values' starts and ends in rising order belong together.
    value_starts, value_ends = (
        np.sort(np.concatenate(both)) for both in ((starts, separators + 1), (ends, separators))
    )
    if trim:
        value_starts, value_ends = trim_blanks(cells.data, value_starts, value_ends)
    is_value = value_ends > value_starts
    value_starts, value_ends = value_starts[is_value], value_ends[is_value]
    rows = filled[np.searchsorted(starts, value_starts, side="right") - 1]
    lengths = np.bincount(rows, minlength=len(cells))
    fits = places_in_lists(lengths) < max_length
    values = Strings(cells.data, value_starts[fits], (value_ends - value_starts)[fits])
    return Lists(values, np.minimum(lengths, max_length), lengths > max_length)
