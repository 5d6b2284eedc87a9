"""The service as processes, by clients that are not ours: tritonclient, curl, raw sockets, a browser."""

import contextlib
import html
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from types import SimpleNamespace

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.http as triton

from app.scoring.predictor import Predictor
from app.serving import processes
from app.serving.forms import FORMS
from app.serving.options import ADMIN_PATHS, ServerOptions
from tests.app.serving.conftest import running
from tests.app.serving.test_generations import models, moved, watched  # noqa: F401
from tests.programs import run_program, run_python


def curl(*arguments):
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    return run_program("curl", "-s", *arguments, timeout=60, status=None).stdout


def inputs_of(table, binary):
    inputs = []
    for name in table.schema.names:
        values = table[name].to_pylist()
        if str(table.schema.field(name).type) == "string":
            tensor, values = triton.InferInput(name, [len(values)], "BYTES"), [value or "" for value in values]
            array = np.array(values, np.object_)
        else:
            tensor = triton.InferInput(name, [len(values)], "FP64" if binary else "BYTES")
            missing, kind = (np.nan, np.float64) if binary else ("", np.object_)
            array = np.array([missing if v is None else v if binary else str(v) for v in values], kind)
        tensor.set_data_from_numpy(array, binary_data=binary)
        inputs.append(tensor)
    return inputs


@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient(port, golden, golden_scores, golden_logits, binary):
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("clicks")
        version = client.get_model_metadata("clicks")["versions"][0]
        extensions = client.get_server_metadata()["extensions"]
        assert extensions == ["binary_tensor_data", "model_configuration", "statistics"]
        wanted = [triton.InferRequestedOutput("score", binary_data=binary)]
        for model_version in ("", version):
            found = client.infer("clicks", inputs_of(golden, binary), model_version, wanted, request_id="a")
            assert found.as_numpy("score").tolist() == golden_scores
            assert found.as_numpy("logit") is None
            assert (found.get_response()["model_version"], found.get_response()["id"]) == (version, "a")
        both = [*wanted, triton.InferRequestedOutput("logit", binary_data=not binary)]
        found = client.infer("clicks", inputs_of(golden, binary), outputs=both)
        assert found.as_numpy("score").tolist() == golden_scores
        assert found.as_numpy("logit").tolist() == golden_logits
        with pytest.raises(triton.InferenceServerException, match="no such model"):
            client.infer("other", inputs_of(golden, binary))


def test_tritonclient_reads_configuration_and_statistics(port, golden):
    began = time.time()
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        (listed,) = client.get_model_repository_index()
        metadata, config = client.get_model_metadata("clicks"), client.get_model_config("clicks", listed["version"])
        assert listed == {"name": "clicks", "version": metadata["versions"][0], "state": "READY", "reason": ""}
        for kind, types in (("input", {"TYPE_FP64", "TYPE_STRING"}), ("output", {"TYPE_FP32"})):
            shapes = [(each["name"], each["shape"]) for each in metadata[f"{kind}s"]]
            assert [(each["name"], each["dims"]) for each in config[kind]] == shapes
            assert {each["data_type"] for each in config[kind]} == types

        def statistics():
            ((found,),) = client.get_inference_statistics().values()
            return found

        before = statistics()
        client.infer("clicks", inputs_of(golden, True))
        with pytest.raises(triton.InferenceServerException, match="expected one input"):
            client.infer("clicks", inputs_of(golden, True)[:1])
        after = statistics()
        assert after["inference_count"] - before["inference_count"] == golden.num_rows
        assert after["execution_count"] - before["execution_count"] >= 1
        assert 1000 * began <= after["last_inference"] <= 1000 * time.time()
        for name in ("success", "fail"):
            counted = [each["inference_stats"][name] for each in (before, after)]
            assert counted[1]["count"] - counted[0]["count"] == 1
            assert 0 < counted[1]["ns"] - counted[0]["ns"] < 1e9 * (time.time() - began)
        for get in (client.get_inference_statistics, client.get_model_config):
            with pytest.raises(triton.InferenceServerException, match="no such model"):
                get("other")


