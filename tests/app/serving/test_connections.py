"""The connections of a service as it begins and ends, and who may use them, by raw sockets."""

import http.client
import itertools
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from app.serving import processes
from app.serving.connections import TOGETHER_SECONDS, moment_of
from app.serving.options import ADMIN_PATHS, ServerOptions
from app.serving.processes import MOST_FILES
from tests.app.serving.conftest import running
from tests.app.serving.test_processes import raw


def get(port, path, host="localhost"):
    """The status of an answer, by a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", path, headers={"host": host})
        return connection.getresponse().status


OPENS_LATE = """
import sys, time
from pathlib import Path
from app.cli.serve import add_arguments, main
from app.serving.generations import Generations

may_open, first = Path(sys.argv.pop()), Generations._first
def wait(self):
    while not may_open.exists():
        time.sleep(0.01)
    return first(self)
Generations._first = wait
sys.exit(main(add_arguments, "app.cli.serve"))
"""


def test_a_service_whose_model_is_being_opened_is_live_and_not_ready(project, tiny_bundle, tmp_path):
    command = ["-c", OPENS_LATE, tiny_bundle, "--port", "0", tmp_path / "may-open"]
    with running(command, project, is_open=False) as (_, port), ThreadPoolExecutor() as pool:
        for path, status in (("live", 200), ("ready", 503)):
            answer = httpx.get(f"http://127.0.0.1:{port}/v2/health/{path}", headers={"x-request-id": "mine"})
            assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")
        waiting = pool.submit(get, port, "/v1/status")
        time.sleep(0.2)
        assert not waiting.done()
        (tmp_path / "may-open").touch()
        assert waiting.result(20) == 200
        assert get(port, "/v2/health/ready") == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_service_that_drains_is_not_ready_and_refuses_no_one(
    serve, tiny_bundle, golden, golden_scores, eventually, workers
):
    """A client asks all the time, by a connection each."""
    seconds = 2.0
    begun = []  # times at which requests were sent that were answered
    statuses = set()
    refused = threading.Event()

    def send():
        while not refused.is_set():
            now = time.monotonic()
            try:
                statuses.add(get(port, "/v2/models/clicks"))
                begun.append(now)
            except (OSError, http.client.HTTPException):
                refused.set()

    slowly = ("--max-delay-ms", "1500", "--max-batch", "1000", "--deadline-ms", "9000")
    arguments = ("--workers", workers, "--drain-seconds", str(seconds), *slowly)
    with serve(tiny_bundle, *arguments) as (process, port):
        eventually(lambda: get(port, "/v2/health/ready") == 200)
        client = threading.Thread(target=send)
        client.start()
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        signalled = time.monotonic()
        eventually(lambda: get(port, "/v2/health/ready") == 503)
        assert time.monotonic() - signalled < 1
        assert get(port, "/v2/models/clicks/ready") == 503
        assert get(port, "/v2/health/live") == 200
        kept = raw(port, b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"connection: close" in kept.lower()
        time.sleep(max(signalled + seconds - 0.7 - time.monotonic(), 0))
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("POST", "/v1/score", json.dumps({"rows": golden.to_pylist()}))
            answer = connection.getresponse()  # when the port was closed
            assert json.load(answer)["scores"] == golden_scores
        assert refused.is_set()
        client.join(20)
        assert signalled + seconds - 0.1 < begun[-1]
        assert statuses == {200}
        assert process.wait(20) == 0


def test_an_interrupt_ends_without_a_drain(serve, tiny_bundle):
    with serve(tiny_bundle, "--drain-seconds", "60") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_administration_has_a_port_of_its_own(serve, tiny_bundle):
    with serve(tiny_bundle, "--admin-port", "0") as (process, port):
        admin_port = int(process.stderr.readline().rpartition(" administers")[0].rpartition(":")[2])
        change = {"version": httpx.get(f"http://127.0.0.1:{port}/v1/status").json()["version"]}
        for path in ADMIN_PATHS:
            address = f"http://127.0.0.1:{{}}{path}"
            answer = httpx.post(address.format(port), json=change)
            assert answer.status_code == 404
            assert "--admin-port" in answer.json()["error"]
            assert httpx.post(address.format(admin_port), json=change).status_code in (200, 409)
        assert get(admin_port, "/v2/health/ready") == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /v1/status HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET /v1/status HTTP/1.1\r\nhost: evil.example:8000\r\n\r\n", b"421"),
        (b"GET /v1/status HTTP/1.1\r\nhost: \r\n\r\n", b"421"),
        (b"GET /v1/status HTTP/1.1\r\nhost: LOCALHOST:1\r\n\r\n", b"200"),
        (b"GET /v1/status HTTP/1.1\r\nhost: [::1]:8000\r\n\r\n", b"200"),
        (b"GET /v2/health/ready HTTP/1.1\r\nhost: 10.1.2.3:8000\r\n\r\n", b"200"),
        (b"GET /v1/status HTTP/1.0\r\n\r\n", b"200"),
        (b"GET http://localhost/v1/status HTTP/1.1\r\nhost: evil.example\r\n\r\n", b"200"),
        (b"GET http://evil.example/v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n", b"421"),
        (b"GET http://evil.example/v1/status HTTP/1.0\r\n\r\n", b"421"),
        (b"GET http://localhost@evil.example/v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n", b"421"),
        (b"GET http://localhost/v1/status HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /v2/health/live\r\n\r\n", b"400"),
        (b"GET /v2/health/live HTTP/2.0\r\nhost: localhost\r\n\r\n", b"400"),
    ],
)
def test_requests_for_another_host_are_refused(port, head, status):
    assert raw(port, head)[9:12] == status


def test_what_is_no_request_has_an_id_too(port):
    head = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine\r\n"
    assert b"\r\nx-request-id: mine\r\n" in raw(port, head + b"accept: */*\r\nb\x00d: 1\r\n\r\n")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(head + b"\r\n")
        assert b"\r\nx-request-id: mine\r\n" in connection.recv(4096)
        connection.sendall(b"no request\r\n\r\n")
        bad = connection.recv(4096)
    assert re.search(rb"\r\nx-request-id: [0-9a-f]{32}\r\n", bad)
    assert bad.endswith(b'\r\n\r\n{"error":"Invalid HTTP request received."}')


LOCAL, OPEN = {"host": "127.0.0.1"}, {"host": "0.0.0.0"}
NAMED = {"host": "0.0.0.0", "allowed_hosts": ("clicks.example", "::1")}


@pytest.mark.parametrize(
    ("options", "host", "is_allowed", "is_allowed_to_administer"),
    [
        (LOCAL, "localhost", True, True),
        (LOCAL, "127.9.9.9:80", True, True),
        (LOCAL, "10.0.0.1:8000", False, False),
        (LOCAL, "localhost.evil.example", False, False),
        (LOCAL, "127.0.0.1.evil.example", False, False),
        (LOCAL, "127.0.0.1@evil.example", False, False),
        (LOCAL, "[::1", False, False),
        (LOCAL, "::1", True, True),
        (LOCAL, "localhost:", True, True),
        (LOCAL, "localhost:80:evil.example", False, False),
        ({"host": "localhost"}, "evil.example", False, False),
        ({"host": "::1"}, "evil.example", False, False),
        (OPEN, "evil.example", True, False),
        (OPEN, "10.0.0.1:8000", True, True),
        (OPEN, "[fe80::1]:8000", True, True),
        (OPEN, "localhost:8000", True, True),
        (NAMED, "Clicks.Example:8000", True, True),
        (NAMED, "[::1]:8000", True, True),
        (NAMED, "localhost", False, False),
        (NAMED, "10.0.0.1", False, False),
        (LOCAL | {"allowed_hosts": ("*",)}, "evil.example", True, True),
    ],
)
def test_hosts_that_are_allowed(options, host, is_allowed, is_allowed_to_administer):
    allows = ServerOptions(Path(), "clicks", **options).allows
    assert allows(host, is_admin=False, is_admin_port=False) == is_allowed
    assert allows(host, is_admin=True, is_admin_port=False) == is_allowed_to_administer
    assert ServerOptions(Path(), "clicks", admin_port=1, **options).allows("evil.example", True, True) == (
        "*" in options.get("allowed_hosts", ())
    )


SCORE = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\n"


def test_an_offer_of_another_protocol_is_answered_by_http_1(port, golden, golden_scores):
    """Send the body in another packet and a second request behind it, as Java's client and `curl --http2` do."""
    body = json.dumps({"rows": golden.to_pylist()}).encode()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    head = SCORE + offer + b"content-length: %d\r\n\r\n" % len(body)
    for cut in (len(head), len(head) + 100, 20):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall((head + body)[:cut])
            time.sleep(0.05)
            connection.sendall((head + body)[cut:] + head + body)
            for _ in range(2):
                answer = http.client.HTTPResponse(connection)
                answer.begin()
                assert (answer.status, json.load(answer)["scores"]) == (200, golden_scores)


