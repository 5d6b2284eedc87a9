"""The signals that end a program, and a block that defers them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def held() -> Iterator[None]:
    """Defer signals to the end of the block; threads that are started in it block them for good."""
    taken: list[int] = []  # by threads that were started before, and do not block it
    handler = signal.signal(signal.SIGINT, lambda number, _: taken.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if taken:
        signal.raise_signal(signal.SIGINT)
