"""Signals of the system that end a program, and a block that lets them wait."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def held() -> Iterator[None]:
    """Let signals wait until the end of the block, and block them for good in threads that are made in it."""
    taken: list[int] = []  # by threads that were there before, and do not block it
    handler = signal.signal(signal.SIGINT, lambda number, _: taken.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if taken:
        signal.raise_signal(signal.SIGINT)
