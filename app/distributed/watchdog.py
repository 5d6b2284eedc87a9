"""Watchdog thread: logs which ranks are stalling a collective.

`waiting` marks the waits of this process. A rank that has waited too long sends all others a message. A rank that has
not sent one a moment later is the one that they wait for. As long as nobody waits too long, nothing is sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger(__name__)

GRACE_SECONDS = 1.0  # for the others' messages


class _Wait:
    since: float | None = None  # on the monotonic clock


@contextmanager
def waiting() -> Iterator[None]:
    """Mark a wait of this process for other ranks."""
    _Wait.since = time.monotonic()
    try:
        yield
    finally:
        _Wait.since = None


class Watchdog:
    """Watches this process's waits while it is used as a context manager. The `first` ranks (servers) log nothing."""

    def __init__(self, world: MPI.Comm, timeout_s: float, first: int = 0) -> None:
        self._communicator = world.Dup()
        self._timeout_s = timeout_s
        self._first = first
        self._reported: float | None = None  # start of the wait that was reported last
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(min(self._timeout_s / 4, 5.0)):
            since = _Wait.since
            if since is None or since == self._reported or time.monotonic() - since < self._timeout_s:
                continue
            self._reported = since
            missing = self._find_missing()
            if since == _Wait.since and missing:
                first = self._first
                names = ", ".join(f"{rank} (a server)" if rank < first else str(rank) for rank in missing)
                # On the level of errors, so that any rank's console shows it.
                log.error("warning: rank %s has not come for %.0f s; the others wait for it", names, self._timeout_s)

    def _find_missing(self) -> list[int]:
        """Return the ranks that do not wait as this one does. The list is empty on all ranks but one."""
        rank, size = self._communicator.rank, self._communicator.size
        messages = [self._communicator.isend(time.time(), other) for other in range(size) if other != rank]
        self._end.wait(GRACE_SECONDS + self._timeout_s / 2)  # they look at their clocks every quarter of the time
        waiting_ranks = {rank}
        oldest = time.time() - 2 * (GRACE_SECONDS + self._timeout_s)
        for other in range(size):
            while self._communicator.iprobe(other):
                if self._communicator.recv(source=other) >= oldest:
                    waiting_ranks.add(other)
        for request in messages:
            request.Test()
        logs = min(waiting_ranks - set(range(self._first)), default=None) == rank
        return sorted(set(range(size)) - waiting_ranks) if logs else []
