"""The registered model scores as the bundle does, in Python and over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

COLUMNS = ["label", *(f"I{number}" for number in range(1, 14)), *(f"C{number}" for number in range(1, 27))]


@contextmanager
def served(command: str, port: int):
    """Run a server in the `with` block, which begins when the server answers."""
    with Path("server.log").open("w") as log:
        process = subprocess.Popen(["bash", "-c", command], stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < end, Path("server.log").read_text()[-4000:]
                time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def post(port: int, content: dict) -> tuple[int, dict]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", json.dumps(content).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_registered_model_scores_as_the_bundle(commands, run):
    register, score, serve, _ = commands("MLflow's registry")
    assert "as models:/clicks/1" in run(register).stdout
    assert "as models:/clicks/2" in run(register).stdout
    run(score)
    run(".venv/bin/python -m app.cli.predict bundle new.txt expected.csv")
    expected = pd.read_csv("expected.csv")["score"].to_numpy("float32")
    assert (pd.read_csv("scores.csv")["score"].to_numpy("float32") == expected).all() and len(expected) == 2000
    rows = pd.read_csv("new.txt", sep="\t", header=None, names=COLUMNS, dtype=str, keep_default_na=False)[:50]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with served(serve.replace("5000", str(port)), port):
        status, answer = post(port, {"dataframe_split": rows.to_dict("split", index=False)})
        assert status == 200 and answer["predictions"] == pytest.approx(expected[:50].tolist(), rel=1e-6)
        status, answer = post(port, {"dataframe_records": [{**rows.iloc[0], "I1": "many"}]})
        assert status == 400 and "I1" in json.dumps(answer)


def test_other_folder_is_refused(run):
    program = ".venv-doors/mlflow_registry/bin/python examples/doors/mlflow_registry/register.py"
    assert "prepared is not a bundle" in run(f"{program} prepared clicks", status=1).stderr
