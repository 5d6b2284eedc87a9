"""Measure the scoring service under load: beside FastAPI, with too many requests, and while models are swapped.

    python -m benchmarks.serving [--folder DIR] [--workers 2] [--question NAME]

Requests are sent at the times of a Poisson process, even if earlier answers are still missing, and latencies count from
these times. Sender and service share the machine's cores. The weights are random, because the times do not depend on
them. The bundles take minutes to make. They are kept in the folder that `--folder` or SERVING_FOLDER names.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import uvloop
from tritonclient.http import InferenceServerClient, InferInput

from app.checkpoint.write import ModelState
from app.config.config import Config
from app.scoring.predictor import Predictor
from app.tables.interface import TableState
from benchmarks.harness.commands import ask, free_port, is_ready, running, wait_until, work_folder
from benchmarks.harness.timing import new_parser, print_result
from benchmarks.scoring.__main__ import SETTINGS, random_state, write_bundle
from common import yaml_settings
from common.packages import require
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema

DELTA_ROWS = 100_000
STORM = (16, 64, 256, 1000)  # Numbers of connections that send the next request as soon as they get an answer.


@dataclasses.dataclass
class Load:
    """The outcome of a series of requests: milliseconds from the intended time to the answer, by HTTP status.

    The status 0 means that the connection failed.
    """

    milliseconds: dict[int, list[float]]
    # Milliseconds by which the sender was late with a request, which is no fault of the service.
    sender_late_ms: list[float]

    def percentile(self, share: float, status: int) -> float:
        values = self.milliseconds.get(status)
        return float(np.percentile(values, share)) if values else float("nan")

    def count(self, status: int) -> int:
        return len(self.milliseconds.get(status, []))

    @property
    def num_requests(self) -> int:
        return sum(map(len, self.milliseconds.values()))

    @property
    def num_failed(self) -> int:
        """Number of requests that were neither answered nor refused because the queue was full."""
        return sum(len(values) for status, values in self.milliseconds.items() if status not in (200, 429))


class Connection(asyncio.Protocol):
    """A connection to a service, on which one request is sent after another."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.is_open = True
        self._received = bytearray()
        self._answered: Callable[[int], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        head = head.lower()
        length = head.partition(b"\r\ncontent-length:")[2].split(b"\r\n", 1)[0]
        if length and len(body) >= int(length):
            self._answer(int(head.split(b" ", 2)[1]), b"\r\nconnection: close" in head)

    def connection_lost(self, _: Exception | None) -> None:
        self._answer(0, True)

    def _answer(self, status: int, is_last: bool) -> None:
        self.is_open = not is_last
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(status)

    def send(self, request: bytes, answered: Callable[[int], None]) -> None:
        """Send a request. `answered` is called with the status of the answer, or 0 if the connection ends before it."""
        self._received.clear()
        self._answered = answered
        self.transport.write(request)


class Sender:
    """Keeps connections to a service open, and sends one request at a time on each.

    It uses no asyncio tasks for that, because they take processor time.
    """

    def __init__(self, port: int, bodies: Sequence[bytes], form: str, path: str = "/v1/score", more: str = "") -> None:
        head = "POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {}\r\n{}content-length: {}\r\n\r\n"
        self._requests = [head.format(path, form, more, len(body)).encode() + body for body in bodies]
        self._port = port
        self._free: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()

    def send(self, number: int, answered: Callable[[int], None]) -> None:
        """Send request `number`. `answered` is called with the answer's status, or 0 if the connection failed."""
        while self._free and not self._free[-1].is_open:  # idle for too long
            self._free.pop()
        if self._free:
            self._send_on(self._free.pop(), number, answered)
            return
        task = asyncio.create_task(self._connect(number, answered))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, number: int, answered: Callable[[int], None]) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self._port)
        except OSError:
            answered(0)
        else:
            self._send_on(connection, number, answered)

    def _send_on(self, connection: Connection, number: int, answered: Callable[[int], None]) -> None:
        def done(status: int) -> None:
            if connection.is_open:
                self._free.append(connection)
            answered(status)

        connection.send(self._requests[number % len(self._requests)], done)

    async def poisson(self, rate: float, seconds: float, seed: int = 0) -> Load:
        """Send requests at the times of a Poisson process, on average `rate` in a second, for `seconds` seconds.

        Return their outcome.
        """
        times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds))).tolist()
        start, load, all_answered = time.perf_counter(), Load({}, []), asyncio.Event()

        def note(due: float, status: int) -> None:
            load.milliseconds.setdefault(status, []).append((time.perf_counter() - start - due) * 1e3)
            if load.num_requests == len(times):
                all_answered.set()

        for number, due in enumerate(times):
            if (pause := due - (time.perf_counter() - start)) > 0:
                await asyncio.sleep(pause)
            load.sender_late_ms.append((time.perf_counter() - start - due) * 1e3)
            self.send(number, partial(note, due))
            if number % 16 == 0:
                await asyncio.sleep(0)  # Give the event loop a chance to read answers, even if the sender is late.
        await all_answered.wait()
        return load

    async def closed(self, connections: int, seconds: float) -> float:
        """Return the answers with status 200 per second that `connections` connections get, for `seconds` seconds.

        Each connection sends the next request as soon as it gets an answer.
        """
        until, done = time.perf_counter() + seconds, 0

        async def one() -> None:
            nonlocal done
            while time.perf_counter() < until:
                answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                self.send(done, answer.set_result)
                status = await answer
                done += status == 200  # `done += await …` would forget what other connections count meanwhile.

        await asyncio.gather(*(one() for _ in range(connections)))
        return done / seconds

    def close(self) -> None:
        for connection in self._free:
            connection.transport.close()


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="of the tables")
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1, help="of the service")
    parser.add_argument("--question", action="append", choices=QUESTIONS, help="one of several; all if not given")
    parser.add_argument("--folder", type=Path, help="keeps the bundles for the next time")
    options = parser.parse_args()
    with work_folder(options.folder or os.environ.get("SERVING_FOLDER")) as folder:
        make_wide_bundle(folder, options.rows)
        make_variants(folder)
        figures: dict[str, Any] = {"rows": Predictor.open(folder / "bundle").manifest.rows["num_rows"]}
        for question in options.question or QUESTIONS:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures |= runner.run(QUESTIONS[question](folder, options))
    for name, value in figures.items():
        print(f"{name:28} {value}")
    print_result(options, **figures)


