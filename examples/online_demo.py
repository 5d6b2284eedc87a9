"""Demonstrate online training (`make online-demo`) with a drifting log, a model, and a service of the newest model.

The model is first trained on the beginning of the log. An online trainer then trains it on the rest, part by part. All
files are written to ONLINE_DEMO_DIR (demo/online/). At the end, a table of the parts is printed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from data_prep.prepared.truth import truth_path

PROJECT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("ONLINE_DEMO_DIR", PROJECT / "demo/online"))
# Number of rows of the log. The model is first trained on half of them. The other half is divided into the parts
# (files) on which the online trainer trains it.
ROWS = int(os.environ.get("ONLINE_DEMO_ROWS", "400000"))
# Environment variables with which Python finds the project's modules from any working folder.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(PROJECT)}
NUM_PARTS = 10
TIMEOUT_SECONDS = 300
COLUMNS = "part, rows, AUC online, frozen, best possible, log loss, calibration, new ids, seconds until served"
MODULES = {"prepare": "data_prep", "synthesize": "data_prep", "serve": "app.cli.serve"}


def command(name: str, *words: str | Path) -> list[str]:
    """Return the command line of a command of the project. Print it in the form in which a user would type it."""
    module = MODULES.get(name, "app")
    given = [*([] if module.endswith(name) else [name]), *map(str, words)]
    print(f"== python -m {module} {' '.join(given)}".replace(f"{PROJECT}/", ""), flush=True)
    return [sys.executable, "-P", "-m", module, *given]


def run(name: str, *words: str | Path) -> None:
    """Run a command of the project, and wait for its end. Raise CalledProcessError if it fails."""
    subprocess.run(command(name, *words), cwd=FOLDER, check=True, env=ENVIRONMENT)  # noqa: S603


def start(stack: ExitStack, log: str, name: str, *words: str | Path) -> subprocess.Popen[bytes]:
    """Start a command of the project in the background, and return its process. Its output goes to the file `log`.

    When `stack` closes, the process gets SIGTERM.
    """
    file = stack.enter_context((FOLDER / log).open("wb"))
    process = subprocess.Popen(  # noqa: S603
        command(name, *words), cwd=FOLDER, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT
    )
    stack.callback(process.wait, TIMEOUT_SECONDS)
    stack.callback(process.send_signal, signal.SIGTERM)
    return process


def await_it(found: Callable[[], Any], *processes: subprocess.Popen[bytes]) -> Any:
    """Call the function `found` repeatedly until it returns a true value, and return this value.

    Raise RuntimeError if one of the processes ends, or after TIMEOUT_SECONDS.
    """
    until = time.monotonic() + TIMEOUT_SECONDS
    while not (result := found()):
        if time.monotonic() > until or any(process.poll() is not None for process in processes):
            raise RuntimeError(f"the demo stopped waiting; look at trainer.log and service.log in {FOLDER}")
        time.sleep(0.02)
    return result


def served(port: int) -> str:
    """Return the version of the model that the service uses, or "" if the service does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/status", timeout=5) as answer:
            return str(json.load(answer)["version"])
    except OSError:
        return ""


def held(part: str) -> str:
    """Return the reason why the online trainer has held the part (file of the log) `part` aside, which means that it
    does not train on it. Return "" if it has not held it aside.
    """
    path = FOLDER / "online/status.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["held"].get(part, "")) if path.exists() else ""


def metrics() -> list[dict[str, Any]]:
    """Return the trainer's records about parts of the log, which are lines of metrics.jsonl."""
    path = FOLDER / "online/metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if "part" in line]


def main() -> None:
    """Run the demo. Raise CalledProcessError or RuntimeError if a command fails."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    part_rows = ROWS // 2 // NUM_PARTS
    run("synthesize", "log", "--rows", str(ROWS), "--drift", str(part_rows), "--part-rows", str(part_rows))
    later = sorted((FOLDER / "log").glob("*.txt"))[-NUM_PARTS:]
    coming = FOLDER / "coming"
    coming.mkdir()
    for path in later:
        for each in (path, truth_path(path)):
            each.rename(coming / each.name)
    auto, drift = PROJECT / "configs/auto.yaml", PROJECT / "configs/data/drift.yaml"
    run("prepare", "log", "prepared", "--config", auto, "--data", drift)
    # Six of about twelve epochs, because more would take most of the demo's time on a busy machine.
    run("train", "--config", auto, "--dataset", "prepared", "--name", "warm", "train.epochs=6")
    run("export", "warm", "frozen")
    (FOLDER / "parts").mkdir()
    seconds: dict[str, float] = {}
    with ExitStack() as stack, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = ["parts", "--from", "warm", "--serve", "bundles"]
        trainer = start(stack, "trainer.log", "online", *words, "--frozen", "frozen")
        await_it(lambda: list((FOLDER / "bundles").glob("step-*/manifest.json")), trainer)
        service = start(stack, "service.log", "serve", "bundles", "--port", str(port))
        version = await_it(lambda: served(port), trainer, service)
        for path in later:
            for each in (truth_path(path), path):
                # Set the file's time to now, because the online run takes it as the time at which the part was
                # complete.
                (coming / each.name).touch()
                (coming / each.name).rename(FOLDER / "parts" / each.name)
            closed = time.monotonic()
            before = version

            def next_version(before: str = before) -> str:
                return now if (now := served(port)) != before else ""

            def outcome(name: str = path.name, next_version: Callable[[], str] = next_version) -> str:
                return next_version() or held(name)

            await_it(outcome, trainer, service)
            if reason := held(path.name):
                print(f"{path.name} is held aside: {reason}", flush=True)
                run("online", "release", path.name)
            version = await_it(next_version, trainer, service)
            seconds[path.name] = time.monotonic() - closed
    print(f"\n| {COLUMNS.replace(', ', ' | ')} |\n{'|---' * len(COLUMNS.split(', '))}|")
    for line in metrics():
        measured = ("auc", "frozen_auc", "best_auc", "log_loss", "calibration")
        cells = [f"{line[name]:.4f}" if name in line else "–" for name in measured]
        cells += [f"{line['new_values']:,}", f"{seconds[line['part']]:.1f}"]
        print(f"| {line['part']} | {line['rows']:,} | {' | '.join(cells)} |")
    print(f"\n== done: {FOLDER}/online is the run, {FOLDER}/bundles what was served; docs/online.md says more")


if __name__ == "__main__":
    main()
