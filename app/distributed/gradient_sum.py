"""Sum arrays over the ranks of a job, in the order of ranks.

The arrays are divided into as many parts as there are ranks. Each rank receives its part from all ranks and adds up the
values in the order of ranks. Then all ranks gather the sums of all parts. So the same number of ranks gives the same
bits wherever the ranks run. MPI's Allreduce does not promise this: its algorithm, and with it the order of summation,
depends on the message size and the hosts.

The exchange runs in a thread, so that the rank may compute or exchange something else in the meantime. The thread
sleeps while it waits for messages, because on a host with few cores a busy loop would slow down the computation.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from app.distributed.watchdog import wait_asleep, waiting
from common.arrays.pages import HugeBuffer, huge_pages

if TYPE_CHECKING:
    from mpi4py import MPI

CACHE_LINE = 16  # Size of a cache line in float32 values. Each array starts at a cache line.


class GradientSum:
    """Sums arrays over the ranks of `communicator`. All these ranks must call the same methods together, and each time
    with arrays of the same shapes.
    """

    def __init__(self, communicator: MPI.Comm, submit: Callable[..., Future[bool]] | None = None) -> None:
        """`submit` starts a function call beside this thread, after earlier calls, and returns its future. By default a
        thread runs these calls.
        """
        self._communicator, self._of_thread = communicator, communicator.Dup()
        self.num_ranks = communicator.size
        self._submit = submit or ThreadPoolExecutor(1, "gradients").submit
        self._arrays: list[np.ndarray] = []
        self._values = np.empty(0, np.float32)  # The memory of the arrays.
        self._received = HugeBuffer()
        self._exchanges: list[Future[bool]] = []
        self._num_started = 0  # Number of values whose exchange has begun.

    def __call__(self, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], bool]:
        """Return the sums of float32 arrays over all ranks, and True if all sums are finite.

        The sums are valid until the next call. The shapes must be those of the first call.
        """
        self._arrays = self._arrays or self.allocate([array.shape for array in arrays])
        for summed, array in zip(self._arrays, arrays, strict=True):
            summed[...] = array
        self.start(sys.maxsize)
        return self._arrays, self.finish()

    def allocate(self, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Return arrays of these shapes, float32, which `start` and `finish` sum over the ranks in place."""
        starts = np.cumsum([0, *(-(-math.prod(shape) // CACHE_LINE) * CACHE_LINE for shape in shapes)]).tolist()
        size = -(-starts[-1] // self._quantum) * self._quantum
        self._values = huge_pages(size * np.dtype(np.float32).itemsize).view(np.float32)
        return [
            self._values[start : start + math.prod(shape)].reshape(shape)
            for start, shape in zip(starts, shapes, strict=False)
        ]

    def start(self, num_values: int) -> None:
        """Start the exchange of the first `num_values` values of the arrays, or all of them if there are fewer, unless
        it has begun. Until `finish`, these values must not change.

        The values are counted in the order of arrays. Those between two arrays count, too.
        """
        end = min(num_values // self._quantum * self._quantum, self._values.size)
        values = self._values[self._num_started : end]
        self._num_started = end
        self._exchanges.append(self._submit(self._exchange, values))

    def finish(self) -> bool:
        """Wait until all values have been exchanged. Return True if all sums are finite.

        The arrays now hold the sums, which have the same bits on every rank.
        """
        is_finite = sum(exchange.result() for exchange in self._exchanges) == len(self._exchanges)
        assert self._num_started == self._values.size
        self._exchanges, self._num_started = [], 0
        return is_finite

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Return the float32 `values` of all ranks, [ranks, ...]."""
        gathered = np.empty((self.num_ranks, *values.shape), np.float32)
        with waiting():
            self._communicator.Allgather(values, gathered)
        return gathered

    @property
    def _quantum(self) -> int:
        """The numbers of values that are exchanged together are multiples of this one, as each rank sums a part."""
        return CACHE_LINE * self.num_ranks

    def _exchange(self, values: np.ndarray) -> bool:
        """Replace `values` by their sums over the ranks, and return True if all sums are finite."""
        received = self._received.array((self.num_ranks, values.size // self.num_ranks))
        # NumPy must not warn if a sum overflows, because the result tells the caller.
        with waiting(), np.errstate(over="ignore", invalid="ignore"):
            wait_asleep(self._of_thread.Ialltoall(values, received))
            part_sum, *other_parts = received
            for part in other_parts:
                part_sum += part
            wait_asleep(self._of_thread.Iallgather(part_sum, values))
            return bool(np.isfinite(np.add.reduce(values)))
