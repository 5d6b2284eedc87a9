"""The signals that end a program, and blocks that handle or defer them.

`stop_by_signals` ends a program at the next safe point, never in the middle of an import or of starting a process. An
exception raised by the signal's handler would do that, and leave locks behind that other threads wait for.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_received: list[int] = []


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Let `handler` handle these signals in the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class Stopped(BaseException):
    """Raised after a stop signal. A BaseException, like KeyboardInterrupt, so `except Exception` does not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.name = signal.Signals(number).name
        self.exit_status = 128 + number


@contextmanager
def stop_by_signals(at_once: bool = False) -> Iterator[None]:
    """In the block, note the first signal for `check_stop`, or raise Stopped `at_once`. A second one kills."""

    def note(number: int, _: FrameType | None) -> None:
        _received.append(number)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        if at_once:
            check_stop()

    try:
        with handled(note, SIGNALS):
            yield
    finally:
        _received.clear()


def die_quietly() -> None:
    """Let Ctrl-C end this process at once, until it is handled: Python's own way shows where an import was."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and is not ignored, as behind nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def check_stop() -> None:
    """Raise Stopped if a signal was noted. Call it at safe points."""
    if _received:
        raise Stopped(_received[0])


@contextmanager
def children_without_interrupt() -> Iterator[None]:
    """Start processes in the block that never get SIGINT.

    Ctrl-C goes to all processes of a terminal, and a worker that is still starting would print a traceback.
    """
    resource_tracker.ensure_running()  # of multiprocessing: starting it would let the signal through again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