def test_curl(port, golden, golden_scores, tmp_path):
    """By its own content-type for a form, and in chunks. All other forms are in the lines of the document."""
    address, body = f"http://127.0.0.1:{port}/v1/score", f"@{tmp_path / 'rows.json'}"
    (tmp_path / "rows.json").write_text(json.dumps({"rows": golden.to_pylist()}))
    for chunked in ((), ("-H", "transfer-encoding: chunked")):
        assert json.loads(curl(address, *chunked, "-d", body))["scores"] == golden_scores
    found = curl("-D", "-", address, "-H", "content-encoding: br", "--data-binary", body)
    assert found.startswith("HTTP/1.1 415") and "accept-encoding: gzip, zstd" in found


@pytest.mark.parametrize("bundle", ["tiny_bundle", "text_bundle"])
def test_every_curl_line_of_the_document_works_as_pasted(request, serve, bundle, tmp_path):
    """In a shell, as /docs shows them: all forms of the example row score the same."""
    predictor = Predictor.open(request.getfixturevalue(bundle))
    expected, scores, statuses = predictor.score([predictor.example]).tolist(), [], {}
    with serve(predictor.folder) as (_, port):
        document = json.loads(curl(f"http://localhost:{port}/openapi.json"))
        page = html.unescape(curl(f"http://localhost:{port}/docs"))
        for path, operations in document["paths"].items():
            for method in operations.keys() & {"get", "post"}:
                for sample in operations[method]["x-codeSamples"]:
                    assert sample["source"] in page and "\t" not in sample["source"] and "\n" not in sample["source"]
                    line = f"{sample['source']} -s -o {tmp_path / 'answer'} -w '%{{http_code}}'"
                    done = run_program("sh", "-c", line, timeout=60)
                    assert done.stdout in operations[method]["responses"]
                    statuses.setdefault(done.stdout, set()).add((path, method, sample["label"]))
                    answer = (tmp_path / "answer").read_bytes()
                    if path == "/v1/score":
                        scores += json.loads(answer)["scores"]
                    elif path.endswith("/infer"):
                        scores += json.loads(answer)["outputs"][0]["data"]
    assert statuses.pop("409") == {(path, "post", "application/json") for path in ADMIN_PATHS}  # there is one bundle
    assert set(statuses) == {"200"}
    assert scores == expected * (len(FORMS) + 2 * 2)


