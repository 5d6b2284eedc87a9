"""SIGINT and SIGTERM end the program at the next safe place: never in the middle of an import or of starting a process.

An exception out of the signal's handler would do that, and leave locks behind that other threads wait for.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: list[int] = []


class Stopped(BaseException):
    """A signal asked the program to end; no error, so what handles errors lets it pass, as KeyboardInterrupt."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.name = signal.Signals(number).name
        self.exit_status = 128 + number


@contextmanager
def stop_by_signals() -> Iterator[None]:
    """In the block, the first signal is noted for `check_stop`; a second one ends the process at once."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, _: FrameType | None) -> None:
        _received.append(number)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()


def check_stop() -> None:
    """A safe place: raise Stopped where a signal was noted."""
    if _received:
        raise Stopped(_received[0])


@contextmanager
def children_without_interrupt() -> Iterator[None]:
    """Processes started in the block never get SIGINT.

    Ctrl-C goes to all processes of a terminal, and a worker that is still starting would print a traceback.
    """
    resource_tracker.ensure_running()  # of multiprocessing: starting it would let the signal through again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
