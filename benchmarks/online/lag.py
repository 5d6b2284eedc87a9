"""How long it takes from a part that is closed, which is renamed into the folder, until its weights answer requests.

A trainer, a service and a sender of requests share the machine. With `filled` the vocabulary has many values more that
never come again: two rows for each, so that `prepare.min_count` is reached.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.commands import ENVIRONMENT, run_command
from benchmarks.online.gain import ALL_ROWS, AUTO
from data_prep.prepared.schema import read_schema

TIMEOUT_SECONDS = 300.0
BETWEEN_REQUESTS = 0.02  # seconds
NUMERIC, CATEGORICAL = 13, 26  # columns of the log
SHORT_TRAINING = ("train.epochs=1", "train.steps=200")  # what is scored does not matter here


def make_run(folder: Path, log: Sequence[Path], data: Path, vocabulary: int = 0) -> None:
    """Make `prepared` and the run `warm` in a folder, of a log and values that fill the vocabulary up to a size."""
    if (folder / "warm").is_dir():
        return
    folder.mkdir(exist_ok=True)
    files = folder / "log"
    files.mkdir(exist_ok=True)
    for file in log:
        if not (files / file.name).exists():
            (files / file.name).symlink_to(file.resolve())
    if vocabulary:
        _fill(files / "filled.txt", log[0], vocabulary)
    words = ["--config", str(AUTO), "--data", str(data), *ALL_ROWS, "--overwrite"]
    run_command("data_prep", "prepare", "log", "prepared", *words, folder=folder)
    words = ["--config", str(AUTO), "--dataset", "prepared", "--name", "warm", *SHORT_TRAINING]
    run_command("app", "train", *words, folder=folder)


def _fill(path: Path, like: Path, vocabulary: int) -> None:
    """Write rows with new values in all categorical columns, each value in two rows; the rest as in rows of `like`."""
    num_rows = -(-vocabulary // CATEGORICAL)
    lines = like.read_bytes().splitlines()
    rng = np.random.default_rng(1)
    with path.open("wb") as file:
        for block in range(0, num_rows, 10_000):
            values = rng.integers(1 << 32, size=(min(10_000, num_rows - block), CATEGORICAL))
            for number, row in enumerate(values.tolist()):
                for repeat in range(2):
                    cells = lines[(2 * (block + number) + repeat) % len(lines)].split(b"\t")
                    cells[1 + NUMERIC : 1 + NUMERIC + CATEGORICAL] = [b"%08x" % value for value in row]
                    file.write(b"\t".join(cells) + b"\n")


class Online:
    """A trainer that waits for parts, and a service of its bundles. Use `running`."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.vocabulary = folder, read_schema(folder / "prepared").vocabulary_size
        self.seconds: list[float] = []  # of each part
        self._port, self._body = port, b""

    def version(self) -> str:
        """Let the service score a row, and return the version of the model that did, "" as long as it does not."""
        try:
            if not self._body:
                self._body = json.dumps({"rows": [json.load(self._answer("GET", "/v1/status"))["example"]]}).encode()
            return self._answer("POST", "/v1/score", self._body).headers["x-model-version"] or ""
        except (OSError, HTTPException):
            return ""

    def _answer(self, method: str, path: str, body: bytes | None = None) -> HTTPResponse:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        connection.request(method, path, body, {"content-type": "application/json"})
        return connection.getresponse()

    def close_part(self, part: Path) -> None:
        """Rename a part into the trainer's folder, and wait until another version answers."""
        before = self.version()
        hidden = self.folder / "parts" / f".{part.name}"
        shutil.copy(part, hidden)
        os.sync()  # the copy is none of the part's cost
        hidden.rename(hidden.with_name(part.name))
        start = time.perf_counter()
        while (now := self.version()) in ("", before):
            if time.perf_counter() - start > TIMEOUT_SECONDS:
                raise SystemExit(f"{part.name} was not served; look at trainer.log and service.log in {self.folder}")
            time.sleep(BETWEEN_REQUESTS)
        assert now
        self.seconds.append(time.perf_counter() - start)


@contextmanager
def running(folder: Path) -> Iterator[Online]:
    """Start a trainer and a service in a folder of `make_run`, and end them with the block."""
    for name in ("parts", "bundles", "online"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "parts").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as stack:
        _start(stack, folder, "trainer", "app", "online", "parts", "--from", "warm", "--serve", "bundles")
        _await(lambda: list((folder / "bundles").glob("step-*/manifest.json")), folder)
        _start(stack, folder, "service", "app.cli.serve", "bundles", "--port", str(port))
        online = Online(folder, port)
        _await(online.version, folder)
        yield online


def _start(stack: ExitStack, folder: Path, log: str, *words: str) -> None:
    file = stack.enter_context((folder / f"{log}.log").open("wb"))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", *words], cwd=folder, env=os.environ | ENVIRONMENT, stdout=file, stderr=file
    )
    stack.callback(process.wait, TIMEOUT_SECONDS)
    stack.callback(process.send_signal, signal.SIGTERM)


def _await(found: Any, folder: Path) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while not found():
        if time.monotonic() > until:
            raise SystemExit(f"trainer or service did not start; look at the .log files in {folder}")
        time.sleep(0.1)


def compare(folders: Sequence[Path], parts: Sequence[Path]) -> list[Online]:
    """Close each part once for every folder in turn, the first one to warm up."""
    with ExitStack() as stack:
        each = [stack.enter_context(running(folder)) for folder in folders]
        for part, online in itertools.product(parts, each):
            online.close_part(part)
    for online in each:
        del online.seconds[0]
    return each
