"""Stop a run early, after a signal or at the time limit. Both are checked between steps, so no step is interrupted.

While MindSpore 2.10 compiles or runs a graph, it installs its own handler for SIGINT, which sends SIGTERM to this
process (`SignalGuard` in its signal_util.h). Some of its threads install it permanently. Therefore no handler may be
called at all: all threads block SIGINT and SIGTERM, and one thread of this module waits for these signals.

Exit status: 143 after SIGTERM, 130 after SIGINT (128 plus the signal's number, as in shells), 0 at the time limit.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from common.process import started_by_mpi
from common.signals import SIGNALS

log = logging.getLogger(__name__)

_END = signal.SIGRTMIN  # Signal to this module's thread, which waits for signals, that it must end.
# Under mpirun, the launcher sends SIGUSR1 instead of SIGINT and SIGUSR2 instead of SIGTERM. mpirun forwards these two
# to the ranks. A rank may receive a signal repeatedly: scancel and systemd send SIGTERM to the ranks as well as to the
# launcher. So only the launcher ends the job after a second signal.
FORWARDED_SIGNALS = {signal.SIGUSR1: signal.SIGINT, signal.SIGUSR2: signal.SIGTERM}

# A rank's reason to stop is one of these codes or the number of the signal that it received. If ranks have different
# reasons, the largest number counts, so a signal counts before the time limit.
CONTINUE, TIME_LIMIT = -1, 0
# Time that is reserved for the last save before any save has been timed: a tenth of the time limit, at most five
# minutes.
UNTIMED_SAVE_SHARE = 0.1

UNTIMED_SAVE_SECONDS = 300.0


class Stopped(Exception):
    """Raised to stop a run early, so that it can be resumed. `exit_status` is the exit status of the process."""

    def __init__(self, reason: str, exit_status: int) -> None:
        super().__init__(reason)
        self.exit_status = exit_status


class StopRequest:
    """Context manager, for the main thread, in whose block SIGINT and SIGTERM make `check` raise `Stopped`.

    `check` also raises it at the time limit, `time_limit_minutes` after the construction; 0 means no limit. `clock`
    returns seconds. `all_reduce_max` takes this rank's reason to stop as a code, and returns the largest code of all
    ranks, so that all ranks stop after the same step. `ending` is a text for the log after SIGINT or SIGTERM: what the
    program still does before it ends.
    """

    def __init__(
        self,
        time_limit_minutes: float,
        clock: Callable[[], float] = time.monotonic,
        all_reduce_max: Callable[[int], int] = int,
        ending: str = "finishing the step and saving",
    ) -> None:
        self._all_reduce_max = all_reduce_max
        self._ending = ending
        self._limit_seconds = 60 * time_limit_minutes
        self._clock = clock
        self._start = self._checked = clock()
        self._save_seconds = min(UNTIMED_SAVE_SHARE * self._limit_seconds, UNTIMED_SAVE_SECONDS)
        self._received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        self._before = {number: signal.getsignal(number) for number in (*SIGNALS, *FORWARDED_SIGNALS)}
        self._listen()
        # Block SIGINT and SIGTERM. Threads that are started from now on inherit the blocked signals.
        self._mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {*SIGNALS, _END})
        self._waiter = threading.Thread(target=self._wait_for_signals, name="signals", daemon=True)
        self._waiter.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._waiter.ident is not None
        signal.pthread_kill(self._waiter.ident, _END)
        self._waiter.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)

    def _wait_for_signals(self) -> None:
        while (number := signal.sigwait({*SIGNALS, _END})) != _END:
            self._take(number)

    def note_save(self, seconds: float) -> None:
        """Record that saving a checkpoint took `seconds`. Twice this time is reserved before the time limit for the
        last save, because tables grow.
        """
        self._save_seconds = 2 * seconds

    def check(self) -> None:
        """Raise Stopped after SIGINT or SIGTERM, or if one more training step and the saving of a checkpoint might end
        after the time limit.
        """
        code = self._all_reduce_max(self._code())
        if code == TIME_LIMIT:
            raise Stopped(f"train.time_limit={self._limit_seconds / 60:g} minutes are up", 0)
        if code != CONTINUE:
            raise Stopped(f"{signal.Signals(code).name} was received", 128 + code)

    def _code(self) -> int:
        """Return this rank's reason to stop as a number: that of the signal received, TIME_LIMIT, or CONTINUE if there
        is no reason.
        """
        if self._received is not None:
            return self._received
        self._listen()
        now = self._clock()
        step_seconds, self._checked = now - self._checked, now
        if self._limit_seconds and now - self._start + 2 * step_seconds + self._save_seconds > self._limit_seconds:
            return TIME_LIMIT
        return CONTINUE

    def _listen(self) -> None:
        # Also install handlers, because library threads that started before SIGINT and SIGTERM were blocked may receive
        # these signals. Each call of `check` installs the handlers again, because MindSpore may have replaced them.
        for number in SIGNALS:
            signal.signal(number, self._receive)
        for number in FORWARDED_SIGNALS:
            signal.signal(number, self._receive_handed_on)

    def _receive_handed_on(self, number: int, _: FrameType | None) -> None:
        if self._received is None:
            self._note(FORWARDED_SIGNALS[signal.Signals(number)])

    def _receive(self, number: int, _: FrameType | None) -> None:
        # From now on, the system itself ends the process on these signals (or ignores them under mpirun), even while
        # the main thread is in a library's function.
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN if started_by_mpi() else signal.SIG_DFL)
        self._take(number)

    def _take(self, number: int) -> None:
        if self._received is None:
            self._note(number)
        elif not started_by_mpi():
            quit_at_once(number)

    def _note(self, number: int) -> None:
        self._received = signal.Signals(number)
        log.warning("%s: %s; a second signal quits at once", self._received.name, self._ending)


def quit_at_once(number: int) -> None:
    """End this process by the signal `number` (SIGINT or SIGTERM), as if the process had no handler for it. Any thread
    may call this function.
    """
    # Reset the handler with C's signal(number, SIG_DFL), because Python's signal.signal only works in the main thread.
    ctypes.CDLL(None).signal(ctypes.c_int(number), None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
