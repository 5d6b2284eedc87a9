"""The project's own commands, run as a user runs them, and what their runs left behind.

python -m benchmarks.harness.commands       is the process of a `CommandServer`: commands come by stdin, one JSON line
each
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from common.packages import PROJECT

ENVIRONMENT = {"PYTHONPATH": str(PROJECT)}
OUTPUT_END = 2000  # characters of a failed command's output


def run_command(*arguments: str, folder: Path) -> str:
    """Run `python -m …` in `folder` and return what it printed. Raises SystemExit with its errors if it fails."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | ENVIRONMENT,
    )
    if done.returncode:
        raise SystemExit(f"python -m {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-OUTPUT_END:]}")
    return done.stdout


@contextmanager
def work_folder(path: str | Path | None) -> Iterator[Path]:
    """Give the absolute path of a folder, which is made if it does not exist, or of one that the block removes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(path or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def remembered(path: Path, make: Any) -> Any:
    """Return the JSON of `path`, which `make` produces if it does not exist."""
    if not path.is_file():
        path.write_text(json.dumps(make()), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


class CommandServer:
    """Runs commands of the project one after another in one process, which imports MindSpore only once.

    Start it in a `with` block. The output of the commands goes to `log_path`.
    """

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> CommandServer:
        with self._log_path.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "benchmarks.harness.commands"],
                env=os.environ | ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()  # no command is running, or the one that is will not be waited for
        self._process.wait()

    def run(self, module: str, *arguments: str, folder: Path) -> None:
        """Run `python -m MODULE …` in `folder`. Raises SystemExit with the end of its output if it fails."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        job = {"module": module, "arguments": arguments, "folder": str(folder)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if answer != "0\n":
            output = self._log_path.read_text(encoding="utf-8", errors="replace")[-OUTPUT_END:]
            raise SystemExit(
                f"python -m {module} {' '.join(arguments)} ended with {answer.strip() or 'no answer'}:\n{output}"
            )


def serve() -> None:
    """The server's side: answer each line of stdin with the exit status of its command."""
    from app.__main__ import main as app_main
    from benchmarks.harness.score_rows import main as score_rows_main

    mains = {"app": app_main, "benchmarks.harness.score_rows": score_rows_main}
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what commands print must not answer for us
    for line in sys.stdin:
        job = json.loads(line)
        os.chdir(job["folder"])
        print(mains[job["module"]](job["arguments"]), file=answers, flush=True)


def validations(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl with evaluations of the split `valid`, in the order written."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line.get("split") == "valid"]


if __name__ == "__main__":
    serve()