def raw(port, sent, seconds=20):
    """All that the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"no http at all\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: " + b"x" * 10**6,
    ],
)
def test_broken_requests_end_with_an_answer_or_the_connection(port, sent):
    with contextlib.suppress(OSError):
        assert raw(port, sent)[:12] in (b"", b"HTTP/1.1 400")
    assert httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 200


def test_a_body_of_a_gigabyte_is_refused_before_it_is_sent(port):
    head = f"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-length: {1 << 30}\r\n\r\n".encode()
    assert raw(port, head + b"x" * 1000).startswith(b"HTTP/1.1 413")


def test_idle_and_slow_connections_do_not_stop_others(port, golden, golden_scores):
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    try:
        for connection in slow:
            connection.sendall(b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        start = time.monotonic()
        rows = {"rows": golden.to_pylist()}
        assert httpx.post(f"http://127.0.0.1:{port}/v1/score", json=rows).json()["scores"] == golden_scores
        assert time.monotonic() - start < 5
    finally:
        for connection in (*idle, *slow):
            connection.close()


@pytest.mark.slow
def test_headers_that_do_not_arrive_close_the_connection(port):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost")
        start = time.monotonic()
        assert connection.recv(100) == b""
        assert 5 < time.monotonic() - start < 20


def test_the_page_shows_a_row_and_its_parts(port, render):
    parts = ("Click probability 0.", ">effect<", 'id="cell-C26"', "requests per second", "polyline", "generation 0")
    shown = render(f"http://127.0.0.1:{port}/", parts)
    bars = [tuple(map(float, found)) for found in re.findall(r"width: ?([\d.e-]+)%; ?margin-left: ?([\d.e-]+)%", shown)]
    ends = [(round(left, 3), round(left + width, 3)) for width, left in bars]
    assert len(ends) == 39 and all(50 in of_bar and min(of_bar) >= 0 and max(of_bar) <= 100 for of_bar in ends)
    assert min(ends)[0] < 50 < max(end for _, end in ends)


def test_the_page_shows_two_minutes_at_once_and_counts_nothing_of_its_own(serve, tiny_bundle, golden, render):
    def counted(port):
        """All that is counted of requests, rows and scores, but the page's own addresses."""
        samples = httpx.get(f"http://127.0.0.1:{port}/v1/status").json()["samples"]
        own = ("/", "/v1/status", "/v2/health/ready")
        of_requests = [s for s in samples if s[0].startswith(("requests", "request_", "batch", "scores"))]
        return [sample for sample in of_requests if sample[1].get("route") not in own and sample[2]]

    with serve(tiny_bundle, "--workers", "2") as (_, port), ThreadPoolExecutor(4) as senders:
        address = f"http://127.0.0.1:{port}"
        rows = {"rows": golden.to_pylist()}
        assert {
            a.status_code for a in senders.map(lambda _: httpx.post(f"{address}/v1/score", json=rows), range(40))
        } == {200}
        time.sleep(2.1)  # until the point of the last request is whole
        for _ in range(6):  # by whichever worker
            recent = httpx.get(f"{address}/v1/status").json()["recent"]
            assert (len(recent["answered"]), recent["seconds"] * sum(recent["answered"])) == (60, 40)
            assert any(recent["p99_ms"]) and sum(recent["refused"]) == 0
        before = counted(port)
        shown = render(
            f"{address}/", ("Click probability 0.", "polyline", '<b>0</b><span class="note">requests that wait')
        )
        heights = {y for line in re.findall(r'points="([^"]+)"', shown) for y in re.findall(r",([\d.]+)", line)}
        assert len(heights) > 1  # the requests before the page was loaded
        assert counted(port) == before


def test_sigterm_while_the_model_is_opened_ends_the_service(project, tiny_bundle):
    for workers in ("1", "2"):
        command = [sys.executable, "-m", "app.cli.serve", tiny_bundle, "--port", "0", "--workers", workers]
        with subprocess.Popen(command, cwd=project, stderr=subprocess.PIPE, text=True) as process:
            assert " serves " in process.stderr.readline()
            process.terminate()
            assert process.wait(30) == 0


def test_sigterm_between_the_starts_of_two_workers_ends_the_service(tiny_bundle):
    code = """if True:
        import os, signal, sys
        from pathlib import Path
        from app.serving import processes
        from app.serving.options import ServerOptions

        start = processes._Supervisor._start

        def start_and_end(supervisor, seat):
            start(supervisor, seat)
            if seat.number == 0:
                os.kill(os.getpid(), signal.SIGTERM)

        processes._Supervisor._start = start_and_end
        sys.exit(processes.serve(ServerOptions(Path(sys.argv[1]), "clicks", port=0, workers=3)))
    """
    subprocess.run([sys.executable, "-c", code, tiny_bundle], timeout=processes.END_SECONDS - 5, check=True)


