"""Arrays summed over the ranks of a job, in the order of ranks, through memory that the ranks of a host share.

Each rank puts its values where all ranks of its host see them, sums a part of all of them, and reads the rest: nothing
is sent within a host. Between hosts, sums go along a chain that starts on the host of rank 0: each host adds its ranks'
values, and what the last one has goes back the same way. They go in chunks, so that all hosts work at once, and each
link carries the values once in either direction. So floats are added in the order of ranks wherever these lie: the same
number of ranks gives the same bits. Where ranks cannot share memory, each counts as a host of its own.

Letters: P values of all arrays.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from app.distributed.process_group import share
from app.distributed.watchdog import waiting

log = logging.getLogger(__name__)

CHUNK = 1 << 16  # floats: those of a few ranks stay near the core

LINE = 16  # floats: arrays begin where a cache line does


class GradientSum:
    """Sums arrays of the same shapes again and again; all ranks of `communicator` call it together."""

    def __init__(self, communicator: MPI.Comm, ranks_a_host: int = 0) -> None:
        """`ranks_a_host`: see `host_of`."""
        self.seconds = 0.0  # for putting values down and summing them
        self.wait_seconds = 0.0  # for the slowest rank's values
        self.shared_bytes = 0  # put where the host's ranks see them
        self.sent_bytes = 0  # to other hosts
        self._communicator = communicator
        self._ranks_a_host = ranks_a_host
        self._places: list[slice] = []
        self._chain: Chain | None = None

    def __call__(self, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], bool]:
        """The sums of float32 arrays, the same bits on every rank, and whether all of them are finite.

        The shapes are those of the first call. Valid until the next call.
        """
        chain = self._chain = self._chain or self._make_chain(arrays)
        start = time.perf_counter()
        for array, place in zip(arrays, self._places, strict=True):
            chain.own[place] = array.reshape(-1)
        put_down = time.perf_counter()
        with waiting():
            chain.host.Barrier()
            all_there = time.perf_counter()
            self.sent_bytes += chain.sum()
            chain.host.Barrier()
        self.wait_seconds += all_there - put_down
        self.seconds += time.perf_counter() - all_there + put_down - start
        self.shared_bytes += chain.own.nbytes
        sums = zip(arrays, self._places, strict=True)
        return [chain.total[place].reshape(array.shape) for array, place in sums], chain.is_finite

    def _make_chain(self, arrays: Sequence[np.ndarray]) -> Chain:
        starts = np.cumsum([0, *(-(-array.size // LINE) * LINE for array in arrays)])
        self._places = [slice(start, start + array.size) for start, array in zip(starts, arrays, strict=False)]
        num_values, communicator = int(starts[-1]), self._communicator
        host, chain, error = host_of(communicator, self._ranks_a_host), None, ""
        try:
            chain = Chain(communicator, host, num_values)
        except OSError as raised:
            error = str(raised)
        errors = [each for each in communicator.allgather(error) if each]
        if chain is not None and not errors:
            return chain
        if communicator.rank == 0:
            log.warning("warning: %s; each rank sends its gradients to the next one, which is slower", errors[0])
        return Chain(communicator, MPI.COMM_SELF, num_values)


class Chain:
    """A rank's place among the hosts, and its part of the values, of which it makes the sum.

    `own` [P] is where this rank puts its values, `total` [P] where the sums come. Raises OSError, on all ranks of the
    host, where they cannot share memory.
    """

    def __init__(self, communicator: MPI.Comm, host: MPI.Comm, num_values: int) -> None:
        memory = shared_floats(host, (host.size + 1) * num_values + host.size)
        rows, self._bad = np.split(memory, [(host.size + 1) * num_values])
        *self._values, self.total = rows.reshape(host.size + 1, num_values)
        self.own = self._values[host.rank]
        self.host = host
        self._communicator = communicator
        leaders = sorted(set(communicator.allgather(host.bcast(communicator.rank))))
        # The first ranks of each host, as many as the smallest one has, share the values out.
        num_parts = min(np.diff([*leaders, communicator.size]))
        part = slice(0, 0) if host.rank >= num_parts else share(num_values, host.rank, num_parts)
        self._chunks = [slice(start, min(start + CHUNK, part.stop)) for start in range(part.start, part.stop, CHUNK)]
        number = leaders.index(communicator.rank - host.rank)
        self._before = leaders[number - 1] + host.rank if number > 0 else None
        self._after = leaders[number + 1] + host.rank if number + 1 < len(leaders) else None

    @property
    def is_finite(self) -> bool:
        """Whether all sums of the last call are."""
        return not self._bad.any()

    def sum(self) -> int:
        """Make this rank's part of `total`; returns the bytes that it sent to other hosts."""
        self._bad[self.host.rank] = False
        with np.errstate(over="ignore", invalid="ignore"):  # the flag tells
            sent = [self._add(chunk) for chunk in self._chunks]
            if self._after is not None:
                going = zip(self._chunks, sent, strict=True)
                sent = [self._take_back(chunk, request, self._after) for chunk, request in going]
        MPI.Request.Waitall(sent)
        num_links = (self._before is not None) + (self._after is not None)
        return num_links * sum(self.total[chunk].nbytes for chunk in self._chunks)

    def _add(self, chunk: slice) -> MPI.Request:
        """Add this host's values to those of the hosts before, and send the sums on."""
        total, terms = self.total[chunk], [values[chunk] for values in self._values]
        if self._before is None:
            total[:] = terms.pop(0)
        else:
            self._communicator.Recv(total, self._before)
        for term in terms:
            total += term
        return self._finish(chunk) if self._after is None else self._communicator.Isend(total, self._after)

    def _take_back(self, chunk: slice, sent: MPI.Request, after: int) -> MPI.Request:
        sent.Wait()
        self._communicator.Recv(self.total[chunk], after)
        return self._finish(chunk)

    def _finish(self, chunk: slice) -> MPI.Request:
        """Look at the sums over all ranks, and send them back."""
        total = self.total[chunk]
        if not np.isfinite(np.add.reduce(total)):
            self._bad[self.host.rank] = True
        return MPI.REQUEST_NULL if self._before is None else self._communicator.Isend(total, self._before)


