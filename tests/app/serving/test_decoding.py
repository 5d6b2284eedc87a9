"""Large bodies are decoded in another process: the answers are the same, and nothing that it does stops the service."""

import asyncio
import http.client
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psutil
import pytest

from app.serving.decoding import DecodingProcess
from app.serving.forms.form import RequestError
from app.serving.forms.tensors import HEADER_LENGTH
from app.serving.options import Limits
from app.serving.service import EXPLAIN, MOST_EXPLAINED_BYTES
from tests.app.serving.conftest import Client, run_beside
from tests.app.serving.test_service import ARROW, binary_of, infer_of, lines_of
from tests.request_bodies import arrow_stream

MIB = 1 << 20
BOMBS = {
    "tabs": ("text/plain", b"\t" * (30 * MIB)),
    "objects": ("application/json", b'{"rows": [' + b"{}," * (8 * MIB) + b"{}]}"),
    "cells": ("text/csv", b"," * (30 * MIB)),
}


def post(port, form, body):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/v1/score", body, {"content-type": form})
        answer = connection.getresponse()
        return answer.status, json.load(answer)


def slowest_health(port, is_done):
    """The longest time in which health is answered, asked all the time."""
    slowest = 0.0
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        while not is_done():
            start = time.monotonic()
            connection.request("GET", "/v2/health/live")
            connection.getresponse().read()
            slowest = max(slowest, time.monotonic() - start)
            time.sleep(0.005)
    return slowest


@pytest.mark.parametrize(
    "bomb", ["objects", *(pytest.param(bomb, marks=pytest.mark.slow) for bomb in BOMBS if bomb != "objects")]
)
def test_health_is_answered_beside_a_body_that_takes_seconds(served, bomb):
    process, port = served
    before = psutil.Process(process.pid).memory_info().rss
    with ThreadPoolExecutor(1) as sender:
        for _ in range(2):
            sent = sender.submit(post, port, *BOMBS[bomb])
            assert slowest_health(port, sent.done) < 0.5
            status, answer = sent.result()
            assert status in (400, 413, 504) and answer["error"]  # 504 where other work takes the processor
    assert psutil.Process(process.pid).memory_info().rss - before < 140 * MIB


