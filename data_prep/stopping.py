"""SIGINT and SIGTERM as an exception in the main thread, and not in the middle of starting a process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """A signal asked the program to end; no error, so what handles errors lets it pass, as KeyboardInterrupt."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.name = signal.Signals(number).name
        self.exit_status = 128 + number


@contextmanager
def stop_by_signals() -> Iterator[None]:
    """Raise Stopped in the block at the first signal; a second one ends the process at once."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def stop(number: int, _: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        raise Stopped(number)

    for number in SIGNALS:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals_held() -> Iterator[None]:
    """Signals that come meanwhile come at the end of the block; processes started in it never get SIGINT.

    Ctrl-C goes to all processes of a terminal: a worker that is still starting would print a traceback, and so would
    one whose parent leaves it half-started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in received[:1]:
            os.kill(os.getpid(), number)
