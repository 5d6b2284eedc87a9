"""Count more values than fit into memory: a count-min sketch with conservative update, which drops old counts.

The sketch is that of Cormode & Muthukrishnan 2005 and Estan & Varghese 2002. It consists of DEPTH rows of W cells
(counters). As long as no counts are dropped, a value's estimated count is never below its true count. After N
occurrences of all values together, it exceeds the true count by more than e · N / W with a probability of at most
exp(-DEPTH).

Array shapes are written with these letters: n values, W cells of a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.arrays.hashing import GOLDEN, mix64
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.strings import Strings

# Number of rows of cells (counters) of a sketch. The hash that chooses the cell of a value differs from row to row.
DEPTH = 4
LEAST_BYTES = 4096
_HALVES = 2


class ValueSketch:
    """Approximate counts of the values of several columns, in fixed memory.

    `note` records counts of values, and `add` then adds all recorded counts to the sketch. The sketch has a current and
    a previous half, which both consist of rows of W cells (counters). When `add` would bring the current half above W
    occurrences, the current half becomes the previous one, and the former previous half is dropped. So a count covers
    at least the last W occurrences of all values, and at most the last 2 W (or more if a single `add` has more than W).

    >>> sketch = ValueSketch(num_bytes=LEAST_BYTES, kernels="numpy")
    >>> sketch.note(0, np.array([7, 8]), np.array([2, 1]))
    array([2, 1])
    >>> sketch.add()
    >>> sketch.note(0, np.array([7]), np.array([1]))
    array([3])
    """

    def __init__(self, num_bytes: int, kernels: str = "auto") -> None:
        """Make an empty sketch that takes at most `num_bytes` bytes of memory.

        Raise ValueError if they are fewer than `LEAST_BYTES`.
        """
        if num_bytes < LEAST_BYTES:
            raise ValueError(f"a sketch of counts takes {LEAST_BYTES} bytes at least, found {num_bytes}")
        self._kernels = choose_kernels(kernels)
        self._halves = np.zeros((_HALVES, DEPTH, num_bytes // (_HALVES * DEPTH * 4)), np.uint32)
        self._num_counted = np.zeros(_HALVES, np.int64)
        # Hashes (keys) of values with their counts, as `note` has recorded them since the last call of `add`.
        self._noted: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
        self._added = self._noted
        self.num_noted = 0  # Number of values recorded by `note` since the last call of `add`.

    def state(self) -> dict[str, Any]:
        """Return the state of the sketch as arrays by name, from which `load_state` restores it.

        Counts that `note` has recorded since the last call of `add` are not included.
        """
        return {"halves": self._halves, "num_counted": self._num_counted}

    def load_state(self, halves: NDArray[np.uint32], num_counted: NDArray[np.int64]) -> None:
        """Restore the sketch from the arrays that `state` returned.

        Raise ValueError if these arrays belong to a sketch of another size.
        """
        if halves.shape != self._halves.shape:
            raise ValueError(
                f"counts of values are in {halves.nbytes:,} bytes, expected {self._halves.nbytes:,}; give the memory "
                f"that they were counted in (--admission-mib {halves.nbytes >> 20})"
            )
        self._halves, self._num_counted = halves, num_counted

    def added(self) -> dict[str, Any]:
        """Return the keys and counts that the last `add` has added to the sketch, as arrays by name.

        Passed to `add_again`, they turn the state of the sketch before that `add` into its state after it.
        """
        keys = np.concatenate([np.zeros(0, np.uint64), *(keys for keys, _ in self._added)])
        counts = np.concatenate([np.zeros(0, np.int64), *(counts for _, counts in self._added)])
        return {"keys": keys, "counts": counts, "sizes": np.array([len(each) for _, each in self._added], np.int64)}

    def add_again(self, keys: NDArray[np.uint64], counts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Add to the sketch the keys and counts that the method `added` has returned.

        Drop the counts that `note` has recorded for the next call of `add`.
        """
        ends = np.cumsum(sizes)[:-1]
        self._noted = list(zip(np.split(keys, ends), np.split(counts, ends), strict=True)) if len(sizes) else []
        self.add()

    def note(self, place: int, values: NDArray[np.int64] | Strings, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Record, for the next `add`, that `values` [n], all distinct, occurred `counts` [n] times.

        Return the total count of each value [n]: its count in `counts` plus its count in the sketch. `place` is the
        number of the values' column.
        """
        keys = values.keys() if isinstance(values, Strings) else values.astype(np.uint64)
        keys = mix64(keys + np.array([place + 1], np.uint64) * GOLDEN)
        self._noted.append((keys, counts))
        self.num_noted += len(counts)
        return counts + self._kernels.sketch_counts(self._halves, keys)

    def leave_out(self, mask: NDArray[np.bool_]) -> None:
        """Drop the counts of the values that `mask` [n] selects among the n values of the last call of `note`.

        The next call of `add` does not add these counts.
        """
        keys, counts = self._noted[-1]
        self._noted[-1] = keys[~mask], counts[~mask]

    def forget(self) -> None:
        """Drop all counts that `note` has recorded since the last call of `add`.

        They are then never added to the sketch.
        """
        self._noted, self.num_noted = [], 0

    def add(self) -> None:
        """Add to the sketch all counts that `note` has recorded since the last call of `add`."""
        total = sum(int(counts.sum()) for _, counts in self._noted)
        if self._num_counted[0] and self._num_counted[0] + total > self._halves.shape[2]:
            self._halves, self._num_counted = np.roll(self._halves, 1, axis=0), np.roll(self._num_counted, 1)
            self._halves[0], self._num_counted[0] = 0, 0
        self._num_counted[0] += total
        for keys, counts in self._noted:
            self._kernels.add_to_sketch(self._halves[0], keys, counts)
        self._added, self._noted, self.num_noted = self._noted, [], 0
