"""Console output of a command: progress bars, log lines, and the end of a command whose output nobody reads.

On a terminal and in a notebook, progress is a bar, with log lines above it. Elsewhere (a file, a pipe, mpirun) it is a
plain line every ten seconds, without carriage returns or escape sequences.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
from typing import Any, TextIO

from tqdm import tqdm

SECONDS_PER_LINE = 10.0
STOPPED_BY_READER = 128 + signal.SIGPIPE  # exit status, as shells have it
_STDOUT = 1
_MOVE_UP = "\x1b[A"  # by which tqdm returns from a second bar's line
_LINE = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
_LINE_WITHOUT_TOTAL = "{desc}: {n_fmt}{unit} [{elapsed}, {rate_fmt}{postfix}]"


def progress_bar(**options: Any) -> tqdm:
    """Return tqdm's bar on a terminal or in a notebook. Elsewhere it prints a line every ten seconds, and none for
    short work.
    """
    if type(sys.stderr).__module__.startswith("ipykernel"):  # has carriage returns, no size and one line for all bars
        return tqdm(**{"mininterval": 0.5, "ncols": 110, **options, "position": 0})
    if sys.stderr.isatty():
        return tqdm(**{"mininterval": 0.5, **options})
    line = _LINE if options.get("total") else _LINE_WITHOUT_TOTAL
    times = dict.fromkeys(("mininterval", "maxinterval", "delay"), SECONDS_PER_LINE)
    return tqdm(**{**options, **times}, file=_Lines(sys.stderr), bar_format=line)


def log_to_console() -> None:
    """Write log messages to standard error, each on a line of its own."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[AboveBars(sys.stderr)])


def has_no_reader(error: BaseException) -> bool:
    """Return True if `error` came because the reader of standard output, such as `head`, has closed it.

    Later output is then discarded. Any other broken pipe, such as to a worker, is an error like others.
    """
    if not isinstance(error, BrokenPipeError):
        return False
    poll = select.poll()
    poll.register(_STDOUT, select.POLLOUT)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return True


class AboveBars(logging.StreamHandler[TextIO]):
    """Writes a message on a line of its own above a bar that is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(self.stream):
            super().emit(record)


class _Lines:
    """Stream that turns tqdm's drawing into lines. A reader that has closed the stream does not end the work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = ""

    def write(self, text: str) -> None:
        if (line := text.replace(_MOVE_UP, "").strip()) not in ("", self._last):
            self._last = line
            with contextlib.suppress(OSError):
                self._stream.write(line + "\n")
                self._stream.flush()

    def flush(self) -> None:
        """Do nothing: each line is flushed as it is written."""