def make_wide_bundle(folder: Path, num_ids: int) -> None:
    """Write a bundle with `num_ids` ids, from a log in which all categorical values are different."""
    if (folder / "bundle").exists():
        return
    generator, count = np.random.default_rng(1), round(num_ids / (26 * 0.8))  # 0.8 are training rows.
    values = (np.arange(count * 26, dtype=np.uint64) * 2654435761 & 0xFFFFFFFF).reshape(count, 26)
    with (folder / "log.txt").open("w") as log:
        for numbers, row in zip(generator.geometric(0.05, (count, 13)).tolist(), values.tolist(), strict=True):
            log.write("\t".join([str(numbers[0] % 2), *map(str, numbers), *(f"{value:08x}" for value in row)]) + "\n")
    prepare(folder / "log.txt", folder / "prepared", PrepareOptions(min_count=1))
    config, state = random_model(folder)
    write_bundle(folder / "bundle", folder / "prepared", config, state)


def random_model(folder: Path) -> tuple[Config, ModelState]:
    config = yaml_settings.override(Config(), SETTINGS)
    return config, random_state(read_schema(folder / "prepared"), config)


def make_variants(folder: Path) -> None:
    """Write another whole bundle of the same shape, and a delta of that bundle with 100,000 changed rows."""
    if (folder / "delta").exists():
        return
    config, state = random_model(folder)
    state.dense["wide.bias"][:] += 1
    write_bundle(folder / "other", folder / "prepared", config, state)
    for table in state.tables.values():
        assert isinstance(table, TableState)  # random_state makes no other
        table.arrays["rows"][:DELTA_ROWS] += 1
    write_bundle(folder / "delta", folder / "prepared", config, state, Predictor.open(folder / "other"))


