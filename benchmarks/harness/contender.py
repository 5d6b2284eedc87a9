"""Contenders in processes of their own that take steps on command.

Threads, oneDNN's math mode and malloc's settings are read once, at start, so contenders cannot share a process. A
contender that has no turn is stopped by SIGSTOP. Otherwise its thread pools would spin for a while after their last
task, and its prefetch threads would continue, on the cores of the contender whose turn it is.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

from benchmarks.harness.timing import peak_memory_mib

# By default, malloc returns freed blocks above 32 MiB to the system, so that every step would get fresh pages, each
# of which the kernel has to clear. With these settings malloc keeps the pages of freed blocks.
KEEP_PAGES = {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={2**33}:glibc.malloc.trim_threshold={2**34}"}

Parts = dict[str, float]  # Seconds that each part of some steps took, by the name of the part.


class Contender:
    """A process that runs the function `contender(*arguments)` of a module, which returns a function that takes steps.

    The function that takes steps is called with their number, and returns the seconds that each part of them took, if
    the contender can tell its parts apart (such as lookup, tower and update).
    Use the object with `contextlib.closing`, so that the process ends with the benchmark.
    """

    def __init__(self, name: str, module: str, arguments: tuple[Any, ...], environment: Mapping[str, str]) -> None:
        self.name = name
        self.parts: list[Parts] = []  # of each turn
        self._connection, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, module, arguments))
        with patch.dict(os.environ, environment):
            self._process.start()
        theirs.close()

    def close(self) -> None:
        self._process.kill()  # SIGKILL also ends a stopped process. There is nothing to save.
        self._process.join()

    def wait_until_ready(self) -> None:
        """Wait until the process has built its model, then stop the process until it takes steps.

        Raise RuntimeError if the process ended instead.
        """
        self._receive()

    def take_steps(self, count: int) -> None:
        """Let the process continue, take `count` steps and note the seconds of their parts. Then stop it again."""
        os.kill(self._process.pid or 0, signal.SIGCONT)
        self._connection.send(count)
        self.parts.append(self._receive())

    @property
    def peak_memory_mib(self) -> float:
        return peak_memory_mib(self._process.pid or "self")

    def _receive(self) -> Parts:
        try:
            parts: Parts = self._connection.recv()
        except EOFError:
            self._process.join()
            status = self._process.exitcode
            raise RuntimeError(f"{self.name} ended with status {status}; its message is above") from None
        os.kill(self._process.pid or 0, signal.SIGSTOP)
        return parts


def _serve(commands: Connection, module: str, arguments: tuple[Any, ...]) -> None:
    """Run in the contender's process: report that it is ready, then take as many steps as each command says."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What libraries print is not part of the benchmark's output.
    take_steps = importlib.import_module(module).contender(*arguments)
    commands.send({})
    while True:
        commands.send(take_steps(commands.recv()))
