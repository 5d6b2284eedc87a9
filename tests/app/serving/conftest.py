"""Fixtures for tests of the service: a service in this process, and one in a process of its own. Both serve the bundle
of the scoring tests.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pyarrow.parquet as pq
import pytest

from app.serving.generations import Generations
from app.serving.observed import Observed
from app.serving.options import Limits, ServerOptions
from app.serving.service import Service
from tests.app.scoring.conftest import (  # noqa: F401
    make_bundle,
    make_state,
    predictor,
    text_bundle,
    text_dataset,
    tiny_bundle,
    tiny_state,
)


def run_beside(application, function):
    """Call the coroutine `function` with an HTTP client that sends its requests to `application` in this process."""

    async def run():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://here") as client:
            return await function(client)

    return asyncio.run(run())


class Client:
    """Sends requests to an application in this process."""

    def __init__(self, application):
        self._application = application

    def request(self, method, path, **request):
        return run_beside(self._application, lambda client: client.request(method, path, **request))

    def get(self, path, **request):
        return self.request("GET", path, **request)

    def post(self, path, **request):
        return self.request("POST", path, **request)


@contextmanager
def running(command, folder, python=sys.executable, is_open=True, output=None, **environment):
    """Run a service as a process during the `with` block: `python COMMAND`. Yield the process and its port, with
    `is_open` only after the model has been opened.
    """
    environment = {**os.environ, **environment}
    with subprocess.Popen(
        [python, *command], cwd=folder, stdout=output, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            line = process.stderr.readline()
            match = re.search(r":(\d+) serves", line)
            assert match, line + process.stderr.read()
            if is_open:
                httpx.get(f"http://127.0.0.1:{match[1]}/v1/status", timeout=60)
            yield process, int(match[1])
        finally:
            process.terminate()
            process.stderr.close()


@pytest.fixture(scope="session")
def golden(tiny_bundle):  # noqa: F811
    """Return the bundle's golden rows, which are made up, without their logits and scores."""
    return pq.read_table(tiny_bundle / "golden.parquet").drop_columns(["logit", "score", "tolerance"])


@pytest.fixture(scope="session")
def golden_scores(predictor, golden):  # noqa: F811
    return predictor.score(golden).tolist()


@pytest.fixture(scope="session")
def golden_logits(predictor, golden):  # noqa: F811
    return predictor.logits(golden).tolist()


@pytest.fixture
def make_service():
    """Return a function that opens a service of the bundles at `path` in this process."""

    def make(path, **limits):
        options = ServerOptions(path, "clicks", limits=Limits(**limits), allowed_hosts=("*",))
        return Service(Generations(options, is_first=False), Observed(), options)

    return make


@pytest.fixture(scope="session")
def service(tiny_bundle):  # noqa: F811
    options = ServerOptions(tiny_bundle, "clicks", allowed_hosts=("*",))
    return Service(Generations(options, is_first=False), Observed(), options)


@pytest.fixture(scope="session")
def client(service):
    return Client(service)


@pytest.fixture(scope="session")
def serve(project):
    """Return a context manager that runs the command `serve` on a free port, and yields the process and the port."""

    def run(path, *arguments, **environment):
        command = ["-m", "app.cli.serve", path, "--port", "0", "--name", "clicks", *arguments]
        return running(command, project, **environment)

    return run


@pytest.fixture(scope="module")
def served(serve, tiny_bundle):  # noqa: F811
    with serve(tiny_bundle) as (process, port):
        yield process, port


@pytest.fixture(scope="module")
def port(served):
    return served[1]


@pytest.fixture
def eventually():
    """Return a function that waits until a condition holds, and fails if it does not hold in time."""

    def wait(condition, seconds=20):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "in vain"
            time.sleep(0.02)

    return wait