def test_a_service_outlives_the_shell_that_started_it(project, tiny_bundle, tmp_path, eventually):
    log = tmp_path / "log"
    line = f"exec {sys.executable} -m app.cli.serve {tiny_bundle} --port 0 --watch-seconds 0.1 2>&1"
    shell = ["sh", "-c", f"({line}) > {log} & echo $!; read ends"]
    with subprocess.Popen(shell, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        process = psutil.Process(int(started.stdout.readline()))
        eventually(lambda: log.is_file() and " serves " in log.read_text())
        port = re.search(r":(\d+) serves", log.read_text())[1]
        status = f"http://127.0.0.1:{port}/v1/status"
        assert httpx.get(status, timeout=30).status_code == 200
    try:
        time.sleep(1)
        assert httpx.get(status).status_code == 200
    finally:
        process.terminate()
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_overload_is_refused_at_once_and_passes(serve, tiny_bundle, golden, golden_scores):
    with serve(tiny_bundle, "--max-queue", "1") as (_, port), httpx.Client(timeout=30) as client:
        address, rows = f"http://127.0.0.1:{port}/v1/score", {"rows": golden.to_pylist()}
        assert client.post(address, json=rows).json()["scores"] == golden_scores

        def send(_):
            answer = client.post(address, json=rows)
            return answer.status_code, answer.json().get("scores"), answer.headers

        with ThreadPoolExecutor(24) as senders:
            answers = list(senders.map(send, range(300)))
        assert {status for status, *_ in answers} == {200, 429}
        for status, scores, headers in answers:
            assert scores == golden_scores if status == 200 else headers["retry-after"] == "1"
        assert client.post(address, json=rows).json()["scores"] == golden_scores


def test_a_refusal_needs_no_body_and_leaves_the_connection_open(serve, tiny_bundle):
    with serve(tiny_bundle, "--max-queue", "1", "--max-delay-ms", "1500") as (_, port):
        waiting, connection = (socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(2))
        with waiting, connection:
            waiting.sendall(b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
            time.sleep(0.3)
            for path in ("/v1/score", "/v2/models/clicks/infer?a=b"):
                head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nX-Request-Id: mine\r\ncontent-length: 6\r\n\r\n"
                connection.sendall(head.encode())
                head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 429") and b"retry-after: 1" in head and b"x-model-version" in head
                assert b"x-request-id: mine" in head
                assert "wait already" in json.loads(body)["error"]
                connection.sendall(b"{}")
                connection.sendall(b"    ")
            connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'wide_deep_requests_total{route="/v1/score",status="429"} 1.0' in answer
        assert b'wide_deep_request_seconds_count{route="/v1/score"} 0.0' in answer  # the other one waits


def test_who_asks_again_at_once_waits_for_the_refusal(serve, tiny_bundle):
    """Every answer comes, in its order, the one to a client that has closed its side too."""
    request = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
    with serve(tiny_bundle, "--max-queue", "1", "--max-delay-ms", "9000", "--deadline-ms", "20000") as (_, port):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as waiting:
            waiting.sendall(request)
            time.sleep(0.3)
            start = time.monotonic()
            answers = raw(port, request * 500 + b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert time.monotonic() - start > 0.8  # (500 - FREE_REFUSALS) / REFUSALS_A_SECOND
        assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"429"] * 500 + [b"200"]


def test_wrong_bundles_and_ports_end_with_status_2(project, tmp_path, port, tiny_bundle):
    def run(*arguments):
        done = run_python("-m", "app.cli.serve", *arguments, cwd=project, timeout=60, status=None)
        return done.returncode, done.stderr

    status, printed = run(tmp_path, "--port", 0)
    assert status == 2 and "holds none that can be served" in printed and "Traceback" not in printed
    assert run(tmp_path, "--port", 0, "--workers", 2)[0] == 2
    status, printed = run(tiny_bundle, "--port", port)
    assert status == 2 and f"--port {port} cannot be listened on" in printed
    assert run(tiny_bundle, "--workers", 0)[0] == 2


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of Linux alone")
def test_one_port_of_two_addresses_is_not_public_and_for_administration(project, tiny_bundle):
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        free = probe.getsockname()[1]
    command = [sys.executable, "-m", "app.cli.serve", str(tiny_bundle), "--host", "127.0.0.2", "--port", free]
    command += ["--admin-port", free]
    done = run_program(*command, cwd=project, timeout=60, status=None)
    assert done.returncode == 2 and f"--admin-port {free} is the number of --port too" in done.stderr


def test_lines_of_the_access_log_are_whole_and_nothing_else_is_there(serve, tiny_bundle, tmp_path):
    path = tmp_path / "access.log"
    with (
        path.open("w") as output,
        serve(tiny_bundle, "--workers", "2", "--access-log", "json", output=output) as (process, port),
    ):
        with httpx.Client() as client, ThreadPoolExecutor(8) as senders:
            asked = senders.map(lambda _: client.post(f"http://127.0.0.1:{port}/v1/score").headers, range(200))
            ids = {headers["x-request-id"] for headers in asked}
        process.terminate()
        assert process.wait(30) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["request_id"] for line in lines if line["status"] == 400} == ids and len(ids) == 200


@pytest.mark.kills
def test_workers_share_the_load_and_outlive_one_another(serve, tiny_bundle, golden, golden_scores, eventually):
    with serve(tiny_bundle, "--workers", "2") as (process, port):
        address = f"http://127.0.0.1:{port}"
        rows = {"rows": golden.to_pylist()}
        workers = psutil.Process(process.pid).children
        eventually(lambda: len(workers()) == 2 and httpx.get(f"{address}/v2/health/ready").status_code == 200)
        first, second = workers()
        for _ in range(20):
            assert httpx.post(f"{address}/v1/score", json=rows).json()["scores"] == golden_scores
        text = httpx.get(f"{address}/metrics").text
        assert 'wide_deep_requests_total{route="/v1/score",status="200"} 20.0' in text
        first.kill()
        for _ in range(20):
            assert httpx.post(f"{address}/v1/score", json=rows).json()["scores"] == golden_scores
        eventually(lambda: len(workers()) == 2 and first.pid not in [worker.pid for worker in workers()])
        process.terminate()
        assert process.wait(30) == 0
        assert not second.is_running()


HANGS_FOR_SECONDS = """
import sys
from app.cli.serve import add_arguments, main
from app.serving import processes

processes.HUNG_SECONDS = 4.0  # a busy machine may keep the other one from running for a second or two
sys.exit(main(add_arguments, "app.cli.serve"))
"""


def test_a_worker_that_hangs_is_killed_and_started_again(project, tiny_bundle, golden, golden_scores, eventually):
    command = ["-c", HANGS_FOR_SECONDS, tiny_bundle, "--port", "0", "--workers", "2"]
    with running(command, project) as (process, port):
        workers = psutil.Process(process.pid).children
        address = f"http://127.0.0.1:{port}"
        eventually(lambda: httpx.get(f"{address}/metrics").text.count("wide_deep_ready 2.0"))
        hung, other = workers()
        hung.suspend()
        eventually(lambda: hung.pid not in [worker.pid for worker in workers()] and len(workers()) == 2)
        assert next(line for line in process.stderr if "has hung for 4 s and is killed" in line)
        assert "ended with status -9 and is started again" in process.stderr.readline()
        eventually(lambda: sample(address, "ready") == 2.0)
        assert other.is_running()
        assert httpx.post(f"{address}/v1/score", json={"rows": golden.to_pylist()}).json()["scores"] == golden_scores


def test_workers_that_slept_with_their_supervisor_are_not_killed(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
    now = [100.0]
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    supervisor = processes._Supervisor(ServerOptions(tmp_path, "clicks", workers=2), [], tmp_path)
    killed = []

    def look(seconds, *beating):
        now[0] += seconds
        for seat in beating:
            seat.beat(False)
        supervisor._kill_hung()

    first, second = supervisor._seats
    for seat in (first, second):
        seat.process = SimpleNamespace(kill=lambda number=seat.number: killed.append(number))
    look(1, first, second)
    for _ in range(18):
        look(1, second)
    look(1000)  # nobody ran
    for _ in range(19):
        look(1, second)
    assert not killed
    look(2, second)
    assert killed == [0]
    for seat in (first, second):
        seat.beat(True)
    for _ in range(100):
        look(1)
    assert killed == [0]


def sample(address, name):
    """The value of a metric without labels; None if there is none."""
    found = re.search(rf"^wide_deep_{name} (\S+)$", httpx.get(f"{address}/metrics").text, re.M)
    return found and float(found[1])


def test_workers_report_as_one_service(serve, watched, eventually):  # noqa: F811
    """A line of the log has its time, a new model has one line, and the usual metrics are those of all processes."""
    folder, put = watched
    put("1")
    with serve(folder, "--workers", "2", "--watch-seconds", "0.1") as (process, port):
        address = f"http://127.0.0.1:{port}"
        eventually(lambda: sample(address, "ready") == 2)
        assert httpx.get(f"{address}/healthz", headers={"host": "elsewhere"}).status_code == 200
        put("10")
        eventually(lambda: sample(address, "swaps_total") == 2)
        text, service = httpx.get(f"{address}/metrics").text, psutil.Process(process.pid)
        found = dict(re.findall(r"^process_(\w+) (\S+)$", text, re.M))
        memory = sum(each.memory_info().rss for each in (service, *service.children()))
        assert float(found["resident_memory_bytes"]) == pytest.approx(memory, rel=0.1)
        assert float(found["start_time_seconds"]) == pytest.approx(service.create_time(), abs=2)
        assert {"cpu_seconds_total", "virtual_memory_bytes", "open_fds", "max_fds"} <= found.keys()
        assert f'wide_deep_build_info{{onnxruntime="{version("onnxruntime")}",python=' in text
        process.terminate()
        lines = process.stderr.read().splitlines()
        times = [line for line in lines if re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 ", line)]
        assert lines == times and sum(" serves, version " in line for line in lines) == 1


@pytest.mark.kills
def test_a_dead_worker_leaves_its_counts_alone(serve, models, watched, golden, tmp_path, eventually):  # noqa: F811
    (_, scores), (folder, put) = models, watched
    put("1")
    with serve(folder, "--workers", "2", "--watch-seconds", "0.1", TMPDIR=str(tmp_path)) as (process, port):
        address = f"http://127.0.0.1:{port}"
        rows = {"rows": golden.to_pylist()}
        eventually(lambda: sample(address, "ready") == 2)

        def score():
            return httpx.post(f"{address}/v1/score", json=rows).json()["scores"]

        def files():
            paths = sorted(tmp_path.glob("serving-*/metrics/*.db"))
            # A disk that is full would end the workers as soon as they write to space that they do not have.
            assert all(path.stat().st_blocks * 512 >= path.stat().st_size for path in paths)
            return [path.name for path in paths]

        for _ in range(20):
            assert score() == scores["1"]
        before, num_rows = files(), 20 * len(golden)
        eventually(lambda: sample(address, "queue") == 0)  # nobody waits
        workers = psutil.Process(process.pid).children()
        for restarts in (1, 2):
            next(worker for worker in psutil.Process(process.pid).children() if worker.is_running()).kill()
            eventually(lambda restarts=restarts: sample(address, "restarts_total") == restarts)
            eventually(lambda: sample(address, "ready") == 2)
        assert set(workers) != set(psutil.Process(process.pid).children())
        put("2")
        eventually(lambda: sample(address, "swaps_total") == 2)  # each worker's
        assert sample(address, "generation") == 1
        assert score() == scores["2"]
        assert files() == before
        assert sample(address, "batch_rows_sum") == num_rows + len(golden)
        assert sample(address, "queue") == 0


NICE = """#!/bin/bash
# Stands for `nice`: stops the first fold in the midst.
if [ -e {folder}/first ]; then exec "$@"; fi
echo $$ > {folder}/first
partial=$(dirname "${{@: -1}}")/.$(basename "${{@: -1}}").partial
(until [ -e "$partial/new" ]; do sleep 0.01; done; kill -STOP $$; touch {folder}/stopped) &
exec "$@"
"""


@pytest.mark.kills
@pytest.mark.parametrize("is_killed", [False, True], ids=["the fold ends", "the fold is killed"])
@pytest.mark.parametrize("end", ["kill of a worker", "kill of the service", "SIGTERM"])
def test_an_end_in_a_fold_leaves_one_fold_and_no_hole(
    end,
    is_killed,
    serve,
    watched,  # noqa: F811
    make_bundle,
    tiny_dataset,
    tiny_config,
    tiny_state,
    golden,
    tmp_path,
    eventually,
):
    """The fold is in the midst as its service ends and another one starts, and is not repeated beside itself."""
    (folder, put), commands = watched, tmp_path / "bin"
    parent = Predictor.open(put("1"))
    delta = make_bundle(tiny_dataset, tiny_config(), moved(tiny_state, 2.0, 0.5), parent=parent, folder=tmp_path / "2")
    commands.mkdir()
    (commands / "nice").write_text(NICE.format(folder=tmp_path))
    (commands / "nice").chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    words = (folder, "--workers", "2", "--watch-seconds", "0.1")
    with contextlib.ExitStack() as services:
        service, port = services.enter_context(serve(*words, PATH=path))
        eventually(lambda: sample(f"http://127.0.0.1:{port}", "ready") == 2)
        shutil.copytree(delta, folder / ".2")
        (folder / ".2").rename(folder / "2")
        eventually((tmp_path / "stopped").exists, 60)
        expected = Predictor.open(folder / "2").score(golden).tolist()
        fold = psutil.Process(int((tmp_path / "first").read_text()))
        if end == "kill of a worker":
            fold.parent().kill()
            eventually(lambda: sample(f"http://127.0.0.1:{port}", "restarts_total") == 1, 60)
        else:
            service.terminate() if end == "SIGTERM" else service.kill()
            service.wait(60)
            _, port = services.enter_context(serve(*words, PATH=path))
        address = f"http://127.0.0.1:{port}"
        eventually(lambda: sample(address, "ready") == 2, 60)
        shutil.copytree(folder / "2", folder / ".3")  # another name to fold
        shutil.rmtree(folder / "2")
        (folder / ".3").rename(folder / "3")
        eventually(lambda: httpx.get(f"{address}/v1/status").json()["folder"] == "3", 60)
        time.sleep(0.5)
        assert [path.name for path in folder.glob(".*")] == [".2-folded.partial"]
        fold.kill() if is_killed else fold.resume()

        def is_folded():
            assert httpx.post(f"{address}/v1/score", json={"rows": golden.to_pylist()}).json()["scores"] == expected
            return httpx.get(f"{address}/v1/status").json()["folder"] == "3-folded"

        eventually(is_folded, 60)
        eventually(lambda: not fold.is_running() and not list(folder.glob(".*")), 60)
        service.terminate()
        assert ("stopped by SIGTERM" in service.stderr.read()) == (not is_killed)
    folded = Predictor.open(folder / "3-folded")
    folded.verify()
    assert len(folded.chain) == 1
    assert [path.name for path in folder.glob("*folded*")] == ["3-folded"]


@pytest.mark.kills
def test_a_worker_that_cannot_start_again_ends_no_other_and_pauses(
    serve, tiny_bundle, golden, golden_scores, tmp_path, eventually
):
    folder, away = tmp_path / "models", tmp_path / "away"
    shutil.copytree(tiny_bundle, folder / "1")
    with serve(folder, "--workers", "2") as (process, port):
        address = f"http://127.0.0.1:{port}"
        eventually(lambda: sample(address, "ready") == 2)
        folder.rename(away)
        psutil.Process(process.pid).children()[0].kill()
        until = time.monotonic() + 5
        while time.monotonic() < until:
            answer = httpx.post(f"{address}/v1/score", json={"rows": golden.to_pylist()})
            assert answer.json()["scores"] == golden_scores
        assert sample(address, "ready") == 1
        away.rename(folder)
        eventually(lambda: sample(address, "ready") == 2)
        process.terminate()
        assert process.wait(30) == 0
        # At once, after 1 second, after 2 more, and, with the folder back, after 4 more.
        assert 2 <= process.stderr.read().count("+00:00 error: ") <= 3


def test_a_worker_that_starts_does_not_let_another_block_in_accept():
    with processes._listen("", "127.0.0.1", 0) as listener, listener.dup():
        assert not os.get_blocking(listener.fileno())  # shared by all processes, and set anew by dup()
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.kills
def test_workers_end_with_their_supervisor(serve, tiny_bundle, eventually):
    with serve(tiny_bundle, "--workers", "2") as (process, _):
        eventually(lambda: len(psutil.Process(process.pid).children()) == 2)
        workers = psutil.Process(process.pid).children()
        time.sleep(2)
        process.kill()
        ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        eventually(lambda: all(not worker.is_running() or worker.status() in ended for worker in workers))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_service_without_native_kernels_says_so_once(serve, tiny_bundle, workers):
    with serve(tiny_bundle, "--workers", workers, LOG_KERNELS_LIBRARY="/nowhere.so") as (process, _):
        said = "several times slower than they could be: the native log kernels"
        assert any(said in line for line in process.stderr)
        process.terminate()
        assert said not in process.stderr.read()
