"""The project's own commands, run as a user runs them, and what they left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPMessage
from pathlib import Path
from typing import Any

import psutil

from app.run.logs import METRICS
from app.run.record import read_lines
from common.packages import PROJECT
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Schema

ENVIRONMENT = {"PYTHONPATH": str(PROJECT)}
OUTPUT_END = 2000  # characters of a failed command's output
TIMEOUT_SECONDS = 300.0


def run_command(*arguments: str, folder: Path, tree: Path = PROJECT, **environment: str) -> str:
    """Run `python -m …` of a working tree in `folder` and return what it printed.

    Raises SystemExit with its errors if it fails.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tree), **environment},
    )
    if done.returncode:
        command = f"python -m {' '.join(arguments)} in {folder}"
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stderr[-OUTPUT_END:]}")
    return done.stdout


def start(*words: str | Path, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start `python -m …` in `folder`. What it prints is added to the file `log`."""
    command = [sys.executable, "-P", "-m", *map(str, words)]
    with log.open("ab") as output:
        return subprocess.Popen(command, cwd=folder, env=os.environ | ENVIRONMENT, stdout=output, stderr=output)


@contextmanager
def running(*words: str | Path, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run what `start` does until the end of the block, which ends it by SIGTERM, and wait for all that it started."""
    process = start(*words, folder=folder, log=log)
    try:
        yield process
    finally:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
        psutil.wait_procs(below, TIMEOUT_SECONDS)  # a service may be folding a bundle


def wait_until(found: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for something that a process does. Raises SystemExit if it ends instead, or takes five minutes."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while not found():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"error: what was started has ended or does not get ready; look into {log}")
        time.sleep(0.05)


def stop_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was started here, and all that it started."""
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in below:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Answer:
    status: int
    headers: HTTPMessage
    body: bytes


def ask(port: int, path: str, body: bytes | None = None, form: str = "application/json") -> Answer:
    """Ask a service of this machine, by POST if there is a body. Raises OSError or HTTPException if none answers."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET" if body is None else "POST", path, body, {"content-type": form})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


def is_ready(port: int) -> bool:
    """Return whether a service answers, other than that its model is being opened. Peers have no such address."""
    with suppress(OSError, HTTPException):
        return ask(port, "/v2/health/ready").status != 503
    return False


@contextmanager
def work_folder(path: str | Path | None) -> Iterator[Path]:
    """Give the absolute path of a folder, which is made if it does not exist, or of one that the block removes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(path or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


@contextmanager
def checked_out(commit: str, with_native: bool = True) -> Iterator[Path]:
    """Give the files of a commit of this project, its native parts built, in a folder that the block removes."""
    with tempfile.TemporaryDirectory(prefix="commit-") as folder:
        packed = subprocess.run(["git", "-C", PROJECT, "archive", commit], check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
        for makefile in sorted(Path(folder).rglob("csrc/Makefile") if with_native else ()):
            subprocess.run(["make", "-s", "-C", makefile.parent, f"PYTHON={sys.executable}", "all"], check=True)
        yield Path(folder)


def folder_of(variable: str) -> Path:
    """Return the folder of logs that are not in this project. Raises SystemExit if the variable does not name it."""
    if variable not in os.environ:
        raise SystemExit(f"error: {variable} names no folder with these logs")
    return Path(os.environ[variable]).resolve()


def remembered(path: Path, make: Any) -> Any:
    """Return the JSON of `path`, which `make` produces if it does not exist."""
    if not path.is_file():
        path.write_text(json.dumps(make()), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def read_rows(folder: Path, schema: Schema, split: str) -> Examples:
    """Return all rows of a prepared folder's split, in the order written."""
    return concatenate(list(read_blocks(folder, schema, split)))


def validations(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl with evaluations of the split `valid`, in the order written."""
    return [line for line in read_lines(run / METRICS) if line.get("split") == "valid"]
