"""Counts of more values than fit in memory: a count-min sketch with conservative update, whose old counts fade.

Cormode & Muthukrishnan 2005, Estan & Varghese 2002. A count is never below the true one. It is above it by more than
e · N / W with a probability of at most exp(-DEPTH), for N occurrences in a sketch with W cells a row.

Letters: n values, W cells of a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.hashing import GOLDEN, mix64
from data_prep.kernels.native_counting import choose_counting
from data_prep.kernels.strings import Strings

DEPTH = 4  # rows of cells, each with a hash of its own
LEAST_BYTES = 4096
_HALVES = 2


class ValueSketch:
    """Counts of the values of several columns in a fixed memory: in a current half and in the one before it.

    The current half is closed when it would have more than W occurrences, and the one before is forgotten then. So a
    count has a value's occurrences among the last W of all at least, and among the last 2 W at most, but for an `add`
    that has more than W itself.
    """

    def __init__(self, num_bytes: int, kernels: str = "auto") -> None:
        """Use at most so many bytes. Raises ValueError for fewer than `LEAST_BYTES`."""
        if num_bytes < LEAST_BYTES:
            raise ValueError(f"a sketch of counts takes {LEAST_BYTES} bytes at least, found {num_bytes}")
        self._kernels = choose_counting(kernels)
        self._halves = np.zeros((_HALVES, DEPTH, num_bytes // (_HALVES * DEPTH * 4)), np.uint32)
        self._num_counted = np.zeros(_HALVES, np.int64)
        self._noted: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []  # keys and counts
        self._added = self._noted
        self.num_noted = 0  # values that were noted since `add`

    def state(self) -> dict[str, Any]:
        """Return the arrays that `load_state` takes, without what is only noted."""
        return {"halves": self._halves, "num_counted": self._num_counted}

    def load_state(self, halves: NDArray[np.uint32], num_counted: NDArray[np.int64]) -> None:
        """Take the arrays of `state`. Raises ValueError for those of another size."""
        if halves.shape != self._halves.shape:
            raise ValueError(
                f"counts of values are in {halves.nbytes:,} bytes, expected {self._halves.nbytes:,}; give the memory "
                f"that they were counted in (--admission-mib {halves.nbytes >> 20})"
            )
        self._halves, self._num_counted = halves, num_counted

    def added(self) -> dict[str, Any]:
        """Return the arrays of the last `add`, with which `add_again` makes of the state before it the one after it."""
        keys = np.concatenate([np.zeros(0, np.uint64), *(keys for keys, _ in self._added)])
        counts = np.concatenate([np.zeros(0, np.int64), *(counts for _, counts in self._added)])
        return {"keys": keys, "counts": counts, "sizes": np.array([len(each) for _, each in self._added], np.int64)}

    def add_again(self, keys: NDArray[np.uint64], counts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Add what `added` returned."""
        ends = np.cumsum(sizes)[:-1]
        self._noted = list(zip(np.split(keys, ends), np.split(counts, ends), strict=True)) if len(sizes) else []
        self.add()

    def note(self, place: int, values: NDArray[np.int64] | Strings, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Note `counts` [n] of different values of the column at `place` for `add`. Return them plus those before."""
        keys = values.keys() if isinstance(values, Strings) else values.astype(np.uint64)
        keys = mix64(keys + np.array([place + 1], np.uint64) * GOLDEN)
        self._noted.append((keys, counts))
        self.num_noted += len(counts)
        return counts + self._kernels.sketch_counts(self._halves, keys)

    def leave_out(self, mask: NDArray[np.bool_]) -> None:
        """Let `add` leave out what `mask` [n] has of the values noted last, as these need not be counted any more."""
        keys, counts = self._noted[-1]
        self._noted[-1] = keys[~mask], counts[~mask]

    def forget(self) -> None:
        """Forget what was noted since `add`."""
        self._noted, self.num_noted = [], 0

    def add(self) -> None:
        """Add what was noted."""
        total = sum(int(counts.sum()) for _, counts in self._noted)
        if self._num_counted[0] and self._num_counted[0] + total > self._halves.shape[2]:
            self._halves, self._num_counted = np.roll(self._halves, 1, axis=0), np.roll(self._num_counted, 1)
            self._halves[0], self._num_counted[0] = 0, 0
        self._num_counted[0] += total
        for keys, counts in self._noted:
            self._kernels.add_to_sketch(self._halves[0], keys, counts)
        self._added, self._noted, self.num_noted = self._noted, [], 0
