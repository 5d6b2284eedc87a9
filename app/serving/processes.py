"""The service as processes: one socket, workers that accept from it, and the signals that end them.

A worker that dies is started again; the others serve on. SIGTERM ends the service when all requests are answered.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from app.serving.options import ServerOptions

if TYPE_CHECKING:
    from app.serving.service import Service

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30
HEADER_SECONDS = 10.0  # for the headers of a request to arrive, and for the first one of a connection
MOST_HEADER_BYTES = 1 << 16
IDLE_SECONDS = 75  # between two requests of a connection
BACKLOG = 2048
SWITCH_SECONDS = 0.0005  # that a thread, as the one that opens a new model, keeps the others from running
WATCH_NICE = 10  # of the thread that opens a new model
CANNOT_START = 2  # exit status of a worker whose bundle cannot be opened


def serve(options: ServerOptions) -> int:
    """Serve until a signal; return the exit status. Raises OSError where the port cannot be had."""
    with _listen(options.host, options.port) as listener, tempfile.TemporaryDirectory(prefix="serving-") as shared:
        log.info("http://%s:%d serves %s", options.host, listener.getsockname()[1], options.path)
        if options.workers == 1:
            return run_worker(options, listener, Path(shared), folds=True)
        return _Supervisor(options, listener, Path(shared)).run()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"--host {host} --port {port} cannot be listened on: {error.strerror}; give others") from None
    listener.listen(BACKLOG)
    return listener


class _Supervisor:
    """Keeps the workers running."""

    def __init__(self, options: ServerOptions, listener: socket.socket, shared: Path) -> None:
        self._options, self._listener, self._shared = options, listener, shared
        self._metrics = shared / "metrics"
        self._metrics.mkdir()
        # Read where prometheus_client is imported, which only the workers do.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self._metrics)
        self._workers: dict[int, BaseProcess] = {}
        self._stopping = False

    def run(self) -> int:
        """Start the workers and see to them until a signal; return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())
        for place in range(self._options.workers):
            self._start(place)
        while not self._stopping:
            wait([worker.sentinel for worker in self._workers.values()], timeout=1)
            for place, worker in list(self._workers.items()):
                if worker.is_alive() or self._stopping:
                    continue
                if worker.exitcode == CANNOT_START:  # it has logged the reason
                    self._stop()
                    return CANNOT_START
                log.warning("worker %d ended with status %s and is started again", place, worker.exitcode)
                self._start(place)
        until = time.monotonic() + DRAIN_SECONDS + 5
        for worker in self._workers.values():
            worker.join(max(until - time.monotonic(), 0))
            worker.kill()
        return 0

    def _start(self, place: int) -> None:
        arguments = (self._options, self._listener, self._shared, place == 0)
        worker = multiprocessing.get_context("fork").Process(target=_worker, args=arguments, name=f"worker {place}")
        worker.start()
        self._workers[place] = worker

    def _stop(self) -> None:
        self._stopping = True
        for worker in self._workers.values():
            worker.terminate()


def _worker(options: ServerOptions, listener: socket.socket, shared: Path, folds: bool) -> None:
    os._exit(run_worker(options, listener, shared, folds))


def run_worker(options: ServerOptions, listener: socket.socket, shared: Path, folds: bool) -> int:
    """Serve in this process until a signal; return the exit status."""
    import uvicorn

    from app.serving.generations import Generations
    from app.serving.observed import Observed
    from app.serving.service import Service

    parent = os.getppid()
    sys.setswitchinterval(SWITCH_SECONDS)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again when it has drained
        signal.signal(number, lambda *_: None)
    try:
        generations = Generations(options.path, options.threads, shared / "rolled_back.json", folds)
    except (ValueError, OSError) as error:
        log.error("error: %s", error)
        return CANNOT_START
    service = Service(generations, Observed(), options)
    server = uvicorn.Server(
        uvicorn.Config(
            service,
            loop="uvloop",
            http=protocol(service),
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    )
    stopped = threading.Event()

    def watch() -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WATCH_NICE)
        while not stopped.wait(options.watch_seconds):
            generations.refresh_safely()
            if os.getppid() != parent:  # the supervisor was killed
                server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    gc.freeze()  # what is open lives as long as the process: no collection has to walk it
    server.run(sockets=[listener])
    stopped.set()
    return 0


def protocol(service: Service) -> type:
    """Return uvicorn's protocol with bounds on the time and the size of headers, which refuses by them alone."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    refused: Any = SimpleNamespace(response_complete=True, message_event=asyncio.Event())  # for all: it has no state

    class BoundedHeaders(HttpToolsProtocol):
        """Closes a connection whose headers do not arrive in time, or do not end."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._header_bytes: int | None = 0
            self._headers_until = self.loop.call_later(HEADER_SECONDS, transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._headers_until.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._header_bytes is not None:
                self._header_bytes += len(data)
            super().data_received(data)
            if self._header_bytes is not None and self._header_bytes > MOST_HEADER_BYTES:
                self.transport.close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._header_bytes = 0
            self._headers_until.cancel()
            self._headers_until = self.loop.call_later(HEADER_SECONDS, self.transport.close)

        def on_headers_complete(self) -> None:
            self._header_bytes = None
            answer = self._refusal()
            if answer is None:
                self._headers_until.cancel()
                super().on_headers_complete()
            else:  # the body has as much time as the headers, and is dropped
                self.cycle = refused
                self.transport.write(answer)

        def on_message_complete(self) -> None:
            super().on_message_complete()
            if self.cycle is refused:
                self._headers_until.cancel()
                self.on_response_complete()

        def _refusal(self) -> bytes | None:
            """Return an answer by the headers alone; None also where another is due before it or none after it."""
            is_next = self.cycle is None or self.cycle.response_complete
            is_last = self.expect_100_continue or not self.parser.should_keep_alive()
            if not is_next or is_last or self.parser.get_method() != b"POST":
                return None
            return service.refusal(self.url, next((int(v) for name, v in self.headers if name == b"content-length"), 0))

    return BoundedHeaders
