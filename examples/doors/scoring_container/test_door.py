"""The steps of the Dockerfile without Docker: a linter accepts them, and their packages alone score."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

DOCKERFILE = Path(__file__).with_name("Dockerfile")
# Disk space of the packages. Measured: see docs/integrations.md.
MOST_MB = 400


def steps():
    """The instructions of the Dockerfile as pairs of word and rest."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    return [line.split(" ", 1) for line in lines]


@pytest.fixture
def root():
    """The root of an image."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_the_linter_finds_nothing():
    linter = Path(sys.executable).with_name("hadolint")
    subprocess.run([linter, "--failure-threshold", "style", DOCKERFILE], check=True)


def test_the_packages_of_the_bundle_alone_score(folder, root):
    shutil.copy(DOCKERFILE.parents[3] / "requirements-serving.txt", folder)
    python = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run([python, "-m", "venv", root / "venv"], check=True)
    packages = next(root.glob("venv/lib/*/site-packages"))
    before = size_of(packages)
    environment, user, commands = {"PATH": f"{root}/venv/bin:/usr/bin:/bin"}, None, {}

    def run(command, **options):
        command = [re.sub(r"^/(?=bundle|build)", f"{root}/", word) for word in command]
        return subprocess.run(command, env=environment, cwd="/tmp", check=True, timeout=500, **options)

    for word, rest in steps():
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                into = root / target.strip("/")
                if (folder / source).is_dir():
                    shutil.copytree(folder / source, into)
                else:
                    into.mkdir(exist_ok=True)
                    shutil.copy(folder / source, into)
        elif word == "RUN":
            run(rest.split())
        elif word == "ENV":
            pairs = (pair.split("=") for pair in rest.split())
            environment |= {name: value.replace("/bundle", f"{root}/bundle") for name, value in pairs}
        elif word == "USER":
            user = rest
        elif word in ("HEALTHCHECK", "ENTRYPOINT", "CMD"):
            commands[word] = json.loads(rest[rest.index("[") :])
    assert int(user.split(":")[0]) > 0  # A number, by which Kubernetes can tell that it is not root.
    run(commands["HEALTHCHECK"])
    scores = run([*commands["ENTRYPOINT"], "-", "-"], input=Path("new.txt").read_bytes(), stdout=subprocess.PIPE).stdout
    run_of_project = [".venv/bin/python", "-m", "app.cli.predict", "bundle", "new.txt", "expected.csv"]
    subprocess.run(run_of_project, check=True)
    assert scores == Path("expected.csv").read_bytes() and scores.count(b"\n") == 2001
    megabytes = (size_of(packages) - before) / 1e6
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    print(f"packages {megabytes:.0f} MB, memory of the largest process {memory:.0f} MB")
    assert megabytes < MOST_MB


def size_of(folder):
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
