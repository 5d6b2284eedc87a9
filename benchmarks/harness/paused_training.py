"""A training that takes steps only when it is asked to, so that several of them can take turns on one machine."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from app.run.folder import METRICS
from app.run.record import read_lines
from benchmarks.harness.commands import TIMEOUT_SECONDS, start, wait_until
from common.packages import PROJECT


class PausedTraining:
    """The command `train`, started in a folder of its own. SIGSTOP suspends its processes between the calls of `take`.

    `batch_size` is train.batch_size. The processes are those that work in the folder: ranks on other hosts of this
    machine are among them. `close` ends them.
    """

    def __init__(
        self,
        *words: str,
        folder: Path,
        batch_size: int,
        tree: Path = PROJECT,
        before: Callable[[], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir()
        self._folder, self._log, self._batch_size = folder, folder / "train.log", batch_size
        self._process = start(
            "app", "train", *words, folder=folder, log=self._log, tree=tree, before=before, **(environment or {})
        )

    def take(self, lines: int) -> list[float]:
        """Resume the training until it has written that many lines of metrics.jsonl, and suspend it again.

        Return the seconds of a step by each of the lines. The line before them contains the pause, and is left out.
        """
        path = self._folder / "device_0" / METRICS

        def seconds() -> list[float]:
            speeds = [line.get("samples_per_second") for line in read_lines(path)] if path.is_file() else []
            return [self._batch_size / speed for speed in speeds if speed]

        first = len(seconds()) + 1
        self._send(signal.SIGCONT)
        wait_until(lambda: len(seconds()) >= first + lines, self._process, self._log)
        self._send(signal.SIGSTOP)
        return seconds()[first:]

    def close(self) -> None:
        """End the training without a checkpoint: the first SIGTERM asks for one, the second ends everything."""
        self._send(signal.SIGCONT)
        for _ in range(2):
            self._process.terminate()
            time.sleep(0.5)
        self._process.wait(TIMEOUT_SECONDS)
        for process in (left := self._processes()):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, TIMEOUT_SECONDS)

    def _send(self, number: int) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _processes(self) -> list[psutil.Process]:
        """Return the Python processes of the training: the launcher, if there is one, and the ranks."""
        found = []
        for process in psutil.process_iter(["name", "cwd"]):
            if process.info["cwd"] == str(self._folder) and process.info["name"].startswith("python"):
                found.append(process)
        return found