def test_a_refusal_in_place_of_a_body_that_is_expected_closes(port):
    """A client that has not sent the body may send another request next, which would be taken for the body."""
    expected = b"expect: 100-continue\r\ncontent-length: 9\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(SCORE.replace(b"score", b"other") + expected)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 404") and b"connection: close" in answer


def test_a_client_that_offers_to_tunnel_is_refused(port):
    assert raw(port, b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost:1\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_a_client_that_has_closed_its_side_gets_every_answer(serve, tiny_bundle, golden, golden_scores):
    body = json.dumps({"rows": golden.to_pylist()}).encode()
    with serve(tiny_bundle, "--max-delay-ms", "300") as (_, port):
        sent = 2 * (SCORE + b"content-length: %d\r\n\r\n" % len(body) + body)
        answers = raw(port, sent).split(b"HTTP/1.1 200 OK")[1:]
        assert [json.loads(answer.partition(b"\r\n\r\n")[2])["scores"] for answer in answers] == [golden_scores] * 2
        assert raw(port, sent[:-1]).count(b"HTTP/1.1") == 1  # nobody waits for the rest, which cannot come


CHUNKED = SCORE + b"transfer-encoding: chunked\r\n\r\n"
PARTS = {
    "header": (SCORE, b"a: " + b"x" * 1000 + b"\r\n"),
    "one header": (SCORE + b"a: ", b"x" * 1000),
    "blank lines": (b"", b"\r\n" * 500),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: " + b"x" * 1000 + b"\r\n"),
    "one trailer": (CHUNKED + b"2\r\n{}\r\n0\r\na: ", b"x" * 1000),
    "extension": (CHUNKED + b"2;", b"x" * 1000),
    "body of a wrong address": (CHUNKED.replace(b"score", b"other"), b"3e8\r\n" + b"x" * 1000 + b"\r\n"),
    "body": (CHUNKED, b"3e8\r\n" + b"x" * 1000 + b"\r\n"),
}


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_a_request_ends(served, part):
    """The connection is closed after less than 90 MiB, of which the service keeps no more than the largest body."""
    (process, port), (begin, more) = served, PARTS[part]
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        before = psutil.Process(process.pid).memory_info().rss
        connection.sendall(begin)
        with pytest.raises(OSError):
            for _ in range(90):
                connection.sendall(more * 1049)
        assert psutil.Process(process.pid).memory_info().rss - before < 140 << 20
        assert get(port, "/v2/health/ready") == 200


def of_each(answers):
    """Status and scores of the answers of a connection."""
    parts = [answer.partition(b"\r\n\r\n")[2] for answer in answers.split(b"HTTP/1.1 ")[1:]]
    return [
        (answer[:3], json.loads(body).get("scores"))
        for answer, body in zip(answers.split(b"HTTP/1.1 ")[1:], parts, strict=True)
    ]


NO_REQUESTS = (b"no request\r\n\r\n", CHUNKED + b"no length\r\n", SCORE + b"b\x00d: 1\r\n\r\n")


@pytest.mark.parametrize("delay", ["0", "300"])
def test_what_is_no_request_is_answered_after_the_requests_before_it(serve, tiny_bundle, golden, golden_scores, delay):
    """Else the first request would get the answer of the bad one, and its own none."""
    body = json.dumps({"rows": golden.to_pylist()}).encode()
    good = SCORE + b"content-length: %d\r\n\r\n" % len(body) + body
    with serve(tiny_bundle, "--max-delay-ms", delay) as (_, port):
        for bad, before in itertools.product(NO_REQUESTS, (1, 2)):
            expected = [(b"200", golden_scores)] * before + [(b"400", None)]
            assert of_each(raw(port, before * good + bad)) == expected


IMPATIENT = """
import sys
from app.cli.serve import add_arguments, main
from app.serving import connections, processes

connections.IDLE_SECONDS = processes.UNREAD_SECONDS = 1
sys.exit(main(add_arguments, "app.cli.serve"))
"""


@pytest.fixture(scope="module")
def impatient(project, tiny_bundle):
    with running(["-c", IMPATIENT, tiny_bundle, "--port", "0"], project) as (process, port):
        yield process, port


def test_late_refusals_are_given_at_multiples_of_20_ms():
    due = [123.4 + number / 1000 for number in range(1000)]
    moments = [moment_of(each) for each in due]
    assert all(-1e-9 < moment - each < TOGETHER_SECONDS + 1e-9 for moment, each in zip(moments, due, strict=True))
    assert len(set(moments)) <= 51
    assert all(abs(50 * moment - round(50 * moment)) < 1e-6 for moment in moments)


NO_ADDRESS = SCORE.replace(b"score", b"other")


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\r\n"),
        (NO_ADDRESS + b"content-length: 9999\r\n\r\n", b"x"),
        (NO_ADDRESS + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
    ],
    ids=["blank lines", "body", "trailers"],
)
@pytest.mark.parametrize("times", [1, 999])
def test_what_comes_after_an_answer_keeps_no_connection(impatient, begin, more, times):
    with socket.create_connection(("127.0.0.1", impatient[1]), timeout=0.3) as connection:
        connection.sendall(begin)
        assert connection.recv(4096)
        until = time.monotonic() + 10
        with pytest.raises(OSError):
            for _ in range(times):
                time.sleep(0.3)
                connection.sendall(more)
            while time.monotonic() < until and connection.recv(1):
                pass
            raise ConnectionResetError
        assert time.monotonic() < until


