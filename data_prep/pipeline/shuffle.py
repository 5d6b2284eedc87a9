"""Shuffle training rows within windows, in a random order that the seed decides.

Logs are usually in the order of time, and training must not see their rows in that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.prepared.examples import Examples

# A shuffled window is returned in slices of this many rows, so that memory never holds the window twice.
_PIECE_ROWS = 50_000


@dataclass(frozen=True)
class Windows:
    """The division of a split's rows, numbered from 0, into files and into windows that are shuffled.

    Shuffling moves rows only within their window. So a file can be written once all rows of the windows that overlap
    it are encoded.
    """

    seed: int
    window_rows: int  # Rows of a window. With 1, rows are written in the order of the log.
    block_rows: int
    file_rows: int  # Rows of a file, a multiple of `block_rows`.

    def of_file(self, number: int) -> range:
        """Return the range of the rows in file `number`, counted in the order in which rows are written.

        The last file may end before its range does.
        """
        return range(number * self.file_rows, (number + 1) * self.file_rows)

    def around(self, rows: range) -> range:
        """Return the smallest range of whole windows that contains `rows`."""
        w = self.window_rows
        return range(rows.start // w * w, -(-rows.stop // w) * w)


def window_order(seed: int, window: int, num_rows: int) -> NDArray[np.int64]:
    """Return the random order [num_rows] of the rows of window number `window`."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, window]))).permutation(num_rows)


class WindowShuffle:
    """Shuffler of a split's training rows: it takes rows in the log's order and yields each full window shuffled.

    The first row that the caller adds must be the first row of window number `first_window`.
    """

    def __init__(self, seed: int, window_rows: int, first_window: int = 0) -> None:
        self._window_rows = window_rows
        self._seed = seed
        self._window = first_window
        self._num_rows = 0
        self._rows: Examples | None = None

    def add(self, rows: Examples) -> Iterator[Examples]:
        """Add rows, and yield the windows that they complete in slices of at most `_PIECE_ROWS` rows."""
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
        """Yield the rows of the current window, which need not be full, in slices of at most `_PIECE_ROWS` rows."""
        if self._rows is None:
            return
        order = window_order(self._seed, self._window, self._num_rows)
        for first in range(0, self._num_rows, _PIECE_ROWS):
            yield self._rows.take(order[first : first + _PIECE_ROWS])
        self._window += 1
        self._num_rows = 0
