"""The steps of the Dockerfile, in a clean virtual environment: the core alone serves."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.app.serving.conftest import running
from tests.programs import run_program


def versions(path):
    pins = re.findall(r"^([\w.-]+)==([^ \n]+)", path.read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in pins}


def test_versions_are_those_of_the_lock(project):
    serving, lock = versions(project / "requirements-serving.txt"), versions(project / "requirements.lock")
    assert serving.items() <= lock.items()
    extra = re.search(r"serving = \[(.*?)\]", (project / "pyproject.toml").read_text(), re.S)[1]
    assert dict(re.findall(r'"([\w-]+)==([\d.]+)"', extra)).items() <= serving.items()


@pytest.mark.slow
def test_the_steps_of_the_dockerfile_make_a_service(project, tmp_path, tiny_bundle, golden, golden_scores, eventually):
    root = tmp_path / "serving"
    root.mkdir()
    build = (project / "Dockerfile").read_text().split("\nFROM ")[1]
    commands = [line for line in build.splitlines() if line.startswith(("COPY ", "RUN ")) and "apt-get" not in line]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).resolve().parent}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    for word, _, rest in (line.partition(" ") for line in commands):
        if word == "COPY":
            source, target = (rest.split()[0], root / rest.split()[1])
            built = shutil.ignore_patterns("build", "__pycache__")
            (project / source).is_dir() and shutil.copytree(project / source, target, ignore=built)
            if (project / source).is_file():
                target.mkdir(exist_ok=True)
                shutil.copy(project / source, target)
        else:
            subprocess.run(["bash", "-c", rest], cwd=root, env=environment, check=True, timeout=500)
    entry = json.loads(re.search(r"ENTRYPOINT (.*)", (project / "Dockerfile").read_text())[1])
    assert "mindspore" not in run_program(entry[0], "-m", "pip", "list", cwd=root).stdout.lower()
    with running([*entry[1:], tiny_bundle, "--port", "0"], root, entry[0], PATH=environment["PATH"]) as (_, port):
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/score", json={"rows": golden.to_pylist()}, timeout=30)
        assert answer.json()["scores"] == golden_scores