@pytest.mark.skipif(sys.platform != "linux", reason="no other system ends such connections by itself")
def test_a_client_that_reads_no_answer_is_left(impatient, eventually):
    process, port = impatient
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(99 * b"GET /docs HTTP/1.1\r\nhost: localhost\r\n\r\n")
        own = connection.getsockname()
        connections = psutil.Process(process.pid).net_connections
        eventually(lambda: own not in [tuple(each.raddr) for each in connections("tcp")])


SLOW_TURNS = """
import asyncio, sys, time
from app.cli.serve import add_arguments, main
from app.serving.connections import Server

tick = Server.on_tick
async def on_tick(self, counter):
    loop = asyncio.get_running_loop()
    def turn():
        time.sleep(0.05)
        loop.call_soon(turn)
    if counter == 0:
        turn()
    return await tick(self, counter)
Server.on_tick = on_tick
sys.exit(main(add_arguments, "app.cli.serve"))
"""


def test_many_new_connections_are_accepted_in_one_turn_of_a_busy_loop(project, tiny_bundle):
    """Else the hundredth would wait for a hundred turns, five seconds."""
    with running(["-c", SLOW_TURNS, tiny_bundle, "--port", "0"], project) as (_, port):
        began = time.monotonic()
        connections = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(100)]
        for connection in connections:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        for connection in connections:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            connection.close()
        assert time.monotonic() - began < 2.5


