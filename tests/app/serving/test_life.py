"""Run a service of two worker processes while its folder changes at random and clients send requests. Compare what it
serves with the model in `life.py`.
"""

import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import psutil
import pytest

from app.scoring import bundle_folder, bundle_writer
from app.scoring.bundle_folder import short
from app.scoring.bundle_writer import fold
from app.scoring.predictor import Predictor
from tests.app.serving.conftest import running
from tests.app.serving.life import Life
from tests.app.serving.test_generations import models, moved  # noqa: F401

NUM_OPERATIONS = 2 * int(os.environ.get("NUM_KILLS", "10"))
OPERATIONS = (
    *("export", "delta", "copy_by_file", "repair", "roll_back", "pin", "unpin", "kill_worker") * 2,
    *("damage", "make_unreadable", "put_odd", "delete", "redeploy", "rename", "fold", "restart", "jump"),
)
NUM_ROWS = 20  # of each request
# On a busy machine, one worker may take this many seconds longer to open a model than the worker that was asked for it.
LATE = 5.0
SECONDS = 90.0  # Time in which the service must serve the right version: longer than its longest pause.


class Clients:
    """Two clients that score the same rows again and again: one keeps its connection for 20 requests, the other opens a
    new connection for each.
    """

    def __init__(self, rows):
        self.rows, self.url, self.answers, self.errors = {"rows": rows}, None, [], []
        self._is_over = False
        self._threads = [threading.Thread(target=self._run, args=(keep,), daemon=True) for keep in (True, False)]

    def _run(self, keep):
        while not self._is_over:
            with httpx.Client(timeout=30) as client:
                for _ in range(20 if keep else 1):
                    begin = time.monotonic()
                    try:
                        answer = client.post(f"{self.url}/v1/score", json=self.rows)
                        self.answers.append((begin, answer.status_code, answer.json(), time.monotonic()))
                    except httpx.TransportError as error:
                        self.errors.append((begin, repr(error), time.monotonic()))
                        break
                    time.sleep(0.002)

    def start(self):
        for thread in self._threads:
            thread.start()

    def stop(self):
        self._is_over = True
        for thread in self._threads:
            thread.join()


