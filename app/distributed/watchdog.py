"""Log which ranks keep the others waiting. In each process, a thread, the watchdog, observes how long the process
waits.

Each process marks its waits for other ranks with `waiting`. A rank that has waited too long sends a message to all
other ranks. Every other rank that waits soon sends one, too. So the others wait for the ranks that send no message. As
long as no rank waits too long, nothing is sent.
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

LONG_WAIT_SECONDS = 5.0  # Waits for other ranks that take at least this time are logged.
GRACE_SECONDS = 1.0  # Seconds to wait for the other ranks' messages, in addition to half the timeout.


class _Wait:
    # Time (of the monotonic clock) at which this process began to wait for other ranks. None while it does not wait.
    since: float | None = None


@contextmanager
def waiting() -> Iterator[None]:
    """Mark the `with` block as a time in which this process waits for other ranks. Log the wait if it was long."""
    start = _Wait.since = time.monotonic()
    try:
        yield
    finally:
        _Wait.since = None
        if (seconds := time.monotonic() - start) >= LONG_WAIT_SECONDS:
            log.info("waited %.0f s for other ranks: one was busy or slow, or the network was interrupted", seconds)


class Watchdog:
    """Context manager that runs a thread which logs a warning if this process waits too long for other ranks.

    Once this rank has waited for `timeout_s` seconds, the thread finds the ranks that the others wait for. The first
    `first` ranks are servers, which log nothing.
    """

    def __init__(self, world: MPI.Comm, timeout_s: float, first: int = 0) -> None:
        self._communicator = world.Dup()
        self._timeout_s = timeout_s
        self._first = first
        # Time at which the last wait began for which the thread has looked for missing ranks. It looks once for each
        # wait.
        self._reported: float | None = None
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
                # The warning is logged as an error, because every rank shows errors on the console.
                log.error("warning: rank %s has not come for %.0f s; the others wait for it", names, self._timeout_s)

    def _find_missing(self) -> list[int]:
        """Send all other ranks the message that this rank waits. Return the numbers of the ranks that send no such
        message, because they are the ranks that the others wait for.

        Every waiting rank calls this method. Only the first waiting rank that is no server gets the list, and logs it.
        For all other ranks the result is [].
        """
        rank, size = self._communicator.rank, self._communicator.size
        messages = [self._communicator.isend(time.time(), other) for other in range(size) if other != rank]
        # Another rank notices its own wait up to a quarter of the timeout later, and then sends its message.
        self._end.wait(GRACE_SECONDS + self._timeout_s / 2)
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
