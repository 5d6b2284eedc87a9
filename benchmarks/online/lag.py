"""Measure the seconds from the rename of a finished part into the folder until its weights answer requests.

A trainer, a service and a sender of requests share the machine. In the folder `filled`, the vocabulary has many
additional values that never occur again. Each of them stands in two rows, so that `prepare.min_count` is reached.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

import numpy as np

from benchmarks.harness.commands import TIMEOUT_SECONDS, ask, free_port, running, wait_until
from benchmarks.online.gain import link_files, prepare_and_train
from data_prep.prepared.schema import read_schema

BETWEEN_REQUESTS = 0.02  # seconds
NUMERIC, CATEGORICAL = 13, 26  # columns of the log
# A short training suffices: the time until a part is served does not depend on the weights.
SHORT_TRAINING = ("train.epochs=1", "train.steps=200")


def make_run(folder: Path, log: Sequence[Path], data: Path, vocabulary: int = 0) -> None:
    """Make the folder `prepared` and the run `warm` in a folder, from the files of a log.

    With `vocabulary`, rows are added whose values fill the vocabulary up to at least this size.
    """
    if (folder / "warm").is_dir():
        return
    folder.mkdir(exist_ok=True)
    link_files(log, folder / "log")
    if vocabulary:
        _fill(folder / "log/filled.txt", log[0], vocabulary)
    prepare_and_train(folder, "log", "prepared", "warm", data, *SHORT_TRAINING)


def _fill(path: Path, like: Path, vocabulary: int) -> None:
    """Write rows whose categorical values are new, each value in two rows.

    Other cells are those of the rows in `like`.
    """
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
    """An online trainer that waits for parts, and a service of its bundles. `trainer_and_service` makes it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.vocabulary = folder, read_schema(folder / "prepared").vocabulary_size
        self.seconds: list[float] = []  # of each part
        self._port, self._body = port, b""

    def version(self) -> str:
        """Let the service score a row.

        Return the version of the model that scored it, or "" if the service does not answer.
        """
        try:
            if not self._body:
                self._body = json.dumps({"rows": [json.loads(ask(self._port, "/v1/status").body)["example"]]}).encode()
            return ask(self._port, "/v1/score", self._body).headers["x-model-version"] or ""
        except (OSError, HTTPException):
            return ""

    def close_part(self, part: Path) -> None:
        """Rename a part into the trainer's folder, and wait until another model version answers. Note the seconds."""
        before = self.version()
        hidden = self.folder / "parts" / f".{part.name}"
        shutil.copy(part, hidden)
        os.sync()  # Writing the copy to the disk is not part of what is timed.
        hidden.rename(hidden.with_name(part.name))
        start = time.perf_counter()
        while (now := self.version()) in ("", before):
            if time.perf_counter() - start > TIMEOUT_SECONDS:
                raise SystemExit(f"{part.name} was not served; look at trainer.log and service.log in {self.folder}")
            time.sleep(BETWEEN_REQUESTS)
        assert now
        self.seconds.append(time.perf_counter() - start)


@contextmanager
def trainer_and_service(folder: Path) -> Iterator[Online]:
    """Start a trainer and a service in a folder that `make_run` has made. End both after the `with` block."""
    for name in ("parts", "bundles", "online"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "parts").mkdir()
    port, logs = free_port(), (folder / "trainer.log", folder / "service.log")
    online = ("app", "online", "parts", "--from", "warm", "--serve", "bundles")
    with running(*online, folder=folder, log=logs[0]) as trainer:
        wait_until(lambda: list((folder / "bundles").glob("step-*/manifest.json")), trainer, logs[0])
        with running("app.cli.serve", "bundles", "--port", str(port), folder=folder, log=logs[1]) as service:
            both = Online(folder, port)
            wait_until(both.version, service, logs[1])
            yield both


def compare(folders: Sequence[Path], parts: Sequence[Path]) -> list[Online]:
    """Close each part once in each folder, in turn. Return the trainers with the seconds of all parts but the first.

    The first part only warms up.
    """
    with ExitStack() as stack:
        each = [stack.enter_context(trainer_and_service(folder)) for folder in folders]
        for part, online in itertools.product(parts, each):
            online.close_part(part)
    for online in each:
        del online.seconds[0]
    return each
