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

from app.run.folder import METRICS
from app.run.record import read_lines
from common.packages import PROJECT
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Schema

ENVIRONMENT = {"PYTHONPATH": str(PROJECT)}
OUTPUT_END = 2000  # Number of characters at the end of a failed command's output that are shown.
TIMEOUT_SECONDS = 300.0


def run_command(
    *arguments: str,
    folder: Path,
    tree: Path = PROJECT,
    before: Callable[[], None] | None = None,
    **environment: str,
) -> str:
    """Run `python -m …` with the sources in `tree`, in the working folder `folder`. Return what it printed.

    If another tree than this project's has an environment .venv, its Python runs. The new process calls `before` first.
    Raise SystemExit with the end of its error output if it fails.
    """
    own_python = tree / ".venv/bin/python"
    python = own_python if tree != PROJECT and own_python.is_file() else sys.executable
    done = subprocess.run(
        [python, "-P", "-m", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tree), **environment},
        preexec_fn=before,
    )
    if done.returncode:
        command = f"python -m {' '.join(arguments)} in {folder}"
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stderr[-OUTPUT_END:]}")
    return done.stdout


def start(
    *words: str | Path,
    folder: Path,
    log: Path,
    tree: Path = PROJECT,
    before: Callable[[], None] | None = None,
    **environment: str,
) -> subprocess.Popen[bytes]:
    """Start `python -m …` with the sources in `tree` in `folder`, and return the process. What it prints is appended to
    the file `log`. The new process calls `before` first.
    """
    command = [sys.executable, "-P", "-m", *map(str, words)]
    variables = os.environ | {"PYTHONPATH": str(tree), **environment}
    with log.open("ab") as output:
        return subprocess.Popen(command, cwd=folder, env=variables, stdout=output, stderr=output, preexec_fn=before)


@contextmanager
def running(
    *words: str | Path, folder: Path, log: Path, before: Callable[[], None] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `python -m …` as `start` does, for the `with` block. After the block, end it by SIGTERM.

    Then wait until the process and all processes that it started have ended.
    """
    process = start(*words, folder=folder, log=log, before=before)
    try:
        yield process
    finally:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
        psutil.wait_procs(below, TIMEOUT_SECONDS)  # A service may still be merging a bundle with its delta.


def wait_until(found: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until `found` returns a true value, while `process` runs.

    Raise SystemExit if the process ends first, or after five minutes.
    """
    until = time.monotonic() + TIMEOUT_SECONDS
    while not found():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"error: what was started has ended or does not get ready; look into {log}")
        time.sleep(0.05)


def stop_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that this program started, and all processes that it has started."""
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
    """Send a request to a service on this machine, and return its answer. With a `body`, the request is a POST.

    Raise OSError or HTTPException if no service answers.
    """
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET" if body is None else "POST", path, body, {"content-type": form})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


def is_ready(port: int) -> bool:
    """Return True if a service answers, except with the status 503, which means that its model is being opened.

    Services of peers answer that there is no such address, and count as ready.
    """
    with suppress(OSError, HTTPException):
        return ask(port, "/v2/health/ready").status != 503
    return False


@contextmanager
def work_folder(path: str | Path | None) -> Iterator[Path]:
    """Yield the absolute path of a folder for the `with` block. Create it if it is missing.

    Without `path` it is a temporary folder, which is removed after the block.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(path or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


@contextmanager
def checked_out(commit: str, with_native: bool = True) -> Iterator[Path]:
    """Yield a temporary folder with the files of a commit of this project. It is removed after the `with` block.

    By default the native parts are built in it. If `commit` is a folder, such as a clone after `make setup`, yield it.
    """
    if Path(commit).is_dir():
        yield Path(commit).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="commit-") as folder:
        packed = subprocess.run(["git", "-C", PROJECT, "archive", commit], check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
        for makefile in sorted(Path(folder).rglob("csrc/Makefile") if with_native else ()):
            subprocess.run(["make", "-s", "-C", makefile.parent, f"PYTHON={sys.executable}", "all"], check=True)
        yield Path(folder)


def folder_of(variable: str) -> Path:
    """Return the folder that an environment variable names, with logs that are not part of this project.

    Raise SystemExit if the variable is not set.
    """
    if variable not in os.environ:
        raise SystemExit(f"error: {variable} names no folder with these logs")
    return Path(os.environ[variable]).resolve()


def remembered(path: Path, make: Any) -> Any:
    """Return the content of the JSON file `path`. If it does not exist, write the result of `make` to it first."""
    if not path.is_file():
        path.write_text(json.dumps(make()), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def read_rows(folder: Path, schema: Schema, split: str) -> Examples:
    """Return all rows of a split of a prepared folder, in the order in which they were written."""
    return concatenate(list(read_blocks(folder, schema, split)))


def validations(run: Path) -> list[dict[str, Any]]:
    """Return a run's evaluations on the split `valid`, which are lines of metrics.jsonl, in order."""
    return [line for line in read_lines(run / METRICS) if line.get("split") == "valid"]
