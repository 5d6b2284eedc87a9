"""Sum arrays over the ranks of a job, in the order of ranks.

The arrays are divided into as many parts as there are ranks. Each rank receives its part from all ranks and adds up the
values in the order of ranks. Then all ranks gather the sums of all parts. So the same number of ranks gives the same
bits wherever the ranks run. MPI's Allreduce does not promise this: its algorithm, and with it the order of summation,
depends on the message size and the hosts.

The exchange runs in a thread, so that the rank may compute something else in the meantime. The thread sleeps while it
waits for messages, because on a host with few cores a busy loop would slow down the computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from app.distributed.watchdog import wait_asleep, waiting
from common.arrays.pages import huge_pages

if TYPE_CHECKING:
    from mpi4py import MPI

CACHE_LINE = 16  # Size of a cache line in float32 values. Each array starts at a cache line.

Sums = tuple[list[np.ndarray], bool]  # The sums over the ranks, and True if all of them are finite.


class GradientSum:
    """Sums arrays over the ranks of `communicator`. All these ranks must call the same methods together, and each time
    with arrays of the same shapes.
    """

    def __init__(self, communicator: MPI.Comm, submit: Callable[..., Future[Sums]] | None = None) -> None:
        """`submit` starts a function call beside this thread and returns its future. By default a thread runs it."""
        self._communicator = communicator
        self._submit = submit or ThreadPoolExecutor(1, "gradients").submit
        self._slices: list[slice] = []  # The range of each array in the block of memory that is sent.

    def __call__(self, arrays: Sequence[np.ndarray]) -> Sums:
        """Return the sums of float32 arrays over all ranks, and True if all sums are finite.

        The sums have the same bits on every rank, and are valid until the next call. The shapes must be those of the
        first call.
        """
        return self.start(arrays).result()

    def start(self, arrays: Sequence[np.ndarray]) -> Future[Sums]:
        """Start the exchange that `__call__` waits for, and return its future.

        Until the future has a result, `arrays` must not change, and this rank must not use the communicator.
        """
        return self._submit(self._exchange, arrays)

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Return the float32 `values` of all ranks, [ranks, ...]."""
        gathered = np.empty((self._communicator.size, *values.shape), np.float32)
        with waiting():
            self._communicator.Allgather(values, gathered)
        return gathered

    def _exchange(self, arrays: Sequence[np.ndarray]) -> Sums:
        if not self._slices:
            self._allocate(arrays)
        for array, part in zip(arrays, self._slices, strict=True):
            self._values[part] = array.reshape(-1)
        # NumPy must not warn if a sum overflows, because the returned flag tells the caller.
        with waiting(), np.errstate(over="ignore", invalid="ignore"):
            wait_asleep(self._communicator.Ialltoall(self._values, self._received))
            part_sum, *other_sums = self._received
            for values in other_sums:
                part_sum += values
            wait_asleep(self._communicator.Iallgather(part_sum, self._values))
            is_finite = bool(np.isfinite(np.add.reduce(self._values)))
        sums = [self._values[part].reshape(array.shape) for array, part in zip(arrays, self._slices, strict=True)]
        return sums, is_finite

    def _allocate(self, arrays: Sequence[np.ndarray]) -> None:
        starts = np.cumsum([0, *(-(-array.size // CACHE_LINE) * CACHE_LINE for array in arrays)])
        self._slices = [slice(start, start + array.size) for start, array in zip(starts, arrays, strict=False)]
        part_size, num_ranks = -(-int(starts[-1]) // self._communicator.size), self._communicator.size
        self._values, self._received = (
            huge_pages(part_size * num_ranks * np.dtype(np.float32).itemsize).view(np.float32) for _ in range(2)
        )
        self._received = self._received.reshape(num_ranks, part_size)
