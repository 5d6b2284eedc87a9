"""The signals that end a program, and blocks that handle or defer them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Let `handler` handle these signals in the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def held() -> Iterator[None]:
    """Defer signals to the end of the block. Threads that are started in it block them for good."""
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