COUNTS_LEFTOVERS = """
import gc, sys
from app.cli.serve import add_arguments, main
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

gc.disable()
main(add_arguments, "app.cli.serve")
print(sum(isinstance(each, RequestResponseCycle) for each in gc.get_objects()))
"""


def test_answered_requests_leave_nothing_for_a_collection_of_garbage(project, tiny_bundle):
    command = ["-c", COUNTS_LEFTOVERS, tiny_bundle, "--port", "0"]
    with running(command, project, output=subprocess.PIPE) as (process, port):
        for path in 50 * ("/v2/health/live", "/v2"):
            assert get(port, path) == 200
        process.terminate()
        assert int(process.stdout.read()) < 10


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
from app.cli.serve import add_arguments, main
sys.exit(main(add_arguments, "app.cli.serve"))
"""


def test_connections_leave_files_for_a_model_to_be_opened_and_served(project, tiny_bundle, eventually):
    """More connections than files come while the model is being opened, and send nothing."""
    with (
        running(["-c", FEW_FILES, tiny_bundle, "--port", "0"], project, is_open=False) as (process, port),
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as first,
    ):

        def status(path):
            first.request("GET", path)
            answer = first.getresponse()
            answer.read()
            return answer.status

        assert status("/v2/health/live") == 200
        silent = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(300)]
        with suppress(ConnectionResetError):
            assert silent[-1].recv(1) == b""
        assert status("/") == 200  # a file, once the model is open
        assert process.poll() is None
        for connection in silent:
            connection.close()
        eventually(lambda: get(port, "/v2/health/ready") == 200)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((100, 4000), 4000), ((100, -1), MOST_FILES), ((100, 1 << 20), MOST_FILES), ((1 << 20, 1 << 20), 1 << 20)],
)
def test_as_many_files_as_the_system_allows_within_a_bound(monkeypatch, limits, expected):
    found = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda _: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: found.append(new))
    processes._allow_files()
    assert found[-1] == (expected, limits[1])
