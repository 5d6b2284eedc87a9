"""Show the progress bars and log lines of a command.

On a terminal and in a notebook, progress is a bar with log lines above it. Elsewhere (a file, a pipe, mpirun) it is a
plain line every ten seconds, without carriage returns or escape sequences. `has_no_reader` lets a command end quietly
if the program that read its output has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import time
from typing import Any, TextIO

from tqdm import tqdm

from common.text import printable

SECONDS_PER_LINE = 10.0
# Exit status of a command whose output pipe was closed by its reader. Shells report the same status.
STOPPED_BY_READER = 128 + signal.SIGPIPE
_STDOUT = 1
_MOVE_UP = "\x1b[A"  # Escape sequence that moves the cursor one line up. tqdm writes it after drawing a second bar.
_LINE = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
_LINE_WITHOUT_TOTAL = "{desc}: {n_fmt}{unit} [{elapsed}, {rate_fmt}{postfix}]"


def progress_bar(**options: Any) -> tqdm:
    """Return a tqdm progress bar. The options are those of `tqdm.tqdm`.

    On a terminal or in a notebook, progress is drawn as a bar. Elsewhere it is printed as a line every ten seconds, and
    work that takes less than ten seconds prints no line.
    """
    # A notebook redraws a line after a carriage return, but does not report a width, and cannot draw one bar above
    # another. So the width of bars is fixed, and all bars are drawn in the same line.
    if _is_notebook():
        return tqdm(**{"mininterval": 0.5, "ncols": 110, **options, "position": 0, "file": sys.stdout})
    if sys.stderr.isatty():
        return tqdm(**{"mininterval": 0.5, **options})
    line = _LINE if options.get("total") else _LINE_WITHOUT_TOTAL
    times = dict.fromkeys(("mininterval", "maxinterval", "delay"), SECONDS_PER_LINE)
    return tqdm(**{**options, **times}, file=_Lines(sys.stderr), bar_format=line)


def log_stream() -> TextIO:
    """Return the stream for log lines: standard error.

    In a notebook, which shows standard error in red, return standard output.
    """
    return sys.stdout if _is_notebook() else sys.stderr


def _is_notebook() -> bool:
    return type(sys.stderr).__module__.startswith("ipykernel")


def log_to_console() -> None:
    """Let the program's log messages appear on standard error, each on a line of its own."""
    logging.basicConfig(level=logging.INFO, handlers=[AboveBars(sys.stderr)])


def log_with_times() -> None:
    """Let each later log line of this process begin with its time in UTC.

    The time is written as in the access log of the scoring service.
    """
    formatter = PrintableFormatter("%(asctime)s.%(msecs)03d+00:00 %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    for handler in logging.getLogger().handlers:
        if isinstance(handler, AboveBars):
            handler.setFormatter(formatter)


class PrintableFormatter(logging.Formatter):
    """Formats log messages with control characters escaped.

    Names and values from users' data may contain such characters.
    """

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def has_no_reader(error: BaseException) -> bool:
    """Return True if `error` means that the reader of standard output, such as `head`, has closed its end of the pipe.

    In this case, also redirect standard output to /dev/null, so that later output is discarded without an error. Return
    False for all other errors, including a broken pipe to a worker process.
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
    """Log handler that writes each message above the progress bars on the terminal, so that they do not mix."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(PrintableFormatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(self.stream):
            super().emit(record)


class _Lines:
    """Output stream for tqdm that writes each state of a progress bar as a line of its own.

    If the bar has not changed since the last line, no line is written. If the underlying stream cannot be written, for
    example because its reader has closed it, the text is dropped.
    """

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
        """Do nothing, because `write` sends each line to the underlying stream at once."""