@contextmanager
def served(folder: Path, *words: str | Path) -> Iterator[tuple[int, psutil.Process]]:
    """Run a service during the `with` block. Yield its port and its process once it is ready.

    `words` are its command line without the port, which is appended.
    """
    port, log = free_port(), folder / "service.log"
    with running(*words, str(port), folder=folder, log=log) as process:
        wait_until(lambda: is_ready(port), process, log)
        yield port, psutil.Process(process.pid)


def service(path: Path, *more: str) -> tuple[str | Path, ...]:
    return ("app.cli.serve", path, "--name", "clicks", *more, "--port")


def golden(folder: Path) -> pa.Table:
    return pq.read_table(folder / "bundle" / "golden.parquet").drop_columns(["logit", "score", "tolerance"])


def one_row_bodies(folder: Path) -> list[bytes]:
    return [json.dumps({"rows": [row]}).encode() for row in golden(folder).to_pylist()]


WRK_SCRIPT = """
wrk.method, wrk.headers["content-type"] = "POST", "application/json"
local bodies, requests, threads, number = {%s}, {}, {}, 0
function setup(thread) table.insert(threads, thread) end
function init()
  good, refused = 0, 0
  for place, body in ipairs(bodies) do requests[place] = wrk.format(nil, nil, nil, body) end
end
function request()
  number = number %% #requests + 1
  return requests[number]
end
function response(status)
  if status == 200 then good = good + 1 elseif status == 429 then refused = refused + 1 end
end
function done(summary)
  local all, no = 0, 0
  for _, thread in ipairs(threads) do all, no = all + thread:get("good"), no + thread:get("refused") end
  print("counts", all, no, summary.errors.timeout, summary.duration)
end
"""


