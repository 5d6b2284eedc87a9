"""A service in this process, and one in a process of its own, over the bundle of the scoring tests."""

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


class Client:
    """Sends requests to an application in this process."""

    def __init__(self, application):
        self._transport = httpx.ASGITransport(application)

    def request(self, method, path, **request):
        async def send():
            async with httpx.AsyncClient(transport=self._transport, base_url="http://here") as client:
                return await client.request(method, path, **request)

        return asyncio.run(send())

    def get(self, path, **request):
        return self.request("GET", path, **request)

    def post(self, path, **request):
        return self.request("POST", path, **request)


@pytest.fixture(scope="session")
def golden(tiny_bundle):  # noqa: F811
    """Made-up rows without their scores."""
    return pq.read_table(tiny_bundle / "golden.parquet").drop_columns(["logit", "score", "tolerance"])


@pytest.fixture(scope="session")
def golden_scores(predictor, golden):  # noqa: F811
    return predictor.score(golden).tolist()


@pytest.fixture
def make_service():
    """Opens services."""

    def make(path, **limits):
        options = ServerOptions(path, "clicks", limits=Limits(**limits), allowed_hosts=("*",))
        return Service(Generations(options, folds=False), Observed(), options)

    return make


@pytest.fixture(scope="session")
def service(tiny_bundle):  # noqa: F811
    options = ServerOptions(tiny_bundle, "clicks", allowed_hosts=("*",))
    return Service(Generations(options, folds=False), Observed(), options)


@pytest.fixture(scope="session")
def client(service):
    return Client(service)


@pytest.fixture(scope="session")
def serve(project):
    """Runs `serve` on a free port; gives the process and the port."""

    @contextmanager
    def run(path, *arguments, **environment):
        command = [sys.executable, "-m", "app.cli.serve", str(path), "--port", "0", "--name", "clicks", *arguments]
        with subprocess.Popen(
            command, cwd=project, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        ) as process:
            try:
                line = process.stderr.readline()
                found = re.search(r":(\d+) serves", line)
                assert found, line + process.stderr.read()
                httpx.get(f"http://127.0.0.1:{found[1]}/v1/status", timeout=60)  # answered when the model is open
                yield process, int(found[1])
            finally:
                process.terminate()
                process.stderr.close()

    return run


@pytest.fixture(scope="module")
def port(serve, tiny_bundle):  # noqa: F811
    with serve(tiny_bundle) as (_, port):
        yield port


@pytest.fixture
def eventually():
    """Waits until a condition holds."""

    def wait(condition, seconds=20):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "in vain"
            time.sleep(0.02)

    return wait
