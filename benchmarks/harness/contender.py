"""Contenders in processes of their own that take steps on command.

Threads, oneDNN's math mode and malloc's settings are read once, at start, so contenders cannot share a process. One
that has no turn is stopped by SIGSTOP. Otherwise its thread pools would spin for a while after their last task, and
its prefetch threads would continue, on the cores of the contender whose turn it is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import TracebackType

from benchmarks.harness.timing import peak_memory_mib
from common.packages import PROJECT

# malloc hands blocks above 32 MiB back to the system by default, so that every step would get fresh pages, each
# of which the kernel has to clear. With these it keeps them.
KEEP_PAGES = {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={2**33}:glibc.malloc.trim_threshold={2**34}"}

Parts = dict[str, float]  # seconds of each part of some steps, by name


class Contender:
    """A child process that runs `serve`. Use it as a context manager, so that it ends with the benchmark."""

    def __init__(self, name: str, module: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.parts: list[Parts] = []  # of each turn
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=PROJECT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()  # works on a stopped process too, and there is nothing to be saved
        self._process.wait()

    def wait_until_ready(self) -> None:
        """Wait until the model is built, and let the process rest. Raises RuntimeError if it ended instead."""
        self._read_reply()
        self._process.send_signal(signal.SIGSTOP)

    def take_steps(self, count: int) -> None:
        """Take `count` steps, and let the process rest again."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        self.parts.append(self._read_reply())
        self._process.send_signal(signal.SIGSTOP)

    @property
    def peak_memory_mib(self) -> float:
        return peak_memory_mib(self._process.pid)

    def _read_reply(self) -> Parts:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise RuntimeError(f"the contender {self.name} ended with status {status}; its message is above")
        reply: Parts = json.loads(line)
        return reply


def serve(take_steps: Callable[[int], Parts]) -> None:
    """The contender's side: say that it is ready, then take as many steps as each line of stdin says.

    `take_steps(count)` returns the seconds of the steps' parts, as far as they can be told apart.
    """
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries that print must not answer for us
    print("{}", file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(take_steps(int(line))), file=replies, flush=True)
