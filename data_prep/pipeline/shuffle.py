"""Training rows in a seeded random order within windows, as a log in time order must not be trained in time order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.prepared.examples import Examples

_PIECE_ROWS = 50_000  # rows copied at a time into the new order, so that a window is not held twice


@dataclass(frozen=True)
class Windows:
    """Ranges of a split's rows, numbered from 0, by file and by window.

    A window has the same numbers before and after it is shuffled. So a file can be written once all rows of its
    windows are there.
    """

    seed: int
    window_rows: int  # 1: rows are written in the log's order
    block_rows: int
    file_rows: int  # in whole blocks

    def of_file(self, number: int) -> range:
        """Return the rows of a file, as they are written. The last file may have fewer."""
        return range(number * self.file_rows, (number + 1) * self.file_rows)

    def around(self, rows: range) -> range:
        """Return all rows of the windows in which these rows are."""
        w = self.window_rows
        return range(rows.start // w * w, -(-rows.stop // w) * w)


def window_order(seed: int, window: int, num_rows: int) -> NDArray[np.int64]:
    """Return a permutation [num_rows] for the window with this number, another one for each window."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, window]))).permutation(num_rows)


class WindowShuffle:
    """Collects rows in the log's order and returns each full window of `window_rows` shuffled.

    The caller leaves out the rows before `first_window`.
    """

    def __init__(self, seed: int, window_rows: int, first_window: int = 0) -> None:
        self._window_rows = window_rows
        self._seed = seed
        self._window = first_window
        self._num_rows = 0
        self._rows: Examples | None = None

    def add(self, rows: Examples) -> Iterator[Examples]:
        """Take rows. Yield the windows that they fill, a piece at a time."""
        if self._rows is None:
            self._rows = rows.room(self._window_rows)
        while len(rows):
            now = rows.take(slice(self._window_rows - self._num_rows))
            self._rows.overwrite(self._num_rows, now)
            self._num_rows += len(now)
            rows = rows.take(slice(len(now), None))
            if self._num_rows == self._window_rows:
                yield from self.finish()

    def finish(self) -> Iterator[Examples]:
        """Yield the last window, which may be short, a piece at a time."""
        if self._rows is None:
            return
        order = window_order(self._seed, self._window, self._num_rows)
        for first in range(0, self._num_rows, _PIECE_ROWS):
            yield self._rows.take(order[first : first + _PIECE_ROWS])
        self._window += 1
        self._num_rows = 0