class Wrk:
    """Runs the load generator wrk, whose connections send the next request of one row as soon as they get an answer."""

    def __init__(self, folder: Path) -> None:
        wrk = shutil.which("wrk")
        if wrk is None:
            raise FileNotFoundError("wrk is needed to ask again at once; install it, or leave this question out")
        self._wrk, self._script = wrk, folder / "wrk.lua"
        bodies = ",\n".join(f"[==[{body.decode()}]==]" for body in one_row_bodies(folder))
        self._script.write_text(WRK_SCRIPT % bodies)

    async def run(self, port: int, connections: int, seconds: float) -> dict[str, Any]:
        """Return the answers with status 200 per second, those with status 429 (refused) per second, and the number of
        timeouts.
        """
        command = [self._wrk, "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(self._script)]
        process = await asyncio.create_subprocess_exec(
            *command, f"http://127.0.0.1:{port}/v1/score", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        printed = (await process.communicate())[0].decode()
        good, refused, timeouts, microseconds = map(int, printed.rpartition("counts")[2].split())
        rates = {"per_second": good / microseconds * 1e6, "refused_per_second": refused / microseconds * 1e6}
        return {**rates, "timeouts": timeouts}


async def against_fastapi(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the answers per second to requests of one row, of this service and of a FastAPI server with the same
    Predictor.

    wrk sends the requests to both in turns.
    """
    require("fastapi", "uvicorn")
    figures: dict[str, Any] = {}
    wrk, peer = Wrk(folder), ("benchmarks.serving.fastapi_predictor", folder / "bundle")
    with served(folder, *service(folder / "bundle")) as (port, own), served(folder, *peer) as (peer_port, other):
        pair = (port, own), (peer_port, other)
        for each, _ in pair:
            await wrk.run(each, 1, 1)
        for connections in (1, 16):
            rounds = [
                [await rates_of(wrk, *each, connections, options.seconds) for each in pair]
                for _ in range(options.rounds)
            ]
            for place, name in enumerate(("service", "fastapi")):
                rates, milliseconds = np.median([both[place] for both in rounds], axis=0)
                figures[f"{name}_at_{connections}"] = {
                    "per_second": round(rates),
                    "processor_ms": round(float(milliseconds), 3),
                }
            ratios = [ours[0] / theirs[0] for ours, theirs in rounds]
            figures[f"over_fastapi_at_{connections}"] = [round(float(ratio), 2) for ratio in sorted(ratios)]
    return figures


async def rates_of(
    wrk: Wrk, port: int, process: psutil.Process, connections: int, seconds: float
) -> tuple[float, float]:
    """Return the answers with status 200 per second of a service, and the milliseconds of processor time that the
    service took for each.
    """
    before = processor_seconds(process)
    rate = (await wrk.run(port, connections, seconds))["per_second"]
    return rate, 1e3 * (processor_seconds(process) - before) / (rate * seconds)


async def large_requests(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the rows per second of requests of 1,000 rows, sent as an Arrow stream and as V2's binary tensors."""
    table = pa.concat_tables([golden(folder)] * 10).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body, length = binary_request(table)
    header = f"inference-header-content-length: {length}\r\n"
    rates: dict[str, dict[str, int]] = {}
    more = ("--max-wait-ms", "60000", "--workers", str(options.workers))
    with served(folder, *service(folder / "bundle", *more)) as (port, process):
        arrow = Sender(port, [sink.getvalue().to_pybytes()], "application/vnd.apache.arrow.stream")
        binary = Sender(port, [body], "application/octet-stream", "/v2/models/clicks/infer", header)
        for name, sender in {"arrow": arrow, "binary": binary}.items():
            await sender.closed(4, 1)
            before = processor_seconds(process)
            rate = 1000 * await sender.closed(4, options.seconds)
            rates[name] = {
                "by_the_clock": round(rate),
                "of_processor_time": round(rate * options.seconds / (processor_seconds(process) - before)),
            }
    return {"rows_per_second_of_1000": rates}


def processor_seconds(process: psutil.Process) -> float:
    """Return the seconds of processor time that a process and its workers have taken."""
    times = [each.cpu_times() for each in (process, *process.children())]
    return float(sum(each.user + each.system for each in times))


def binary_request(table: pa.Table) -> tuple[bytes, int]:
    """Return the body of a request with binary tensors as Triton's client sends it, and its JSON header's length."""
    inputs = []
    for name, column in table.to_pandas().items():
        is_text = column.dtype.kind not in "iuf"
        values = column.fillna("").to_numpy(object) if is_text else column.to_numpy(np.float64)
        inputs.append(InferInput(name, [len(values)], "BYTES" if is_text else "FP64").set_data_from_numpy(values))
    body, length = InferenceServerClient.generate_request_body(inputs)
    return bytes(body), int(length)


async def overload(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Send requests of 50 rows at ten times the rate that the service reaches. Return how it reacts.

    The figures are the times of accepted and of refused requests, memory, and the times one second after the overload.
    """
    rows, seconds = golden(folder).to_pylist()[:50], options.seconds
    with served(folder, *service(folder / "bundle")) as (port, process):
        sender = Sender(port, [json.dumps({"rows": rows}).encode()], "application/json")
        rate = await sender.closed(2, seconds)
        quiet = await sender.poisson(0.7 * rate, seconds)
        before = process.memory_info().rss
        heavy = await sender.poisson(10 * rate, seconds)
        after = process.memory_info().rss
        await asyncio.sleep(1)
        recovered = await sender.poisson(0.5 * rate, 1)
        sender.close()
    return {
        "overload": {
            "served_per_second": round(rate),
            "offered_per_second": round(10 * rate),
            "accepted": heavy.count(200),
            "refused": heavy.count(429),
            "failed": heavy.count(0),
            "p99_ms_at_70_percent": round(quiet.percentile(99, 200), 1),
            "accepted_p99_ms": round(heavy.percentile(99, 200), 1),
            "refused_p50_p99_ms": [round(heavy.percentile(share, 429), 1) for share in (50, 99)],
            "sender_late_p50_p99_ms": [round(float(late), 2) for late in np.percentile(heavy.sender_late_ms, (50, 99))],
            "rss_mib_before_after": [before >> 20, after >> 20],
            "p99_ms_one_second_after": round(recovered.percentile(99, 200), 1),
        }
    }


async def storm(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the good answers per second to wrk's connections, alone and beside two busy loops.

    wrk's connections ask again as soon as they get an answer. The numbers of connections take turns. A figure is the
    median of its turns, timeouts are the most of a turn. `cores` are the processor seconds per second that the system
    gives the service: beside loops they differ, and good answers with them. `over_best` are good answers per second,
    and those per processor second, divided by the best of all numbers of connections.
    """
    wrk, found = Wrk(folder), {}
    with served(folder, *service(folder / "bundle")) as (port, process):
        for name, num_loops in (("quiet", 0), ("beside_loops", 2)):
            loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_loops)]
            try:
                rounds = [
                    [await storm_of(count, wrk, folder, port, process, options) for count in STORM]
                    for _ in range(options.rounds)
                ]
            finally:
                for loop in loops:
                    loop.kill()
            of_all = {key: np.array([[turn[key] for turn in turns] for turns in rounds]) for key in rounds[0][0]}
            of_all = {key: (np.max if key == "timeouts" else np.median)(of_all[key], axis=0) for key in of_all}
            ratios = [of_all[key] / of_all[key].max() for key in ("per_second", "per_processor_second")]
            found[name] = {
                str(count): {key: round(float(values[place]), 2) for key, values in of_all.items()}
                | {"over_best": [round(float(ratio[place]), 2) for ratio in ratios]}
                for place, count in enumerate(STORM)
            }
    return {"storm": found}


async def storm_of(
    count: int, wrk: Wrk, folder: Path, port: int, process: psutil.Process, options: argparse.Namespace
) -> dict[str, float]:
    """Return the figures of one round in which `count` connections send one request after another (by wrk).

    Meanwhile further requests are sent at the times of a Poisson process; their latencies are the times of accepted
    requests.
    """
    sender = Sender(port, one_row_bodies(folder), "application/json")
    sending = asyncio.create_task(sender.poisson(50, options.seconds))
    before, began = processor_seconds(process), time.perf_counter()
    figures = await wrk.run(port, count, options.seconds)
    cores = (processor_seconds(process) - before) / (time.perf_counter() - began)
    load = await sending
    sender.close()
    figures |= {"per_processor_second": figures["per_second"] / cores, "cores": cores}
    return figures | {f"accepted_p{share}_ms": load.percentile(share, 200) for share in (50, 99)}


async def swaps(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Swap models while 200 requests per second are sent. Return the times of the requests.

    Also measure the time from a delta's rename until it is served.
    """
    models, count = folder / "models", options.swaps
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir()

    def put(source: str, name: str) -> None:
        shutil.copytree(folder / source, folder / "incoming", copy_function=os.link)
        (folder / "incoming").rename(models / name)

    put("bundle", "0")
    with served(folder, *service(models, "--watch-seconds", "0.1")) as (port, process):
        sender = Sender(port, one_row_bodies(folder), "application/json")
        # Ask for each row once, so that the first access to its memory page does not count.
        await sender.poisson(100, 2)
        quiet = await sender.poisson(200, 5)
        sending = asyncio.create_task(sender.poisson(200, 0.4 * count))
        started = time.perf_counter()
        for number in range(1, count + 1):
            # Copy in a thread, because the sender's event loop would otherwise stand still for milliseconds.
            await asyncio.to_thread(put, ("other", "bundle")[number % 2 == 0], str(number))
            if number > 2:
                await asyncio.to_thread(shutil.rmtree, models / str(number - 3))
            await asyncio.sleep(max(started + 0.4 * number - time.perf_counter(), 0))
        load = await sending
        put("other", str(count + 1))
        await asyncio.sleep(2)
        put("delta", str(count + 2))
        renamed = time.perf_counter()
        while (await asyncio.to_thread(ask, port, "/v2/health/live")).headers["x-model-generation"] == "0":
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - renamed
        rss = process.memory_info().rss >> 20
        sender.close()
    return {
        "swaps": {
            "count": count,
            "requests": load.num_requests,
            "refused": load.count(429),
            "failed": load.num_failed,
            "p99_ms_quiet": round(quiet.percentile(99, 200), 1),
            "p99_ms": round(load.percentile(99, 200), 1),
        },
        "delta_seconds": round(seconds, 2),
        "rss_mib": rss,
    }


QUESTIONS = {"fastapi": against_fastapi, "large": large_requests, "overload": overload, "storm": storm, "swaps": swaps}

if __name__ == "__main__":
    main()