class Service(Life):
    """A service of two worker processes, to whose folder the methods of `Life` do random things."""

    def __init__(self, folder, make, golden, project):
        (folder / "models").mkdir()
        super().__init__(folder / "models", make)
        self._project, self._log, self._golden = project, folder / "log.txt", golden
        self._process, self._url = None, None
        self.scores, self.serving = {}, set()
        self.allowed = []  # Pairs of a time and the set of versions that may be served from then on.
        self.disturbed = []  # Start and end of each period in which connections may be closed.
        self.clients = Clients(golden.slice(0, NUM_ROWS).to_pylist())
        self.log = []

    def _export(self, output, parent=None):
        copy = super()._export(output, parent)
        if parent is not None and output.parent != self.folder:  # The parent is in another folder than this delta.
            manifest = bundle_folder.read_manifest(output)
            opened = Predictor([*bundle_folder.read_chain(parent), (output, manifest)])
        else:
            opened = Predictor.open(output)
        self.scores[short(copy.version)] = opened.score(self._golden.slice(0, NUM_ROWS)).tolist()
        return copy

    def start(self):
        command = [sys.executable, "-m", "app.cli.serve", str(self.folder), "--port", "0", "--name", "clicks"]
        command += ["--workers", "2", "--watch-seconds", "0.1", "--deadline-ms", "20000", "--max-wait-ms", "20000"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, cwd=self._project, stderr=log)
        while not (found := re.search(r":(\d+) serves ", self._log.read_text())):
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.02)
        self._url = f"http://127.0.0.1:{found[1]}"
        self.clients.url = self._url
        self.serving = {self.model.must_serve(None)}
        self.allowed.append((time.monotonic(), set(self.serving)))

    def stop(self):
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(40) == 0

    def take_folded(self):
        """Record in the model the bundles that the service itself has merged (folded)."""
        for path in bundle_folder.bundles_in(self.folder):
            if path.name not in {*self.model.copies, *self.odd_names} and (path / bundle_folder.MANIFEST).is_file():
                manifest = bundle_folder.read_manifest(path)
                assert manifest.parent is None and manifest.folded in self.model.versions
                self.model.copies[path.name] = type(next(iter(self.model.copies.values())))(manifest.folded, True)

    def expected(self):
        self.take_folded()
        return {self.model.must_serve(version) for version in self.serving}

    def statuses(self):
        """Return the status of the service, asked on twelve connections at once, so that each worker answers some."""

        def ask(_):
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(f"{self._url}/v1/status", timeout=30)
                assert answer.status_code == 200, answer.text
                return answer.json()

        with ThreadPoolExecutor(12) as pool:
            return [status for status in pool.map(ask, range(12)) if status]

    def settle(self):
        """Wait until all workers serve the version that the model says. Fail after SECONDS."""
        until, num_rounds = time.monotonic() + SECONDS, 0
        while num_rounds < 3:
            expected = self.expected()
            found = self.statuses()
            versions = {status["version"] for status in found}
            if found and versions <= set(map(short, expected)) and expected == self.expected():
                pins = {status["pinned"] for status in found}
                if pins == {self.model.pinned and short(self.model.pinned)}:
                    num_rounds += 1
                    continue
            num_rounds = 0
            if time.monotonic() > until:
                states = [{**status, "samples": (), "drift": ()} for status in found[:1]]
                pytest.fail(f"{self.log}: {versions}, expected {expected}\n{states}\n{self._log.read_text()[-3000:]}")
            time.sleep(0.05)
        self.serving = expected
        self.allowed.append((time.monotonic(), set(expected)))

    @contextlib.contextmanager
    def disturbance(self):
        begin = time.monotonic()
        yield
        self.settle()
        self.disturbed.append((begin, time.monotonic()))

    def kill_worker(self, draw):
        started = self.model.must_serve(None)
        if started is None:
            return
        self.serving = self.serving | {started}
        self.allowed.append((time.monotonic(), self.allowed[-1][1] | self.serving))
        with self.disturbance():
            before = {worker.pid for worker in psutil.Process(self._process.pid).children() if worker.name() != "nice"}
            psutil.Process(draw.choice(sorted(before))).kill()

    def restart(self, draw):
        if self.model.must_serve(None) is not None:
            with self.disturbance():
                self.stop()
                self.start()

    def jump(self, draw):
        self.clock_ms += draw.choice([-1, 1]) * draw.randrange(1, 10**9)

    def _post(self, address, body):
        return httpx.post(f"{self._url}/v1/{address}", json=body, timeout=60).status_code

    def _change(self, pinned, address, body):
        """Send a request that changes which version must serve, and check its status. `pinned` is the version that must
        then be pinned, "" for none, or None if the service must refuse the request.
        """
        before = {self.model.must_serve(version) for version in self.serving}
        if pinned is not None:
            self.model.pinned = pinned or None
        self._allow(before)
        assert self._post(address, body) == (409 if pinned is None else 200)

    def _allow(self, more=()):
        """From now on, allow the versions that were allowed before, the versions `more`, and what the model expects
        now.
        """
        self.allowed.append((time.monotonic(), self.allowed[-1][1] | self.serving | set(more) | self.expected()))

    def _allow_since(self, begin, versions):
        """Allow `versions` from the time `begin` on, at which an operation began: a worker may serve its result before
        the operation has returned here.
        """
        place = bisect_right(self.allowed, begin, key=lambda entry: entry[0])
        self.allowed.insert(place, (begin, set(self.allowed[place - 1][1])))
        for _, allowed in self.allowed[place:]:
            allowed |= versions

    def roll_back(self, draw):
        if len(self.serving) == 1:
            (serving,) = self.serving
            older = self.model.older(serving)
            self._change(older[0] if older else None, "rollback", {"version": short(serving)})

    def pin(self, draw):
        version = draw.choice(sorted(self.model.versions))
        there = version in self.model.available()
        self._change(version if there else None, "pin", {"version": short(version)})

    def unpin(self, draw):
        self._change("", "unpin", {})

    def fold(self, draw, fold=fold):
        super().fold(draw, fold)

    def run(self, draw):
        self.export(draw)
        with self.disturbance():
            self.start()
            self.settle()
        self.clients.start()
        try:
            each = sorted(set(OPERATIONS))
            more = max(NUM_OPERATIONS - len(each), 0)
            for name in (*draw.sample(each, len(each)), *draw.choices(OPERATIONS, k=more)):
                self.take_folded()
                self.log.append(name)
                known, begin = set(self.model.versions), time.monotonic()
                getattr(self, name)(draw)
                self._allow_since(begin, self.expected() | set(self.model.versions) - known)
                done = time.monotonic()
                self.settle()
                print(f"{name}: {done - begin:.1f} s, and {time.monotonic() - done:.1f} s until it serves", flush=True)
        finally:
            self.clients.stop()
        self.stop()
        self.check()

    def check(self):
        """Check all answers to the clients: no request failed outside of disturbances, all scores have the right bits,
        and each version was allowed at that time.
        """
        for begin, error, end in self.clients.errors:
            assert any(first <= end and begin <= last for first, last in self.disturbed), error
        assert len(self.clients.answers) > 10 * NUM_OPERATIONS
        ends = [since for since, _ in self.allowed[1:]] + [math.inf]
        for begin, status, answer, end in self.clients.answers:
            assert status == 200, answer
            assert answer["scores"] == self.scores[answer["version"]]
            times = zip(self.allowed, ends, strict=True)
            may = set().union(
                *(versions for (since, versions), until in times if since <= end and begin <= until + LATE)
            )
            assert answer["version"] in set(map(short, may)), (begin, answer["version"], may)


