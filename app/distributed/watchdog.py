"""Who is waited for: a thread that names the ranks that do not come while the others wait in MPI.

`waiting` marks the waits of this process. A rank that has waited too long tells all others so; who has told nothing a
moment later is who they wait for. In the normal case nothing is sent.
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

GRACE_SECONDS = 1.0  # for what the others tell


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
    """Watches over this process's waits while it is used as a context manager; `first` ranks say nothing (servers)."""

    def __init__(self, world: MPI.Comm, timeout_s: float, first: int = 0) -> None:
        self._communicator = world.Dup()
        self._timeout_s = timeout_s
        self._first = first
        self._reported: float | None = None  # the wait that was told last
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(min(self._timeout_s / 4, 5.0)):
            since = _Wait.since
            if since is None or since == self._reported or time.monotonic() - since < self._timeout_s:
                continue
            self._reported = since
            others = self._ask_others()
            if since == _Wait.since and others:
                self._name(others)

    def _ask_others(self) -> list[int]:
        """Tell all ranks that this one waits; returns those that have not told it the same."""
        rank, size = self._communicator.rank, self._communicator.size
        told = [self._communicator.isend(time.time(), other) for other in range(size) if other != rank]
        self._ended.wait(GRACE_SECONDS + self._timeout_s / 2)  # they look at their clocks every quarter of the time
        wait_too = {rank}
        oldest = time.time() - 2 * (GRACE_SECONDS + self._timeout_s)
        for other in range(size):
            while self._communicator.iprobe(other):
                if self._communicator.recv(source=other) >= oldest:
                    wait_too.add(other)
        for request in told:
            request.Test()
        missing = sorted(set(range(size)) - wait_too)
        speaks = min(wait_too - set(range(self._first)), default=None) == rank
        return missing if speaks else []

    def _name(self, missing: list[int]) -> None:
        names = ", ".join(f"{rank} (a server)" if rank < self._first else str(rank) for rank in missing)
        # On the level of errors, so that any rank's console shows it.
        log.error("warning: rank %s has not come for %.0f s; the others wait for it", names, self._timeout_s)
