"""Contenders in processes of their own that take steps on command.

Threads, oneDNN's math mode and malloc's settings are read once, at start, so contenders cannot share a process. One
that has no turn is stopped by SIGSTOP. Otherwise its thread pools would spin for a while after their last task, and
its prefetch threads would continue, on the cores of the contender whose turn it is.
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

# malloc hands blocks above 32 MiB back to the system by default, so that every step would get fresh pages, each
# of which the kernel has to clear. With these it keeps them.
KEEP_PAGES = {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={2**33}:glibc.malloc.trim_threshold={2**34}"}

Parts = dict[str, float]  # seconds of each part of some steps, by name


class Contender:
    """A process of a module's `contender(*arguments)`, which returns a function that takes `count` steps.

    That returns the seconds of the steps' parts, as far as they can be told apart. Use it by `contextlib.closing`, so
    that it ends with the benchmark.
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
        self._process.kill()  # works on a stopped process too, and there is nothing to be saved
        self._process.join()

    def wait_until_ready(self) -> None:
        """Wait until the model is built, and let the process rest. Raises RuntimeError if it ended instead."""
        self._receive()

    def take_steps(self, count: int) -> None:
        """Take `count` steps, and let the process rest again."""
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
    """Report that the contender is ready, then take as many steps as each command says."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is none of the benchmark's output
    take_steps = importlib.import_module(module).contender(*arguments)
    commands.send({})
    while True:
        commands.send(take_steps(commands.recv()))