@pytest.mark.kills
def test_a_service_serves_what_it_must(
    make_bundle, tiny_dataset, tiny_config, tiny_state, golden, project, tmp_path, monkeypatch
):
    seed = random.randrange(10**6) if "NUM_KILLS" in os.environ else 1
    print(f"seed {seed}")
    draw, config, states = random.Random(seed), tiny_config(), {}

    def make(partial, parent, beside):
        before = tiny_state if parent is None else states[bundle_folder.read_manifest(parent).version]
        state = moved(before, by=draw.uniform(-1, 1), share=1 if parent is None else 0.04)
        partial.rmdir()
        parent = parent and Predictor.open(parent)
        make_bundle(tiny_dataset, config, state, parent=parent, folder=partial, beside=beside)
        states[bundle_folder.read_manifest(partial).version] = state

    service = Service(tmp_path, make, golden, project)
    monkeypatch.setattr(bundle_writer, "time", SimpleNamespace(time_ns=lambda: service.clock_ms * 10**6))
    try:
        service.run(draw)
    finally:
        if service._process and service._process.poll() is None:
            service._process.terminate()
            service._process.wait(40)


def documented_lines(project):
    page = (project / "docs" / "serving.md").read_text()
    section = page.partition("## Which model serves\n")[2].partition("\n## ")[0]
    return re.findall(r"(?m)^ {4}(\S.*)$", section)


def test_each_documented_line_does_what_it_says(models, project, tmp_path, eventually):  # noqa: F811
    """But for the exports, which `tests/app/cli/test_export.py` runs: their bundles are copied."""
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    (tmp_path / "models").mkdir()
    first, second = (short(bundle_folder.read_manifest(models[0] / name).version) for name in ("1", "2"))
    expected = iter([  # folder and pin after each line but the exports, and the answer's status
        ("0001", None), ("0002", None),
        ("0002", second), ("0001", first), ("0002", None),
        ("0001", first), ("0002", None), ("0002", None),
    ])  # fmt: skip
    port = 0

    def status():
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/status", timeout=60).json()
        return answer["folder"], answer["pinned"]

    with contextlib.ExitStack() as services:
        for line in documented_lines(project):
            found = re.fullmatch(r"python -m app export device_0 (models/(\d+))( --delta-from models/\d+)?", line)
            if found:
                shutil.copytree(models[0] / str(int(found[2])), tmp_path / "copy")
                (tmp_path / "copy").rename(tmp_path / found[1])
                continue
            line = line.replace("CURRENT", second).replace("VERSION", second if "/v1/pin" in line else first)
            if line.startswith("python -m app serve models"):
                services.close()
                command = [*line.split()[1:], "--port", "0", "--watch-seconds", "0.1"]
                _, port = services.enter_context(running(command, tmp_path, PYTHONPATH=str(project)))
            else:
                line = line.replace("localhost:8000", f"127.0.0.1:{port}").replace("curl", "curl -fsS")
                subprocess.run(["bash", "-c", line], check=True, capture_output=True, timeout=60)
            wanted = next(expected)
            eventually(lambda wanted=wanted: status() == wanted)
        with pytest.raises(StopIteration):
            next(expected)
        httpx.post(f"http://127.0.0.1:{port}/v1/pin", json={"version": first}, timeout=60)
        assert [
            json.loads((tmp_path / name / "current.json").read_text())["pinned"] for name in ("state", "models")
        ] == [first, None]