def slow_bodies(golden):
    """Bodies that hold a decoder of the service for as long as their size allows."""
    header, cells = ",".join(golden.schema.names), "," * (len(golden.schema.names) - 1)
    for other in (",", "," + "x" * 4000):  # in a column of no field
        yield "text/csv", "\n".join([f"{header},o", *[f"{cells}{other}"] * 5000, f"no integer{cells}{other}"]).encode()
    for num_bytes in (MIB, MOST_EXPLAINED_BYTES):
        number = b"1.2345678901234567e-300"  # slow to read
        numbers = b",".join([number] * ((num_bytes - 99) // (len(number) + 1)))
        yield "application/json", b'{"rows": [{"I1": [' + numbers + b"]}]}"


def test_no_body_holds_the_event_loop(make_service, tiny_bundle, golden, monkeypatch):
    """Time is what this process has had, all of its threads, between two turns of the loop: so no other work counts."""
    monkeypatch.setattr("app.serving.decoding.DECODE_SECONDS", 120)  # where other work takes the processor
    service = make_service(tiny_bundle, deadline_ms=60_000)
    # Started before: a process takes a tenth of a second to start.
    for process in (service._decoding, service._decoding_huge):
        process.run(str, b"")

    async def post_beside_a_clock(client):
        slowest, answers = {}, []
        for number, (form, body) in enumerate(slow_bodies(golden)):
            for path in ("/v1/score", EXPLAIN)[: 1 + (len(body) <= MOST_EXPLAINED_BYTES)]:
                sent = asyncio.create_task(client.post(path, content=body, headers={"content-type": form}))
                last, slowest[path, number] = time.process_time(), 0.0
                while not sent.done():
                    await asyncio.sleep(0)
                    now = time.process_time()
                    slowest[path, number], last = max(slowest[path, number], now - last), now
                answers.append(sent.result().json()["error"])
        return slowest, answers

    slowest, answers = run_beside(service, post_beside_a_clock)
    print(slowest)
    assert max(slowest.values()) < 0.12, slowest  # 0.05 where nothing else runs
    assert all(answer.startswith("line 5002") for answer in answers[:2])


def wrong(rows, number):
    return [*rows[:number], {**rows[number], "C3": "no hex"}, *rows[number + 1 :]]


def requests_of(golden):
    """Bodies of every form, right and wrong."""
    rows, binary = golden.to_pylist(), binary_of(golden)
    columns = ",".join(golden.schema.names)
    cells = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    bad_line = cells[7].replace(",", ",x", 1)
    yield "/v1/score", "application/json", json.dumps({"rows": rows}).encode(), None
    yield "/v1/score", "application/json", json.dumps({"rows": wrong(rows, 5)}).encode(), None
    yield "/v1/score", "application/json", b'{"rows": []}', None
    yield "/v1/score", "text/plain", lines_of(golden).encode(), None
    yield "/v1/score", "text/plain", lines_of(golden).replace("\t", "\tx", 70).encode(), None
    yield "/v1/score", "text/csv", "\n".join([columns, *cells]).encode(), None
    yield "/v1/score", "text/csv", "\n".join([columns, *cells[:7], bad_line, *cells[8:]]).encode(), None
    yield "/v1/score", ARROW, arrow_stream(golden), None
    yield "/v2/models/clicks/infer", "application/json", json.dumps({"id": "9", **infer_of(golden)}).encode(), None
    yield "/v2/models/clicks/infer", "application/octet-stream", *binary
    yield "/v2/models/clicks/infer", "application/octet-stream", binary[0][:-1], binary[1]


def test_a_body_has_the_same_answer_from_either_process(make_service, tiny_bundle, golden, monkeypatch):
    here, there = (Client(make_service(tiny_bundle, max_wait_ms=60_000, deadline_ms=60_000)) for _ in range(2))
    statuses = []
    for path, form, body, length in requests_of(golden):
        headers = {"content-type": form} | ({HEADER_LENGTH: str(length)} if length else {})
        expected = here.post(path, content=body, headers=headers)
        with monkeypatch.context() as patched:
            patched.setattr("app.serving.service.MOST_DECODED_HERE", 0)
            found = there.post(path, content=body, headers=headers)
        assert (found.status_code, found.content) == (expected.status_code, expected.content)
        statuses.append(found.status_code)
    assert statuses == [200, 400, 400, 200, 400, 200, 400, 200, 200, 200, 400]


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        (b"import os; os.kill(os.getpid(), 9)", 503, "has died"),
        (b"raise SystemError", 503, "has died"),
        (b"import time; time.sleep(99)", 504, "longer than"),
        (b"bytearray(10**10)", 413, "takes more than"),
    ],
)
def test_a_process_that_fails_is_named_and_replaced(monkeypatch, code, status, message):
    process = DecodingProcess(Limits())
    with pytest.raises(RequestError, match=message) as raised:
        monkeypatch.setattr("app.serving.decoding.DECODE_SECONDS", 5.0)
        process.run(exec, code)
    assert raised.value.status == status
    monkeypatch.undo()
    assert process.run(str, b"what comes next") == "b'what comes next'"
    process.close()


def test_a_process_that_takes_no_body_is_killed(monkeypatch):
    process = DecodingProcess(Limits())
    process.run(str, b"")
    process._process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr("app.serving.decoding.TAKEN_SECONDS", 0.5)
    with pytest.raises(RequestError, match="has died") as raised:
        process.run(str, bytes(8 * MIB))  # more than a pipe holds
    assert raised.value.status == 503
    process.close()


def test_a_large_body_is_answered_when_every_process_is_told_to_end(serve, tiny_bundle, golden, eventually):
    """End the process that decodes too, as systemd does."""
    rows = golden.to_pylist() * 60  # 2 MiB
    with serve(tiny_bundle, "--deadline-ms", "60000") as (process, port), ThreadPoolExecutor(1) as sender:
        body = json.dumps({"rows": rows}).encode()
        assert len(body) > MIB
        sent = sender.submit(post, port, "application/json", body)
        eventually(lambda: psutil.Process(process.pid).children())
        (decoding,) = psutil.Process(process.pid).children()
        decoding.terminate()
        time.sleep(0.1)
        process.terminate()
        status, answer = sent.result(60)
        assert (status, len(answer["scores"])) == (200, len(rows))
        assert process.wait(30) == 0
    eventually(lambda: not decoding.is_running() or decoding.status() == psutil.STATUS_ZOMBIE)
