"""Log which ranks keep the others waiting, and end the job if a rank does not answer. In each process, a thread, the
watchdog, observes how long the process waits.

Each process marks its waits for other ranks with `waiting`. The watchdog of a rank that has waited too long asks those
of all other ranks if their rank waits, too. The others wait for the ranks that do not. A watchdog that does not answer
cannot be reached: its host, the connection to it or its process is lost. As long as no rank waits too long, nothing is
sent.
"""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger(__name__)

LONG_WAIT_SECONDS = 5.0  # Waits for other ranks that take at least this time are logged.
# Shortest and longest pause, in seconds, after which `wait_asleep` checks again if a message has arrived.
SHORTEST_SLEEP, LONGEST_SLEEP = 2e-5, 3e-4
# Longest pause, in seconds, between two looks of a watchdog at its own wait and at the questions of others.
LONGEST_PAUSE = 5.0
# A rank that has not answered after this time, in seconds, is lost. A watchdog answers at its next look, and the others
# may be late because a process has no core, or copies a large array.
ANSWER_SECONDS = 15.0
QUESTION, ANSWER = 0, 1  # Tags of the messages.


# Times (of the monotonic clock) at which threads of this process began to wait for other ranks, and still do.
_waits: list[float] = []


def _waiting_since() -> float | None:
    return min(_waits, default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Mark the `with` block as a time in which this process waits for other ranks. Log the wait if it was long."""
    start = time.monotonic()
    _waits.append(start)
    try:
        yield
    finally:
        _waits.remove(start)
        if (seconds := time.monotonic() - start) >= LONG_WAIT_SECONDS:
            log.info("waited %.0f s for other ranks: one was busy or slow, or the network was interrupted", seconds)


def wait_asleep(request: MPI.Request) -> None:
    """Wait until an MPI request is complete, without keeping a core busy that another thread or rank may need."""
    seconds = SHORTEST_SLEEP
    while not request.Test():
        time.sleep(seconds)
        seconds = min(2 * seconds, LONGEST_SLEEP)


class Watchdog:
    """Runs a thread, to the end of the process, that acts if this process waits too long for other ranks.

    Once this rank has waited for `timeout_s` seconds, the thread finds the ranks that the others wait for, and logs a
    warning. If a rank does not answer, it logs an error and ends the job. The first `first` ranks are servers, which
    log no warnings.
    """

    def __init__(self, world: MPI.Comm, timeout_s: float, first: int = 0) -> None:
        self._communicator = world.Dup()
        self._hosts = world.allgather(platform.node())
        self._others = [rank for rank in range(world.size) if rank != world.rank]
        self._timeout_s, self._first = timeout_s, first
        self._pause = min(timeout_s / 4, LONGEST_PAUSE)
        self._sent: list[MPI.Request] = []  # Messages that may still be on their way, whose memory must be kept.
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        reported = None  # Time at which the last wait began that the thread has reported. It reports each wait once.
        while True:
            time.sleep(self._pause)
            self._answer()
            since = _waiting_since()
            if since is not None and since != reported and time.monotonic() - since >= self._timeout_s:
                reported = since
                answers = self._ask(since)
                if since == _waiting_since():
                    self._report(answers)

    def _ask(self, since: float) -> dict[int, bool]:
        """Ask all other ranks if they wait. Return the answers of those that answer before this wait has ended.

        `since` is the time at which the wait began, and the number of the question.
        """
        answers, end = dict[int, bool](), time.monotonic() + ANSWER_SECONDS
        for other in self._others:
            self._send(since, other, QUESTION)
        while len(answers) < len(self._others) and time.monotonic() < end and since == _waiting_since():
            time.sleep(self._pause / 4)
            self._answer()
            for other, (question, waits) in self._received(ANSWER):
                if question == since:
                    answers[other] = waits
        return answers

    def _answer(self) -> None:
        """Answer the questions of other ranks: True if this rank has waited for at least half the timeout."""
        for other, question in self._received(QUESTION):
            since = _waiting_since()
            waits = since is not None and time.monotonic() - since > self._timeout_s / 2
            self._send((question, waits), other, ANSWER)

    def _report(self, answers: Mapping[int, bool]) -> None:
        own, seconds = self._communicator.rank, self._timeout_s
        for lost in set(self._others) - answers.keys():
            log.error(
                "error: rank %d on host %s does not answer rank %d on host %s, which has waited for %.0f s: its "
                "process hangs, or the connection is lost, even if mpirun still reaches both hosts; run the same "
                "command again to resume from the last checkpoint",
                *(lost, self._hosts[lost], own, self._hosts[own], seconds),
            )
            logging.shutdown()
            self._communicator.Abort(1)
        missing = sorted(rank for rank, waits in answers.items() if not waits)
        # Of the waiting ranks, only the first one that is no server logs the warning.
        if missing and own == min({own, *self._others}.difference(missing, range(self._first)), default=None):
            names = ", ".join(f"{rank} (a server)" if rank < self._first else str(rank) for rank in missing)
            # The warning is logged as an error, because every rank shows errors on the console.
            log.error("warning: rank %s has not come for %.0f s; the others wait for it", names, seconds)

    def _send(self, message: object, to: int, tag: int) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(self._communicator.isend(message, to, tag))

    def _received(self, tag: int) -> Iterator[tuple[int, Any]]:
        """Yield the messages with this tag that have arrived, each with the rank that has sent it."""
        for other in self._others:
            while self._communicator.iprobe(other, tag):
                yield other, self._communicator.recv(source=other, tag=tag)
