"""Fixtures of the doors' tests. They run in the environment of a door, which may have no package but pytest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "integrations.md"
LINKED = (".venv", ".venv-doors", "configs", "examples")  # What the page's commands use of the project.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the page's commands run as they do in a user's project: with the links LINKED, the logs
    log.txt and new.txt, `prepared`, the run `device_0` and `bundle`. The test runs in it.
    """
    for name in LINKED:
        (tmp_path / name).symlink_to(PROJECT / name)
    shutil.copytree(os.environ["DOORS_MATERIAL"], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def commands() -> Callable[[str], list[str]]:
    """A function that returns the commands in the section of docs/integrations.md with a given heading."""

    def of_section(heading: str) -> list[str]:
        (section,) = re.findall(rf"(?ms)^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", PAGE.read_text())
        blocks = re.findall(r"(?ms)^```bash\n(.*?)^```", section)
        lines = [re.sub(r"\s+# .*", "", line) for block in blocks for line in block.splitlines()]
        found = [line for line in lines if line and not line.startswith("make ")]
        assert found, f"the section {heading} of {PAGE.name} has no command"
        return found

    return of_section


@pytest.fixture
def run(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs a shell command to its end in `folder`, with further variables of the environment. It fails
    if the exit status is not `status`.
    """

    def run(command: str, status: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == status, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    return run


@pytest.fixture
def small(folder: Path) -> str:
    """The name of a file of settings for a short training, with several checkpoints and several lines of metrics."""
    text = (PROJECT / "configs" / "tiny.yaml").read_text().replace("epochs: 1", "epochs: 3\n  log_every_steps: 3")
    (folder / "small.yaml").write_text(text + "checkpoint:\n  every_steps: 7\n")
    return "small.yaml"


@pytest.fixture
def interrupted(
    run: Callable[..., subprocess.CompletedProcess[str]], folder: Path, small: str
) -> Callable[[str], None]:
    """A function that runs a program of the page with the settings `small` three times: killed after the fifth and then
    after the third line of metrics, which lie between two checkpoints, and to its end.
    """

    def interrupted(command: str) -> None:
        command = command.replace("configs/auto.yaml", small)
        for calls in (5, 3):
            run(command.replace("bin/python ", f"bin/python examples/doors/killed.py {calls} "), status=-9)
        run(command)
        assert not list(folder.glob("tracked.*"))  # A training that starts over moves its old folder there.

    return interrupted


@pytest.fixture
def service(folder: Path) -> Iterator[Callable[..., str]]:
    """A function that starts the scoring service with `bundle` on a free port, and returns its address, HOST:PORT."""
    with ExitStack() as stack:

        def start(*options: str) -> str:
            command = [".venv/bin/python", "-m", "app.cli.serve", "bundle", "--port", "0", *options]
            log = stack.enter_context((folder / "service.log").open("w+"))
            process = stack.enter_context(subprocess.Popen(command, cwd=folder, stderr=log))
            stack.callback(process.terminate)
            for _ in range(600):
                time.sleep(0.1)
                if found := re.search(r":(\d+) serves", (folder / "service.log").read_text()):
                    return f"localhost:{found[1]}"
                assert process.poll() is None, (folder / "service.log").read_text()
            raise AssertionError("the service did not start within a minute")

        yield start
