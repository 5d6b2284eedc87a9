"""Handle or defer SIGINT and SIGTERM, the signals that end a program.

With `stop_by_signals`, a program ends at the next safe point (a call of `check_stop`). If the signal handler raised an
exception instead, it could end the program anywhere, such as in an import or while a process is started, and leave a
lock behind that other threads wait for.
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
    """Install `handler` for the signals `numbers` inside the `with` block. At the end of the block, restore the
    handlers that were installed before.
    """
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class StopSignal(BaseException):
    """Raised by `check_stop` after SIGTERM or SIGINT.

    `exit_status` is the exit status that shells expect: 128 plus the number of the signal. Like KeyboardInterrupt, this
    class is derived from BaseException, so `except Exception` does not catch a StopSignal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.name = signal.Signals(number).name
        self.exit_status = 128 + number


@contextmanager
def stop_by_signals(at_once: bool = False) -> Iterator[None]:
    """Inside the `with` block, only record the first SIGTERM or SIGINT, so that `check_stop` raises StopSignal.

    A second signal kills the process. With `at_once`, the first signal raises StopSignal as soon as it arrives.
    """

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
    """Let Ctrl-C end this process at once and silently, until another handler for SIGINT is set.

    A command calls this function before slow imports, during which Python's default handler would print a traceback.
    """
    # A process that was started to ignore SIGINT, for example in the background, must continue to ignore it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def check_stop() -> None:
    """Raise StopSignal if `stop_by_signals` has recorded a signal. Call it at points where the program may end."""
    if _received:
        raise StopSignal(_received[0])


@contextmanager
def children_without_interrupt() -> Iterator[None]:
    """Let all processes that are started inside the `with` block ignore Ctrl-C: they never receive SIGINT.

    A terminal sends the SIGINT of Ctrl-C to all processes of the command, and a worker that is still starting would
    print a traceback.
    """
    # Start the resource tracker, a process that multiprocessing needs, before SIGINT is blocked, because starting it
    # unblocks SIGINT.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
