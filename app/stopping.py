"""Why a run stops before its last epoch: a signal, or its time is up. Asked between steps, so no step is cut short.

Exit status: 143 after SIGTERM, 130 after SIGINT (128 and the signal's number, as shells have it), 0 when time is up.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# The ranks of a job get theirs from the launcher, through mpirun, which hands on these two. They may come again.
HANDED_ON = {signal.SIGUSR1: signal.SIGINT, signal.SIGUSR2: signal.SIGTERM}
GO_ON, TIME_IS_UP = -1, 0  # beside numbers of signals, which win where ranks differ
# What is kept free for a save that was never timed: a tenth of the limit, five minutes at most.
UNTIMED_SAVE_SHARE = 0.1
UNTIMED_SAVE_SECONDS = 300.0


class Stopped(Exception):
    """The run stopped early and can be resumed; `exit_status` is the process's."""

    def __init__(self, reason: str, exit_status: int) -> None:
        super().__init__(reason)
        self.exit_status = exit_status


class StopRequest:
    """Listens for signals while it is used as a context manager; `check` raises what was asked for.

    `time_limit_minutes` counts from now; 0 is no limit. `clock` gives seconds. Where several ranks train, `agree` gives
    the largest of their codes, so that all of them stop after the same step.
    """

    def __init__(
        self,
        time_limit_minutes: float,
        clock: Callable[[], float] = time.monotonic,
        agree: Callable[[int], int] = int,
    ) -> None:
        self._agree = agree
        self._limit_seconds = 60 * time_limit_minutes
        self._clock = clock
        self._start = self._checked = clock()
        self._save_seconds = min(UNTIMED_SAVE_SHARE * self._limit_seconds, UNTIMED_SAVE_SECONDS)
        self._received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        self._before = {number: signal.getsignal(number) for number in (*SIGNALS, *HANDED_ON)}
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def note_save(self, seconds: float) -> None:
        """Take into account how long a save took; tables grow, so twice that is kept free for the last one."""
        self._save_seconds = 2 * seconds

    def check(self) -> None:
        """Raise Stopped where a signal came, or where one more step and a save might not end within the limit."""
        code = self._agree(self._code())
        if code == TIME_IS_UP:
            raise Stopped(f"train.time_limit={self._limit_seconds / 60:g} minutes are up", 0)
        if code != GO_ON:
            raise Stopped(f"{signal.Signals(code).name} was received", 128 + code)

    def _code(self) -> int:
        """Why this rank would stop: the number of a signal, or one of the codes above."""
        if self._received is not None:
            return self._received
        self._listen()
        now = self._clock()
        step_seconds, self._checked = now - self._checked, now
        if self._limit_seconds and now - self._start + 2 * step_seconds + self._save_seconds > self._limit_seconds:
            return TIME_IS_UP
        return GO_ON

    def _listen(self) -> None:
        # Again at each check: compiling a graph, MindSpore 2.10 puts a handler of its own in place of SIGINT's, which
        # sends SIGTERM. (So Ctrl-C while the first step compiles ends with 143.)
        for number in SIGNALS:
            signal.signal(number, self._receive)
        for number in HANDED_ON:
            signal.signal(number, self._receive_handed_on)

    def _receive_handed_on(self, number: int, _: FrameType | None) -> None:
        if self._received is None:
            self._received = HANDED_ON[signal.Signals(number)]
            log.warning("%s: finishing the step and saving; a second signal quits at once", self._received.name)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received = signal.Signals(number)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)  # a second signal ends the process at once
        log.warning("%s: finishing the step and saving; a second signal quits at once", self._received.name)