def shared_floats(host: MPI.Comm, size: int) -> np.ndarray:
    """float32 [size], zeros, the same memory in all ranks of `host`, which are processes of one machine.

    Raises OSError, on all of them, where one cannot have it.
    """
    if host.size == 1:
        return np.zeros(size, np.float32)
    num_bytes = size * np.dtype(np.float32).itemsize
    descriptor, memory, error = -1, None, ""
    try:
        if host.rank == 0:
            descriptor = _make(num_bytes)
    except OSError as raised:
        error = str(raised)
    path, error = host.bcast((f"/proc/{os.getpid()}/fd/{descriptor}", error))
    try:
        if not error:
            memory = _map(path, num_bytes)
    except OSError as raised:
        error = str(raised)
    errors = [each for each in host.allgather(error) if each]  # all have mapped it, or will not
    if descriptor >= 0:
        os.close(descriptor)
    if memory is None or errors:
        raise OSError(f"the ranks of this host cannot share {num_bytes:,} bytes of memory: {errors[0]}")
    return np.frombuffer(memory, np.float32)


def _make(num_bytes: int) -> int:
    descriptor = os.memfd_create("wide_deep")
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)  # an error here where there is no room, not at its use
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _map(path: str, num_bytes: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, num_bytes)
    finally:
        os.close(descriptor)


def host_of(communicator: MPI.Comm, ranks_a_host: int = 0) -> MPI.Comm:
    """The ranks of `communicator` on this host; every rank calls it.

    Where those of some host do not follow one another, each rank is alone. `ranks_a_host` above 0 takes so many ranks
    for those of a host, for tests.
    """
    if ranks_a_host:
        host = communicator.Split(communicator.rank // ranks_a_host, communicator.rank)
    else:
        host = communicator.Split_type(MPI.COMM_TYPE_SHARED, communicator.rank)
    leaders = communicator.allgather(host.bcast(communicator.rank))
    return host if leaders == sorted(leaders) else MPI.COMM_SELF
