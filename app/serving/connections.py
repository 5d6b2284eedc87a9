"""Run the HTTP server of a worker: uvicorn, extended by bounds on the size and duration of requests, by draining, and
by answering health checks before a model is open.
"""

from __future__ import annotations

import asyncio
import math
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import httptools
import msgspec
import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.serving.forms.bodies import BODY_ARRIVED
from app.serving.observed import ID_HEADER, request_id
from app.serving.options import ServerOptions
from app.serving.service import HEALTH, HEALTHZ, LIVE, Service

# Maximum number of seconds from the beginning of a request until all its headers have arrived, and from the opening of
# a connection until its first request begins.
HEADER_SECONDS = 10.0
# Maximum number of bytes (headers, trailers, chunk sizes) that may arrive one after another without any byte of a body.
MOST_HEADER_BYTES = 1 << 16
# Maximum number of bytes that are passed to the HTTP parser at once. The parser cannot stop at the end of a request, so
# all requests that begin in these bytes are put into the queue.
MOST_PARSED_BYTES = 1 << 12
# Maximum number of bytes of a body that are received and dropped if the request is answered before its body has
# arrived.
MOST_DISCARDED_BYTES = 1 << 26
IDLE_SECONDS = 75  # Time after a response in which the next request must begin. Otherwise the connection is closed.
# Delayed refusals (responses with status 429) are sent together, at multiples of this number of seconds. Sending each
# at its own time would wake this process and a client for every one.
TOGETHER_SECONDS = 0.02
# The server looks for connections whose deadline has passed at every LOOK_TICKS-th tick. It ticks ten times a second.
LOOK_TICKS = 10
SPARE_FILES = 128  # Number of file descriptors that connections may not use, because bundles and other files need them.
# Seconds after the closing of the port in which the worker still answers requests that have arrived.
FINISH_SECONDS = 30
INVALID = "Invalid HTTP request received."
# Interval in seconds at which a request that arrived before the worker had opened a model checks if it has now.
POLL_SECONDS = 0.02
# Key in a request's `scope["extensions"]` (ASGI) under which `BoundedRequests` offers a function that writes a whole
# response.
WHOLE_ANSWER = "whole_answer"


def moment_of(due: float) -> float:
    """Return the time at which a refusal (response with status 429) that is due at `due` is sent: the next multiple of
    TOGETHER_SECONDS.
    """
    return math.ceil(due / TOGETHER_SECONDS) * TOGETHER_SECONDS


class _Refused:
    """Takes the place of uvicorn's object for a request (its cycle) if the request was refused as soon as its headers
    had arrived. The body is dropped.
    """

    def __init__(self) -> None:
        self.response_complete = self.disconnected = False
        self.more_body = self.keep_alive = True
        self.message_event = asyncio.Event()


class Application:
    """The ASGI application of a worker. Until the worker has opened its model, it answers only health checks, and all
    other requests wait.
    """

    def __init__(self) -> None:
        self.service: Service | None = None
        self.is_draining = self.is_ending = False
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most_connections = max(most_files - SPARE_FILES, most_files // 2) if most_files > 0 else sys.maxsize

    def open(self, service: Service) -> None:
        """Let `service`, which has opened its model, answer all requests from now on."""
        self.service = service
        service.is_draining = self.is_draining

    def drain(self) -> None:
        """Answer readiness checks (requests of load balancers) with status 503 from now on, so that load balancers send
        no new requests to this worker.
        """
        self.is_draining = True
        if self.service is not None:
            self.service.is_draining = True

    async def __call__(self, scope: Scope, receive: Receive, _: Send) -> None:
        """Answer a request that `BoundedRequests` received. The response is written by the extension WHOLE_ANSWER, not
        through ASGI's `send`.
        """
        await scope["extensions"][WHOLE_ANSWER](await self._answer(scope, receive))

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        is_health = scope["path"] in HEALTH
        while self.service is None and not is_health and not self.is_ending:
            await asyncio.sleep(POLL_SECONDS)
        if self.service is not None:
            return await self.service.answer(scope, receive)
        headers = {ID_HEADER: request_id(scope["headers"])}
        if scope["path"] in (LIVE, HEALTHZ):
            return JSONResponse({}, headers=headers)
        return JSONResponse({"error": "no model is open"}, 503, headers | {"retry-after": "1"})


class Server(uvicorn.Server):
    """The HTTP server of a worker, which ends at once on SIGINT.

    On SIGTERM it drains: for `drain_seconds` it answers readiness checks with status 503 but all other requests as
    before, and then it ends.
    """

    def __init__(self, options: ServerOptions, beat: Callable[[bool], None]) -> None:
        """Create the HTTP server. It calls the function `beat` ten times a second, with True if the server is ending
        and otherwise False.
        """
        self.application, self._beat = Application(), beat
        super().__init__(
            uvicorn.Config(
                self.application,
                loop="uvloop",
                http=BoundedRequests,
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=FINISH_SECONDS,
            )
        )
        self._drain_seconds, self._end_time = options.drain_seconds, math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle the signal `sig` to the server's process. On SIGTERM, answer readiness checks with status 503 from now
        on, and end `drain_seconds` later. On SIGINT, end now.
        """
        if sig == signal.SIGTERM:
            self.application.drain()
            self._end_time = min(self._end_time, time.monotonic() + self._drain_seconds)
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Close connections whose deadlines have passed, and call `beat`. Return True if the server should end. uvicorn
        calls this method ten times a second.
        """
        self.application.is_ending = await super().on_tick(counter) or time.monotonic() >= self._end_time
        if counter % LOOK_TICKS == 0:
            for connection in list(self.server_state.connections):
                connection.close_if_late()  # type: ignore[union-attr]  # All connections are BoundedRequests.
        self._beat(self.application.is_ending)
        return self.application.is_ending


class _Flow(FlowControl):
    """Flow control that stops reading from a connection while it has a waiting request, or a response that the client
    has not read.

    uvicorn's own class resumes reading with every response and whenever a body is asked for, however many requests
    wait.
    """

    def __init__(self, transport: Any, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    @property
    def must_wait(self) -> bool:
        """True if a request waits for the response to an earlier request on the same connection, or if the client does
        not read its responses fast enough.
        """
        return bool(self._pipeline) or self.write_paused

    def resume_reading(self) -> None:
        """Resume reading from the connection, unless `must_wait` says that a request or response must be finished
        first.
        """
        if not self.must_wait:
            super().resume_reading()


class BoundedRequests(HttpToolsProtocol):
    """HTTP/1.1 protocol that limits the duration and the number of bytes of every part of a request, and can refuse a
    request as soon as its headers have arrived.
    """

    flow: _Flow

    def connection_made(self, transport: Any) -> None:
        """Set up the state of a new connection, or abort it if this worker already has too many connections."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._unparsed = b""  # Received bytes that will be parsed as soon as no request of this connection waits.
        # True if the client has sent data that is not valid HTTP. It then stays True until the connection ends.
        self._is_invalid = False
        # Number of bytes received since the last byte that belonged to a body. They are headers, trailers and chunk
        # sizes.
        self._bytes_without_body = 0
        self._discarded_bytes = 0  # Number of bytes of the current body that arrived after the request was answered.
        # Number of bytes of the current body that content-length announced and that have not arrived.
        self._body_left = 0
        # Deadline (in the event loop's time) for the headers of the current request. Infinite once they have arrived.
        self._headers_until = self.loop.time() + HEADER_SECONDS
        self._idle_until = math.inf  # Deadline for the next request to begin. Infinite during a request.
        if len(self.connections) > self.app.most_connections:
            transport.abort()

    def close_if_late(self) -> None:
        """Close the connection if the deadline for a request's headers or for the next request has passed.

        The server calls this about once a second for each connection. A timer for each request would cost as much as
        parsing the request.
        """
        if not self.flow.read_paused and self.loop.time() > min(self._headers_until, self._idle_until):
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio declares this return type.
        """Return True, which keeps the connection open for writing, if the client has closed its sending side but still
        waits for a response.
        """
        if self._is_invalid:  # Keep the connection open: the response with status 400 closes it.
            return True
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        """Parse received data in small parts. As soon as a request has to wait, pause reading and keep the rest of the
        data for `_go_on`.
        """
        start = 0
        while start < len(data) and not (self._is_invalid or self.transport.is_closing()):
            if self.flow.must_wait:
                self._unparsed = data[start:]
                self.flow.pause_reading()
                return
            end = start + max(self._body_left, MOST_PARSED_BYTES)
            self._parse(data[start:end])
            start = end

    def _go_on(self) -> None:
        """If the connection has no waiting request or response any more, parse the received data that `data_received`
        has kept, and resume reading.

        The deadline for the headers of a request is set anew, because no data was read during the pause.
        """
        if self.flow.must_wait or not self.flow.read_paused or self.transport.is_closing():
            return
        if self._headers_until < math.inf:
            self._headers_until = self.loop.time() + HEADER_SECONDS
        unparsed, self._unparsed = self._unparsed, b""
        self.data_received(unparsed)
        self.flow.resume_reading()

    def resume_writing(self) -> None:
        """Continue to parse and read requests once the client has read the responses to its earlier ones. asyncio's
        transport calls this method.
        """
        super().resume_writing()
        self._go_on()

    def _parse(self, data: bytes) -> None:
        """Pass received data to the HTTP parser. Close the connection if the client has sent more than
        MOST_HEADER_BYTES bytes in a row that are no body, or more than MOST_DISCARDED_BYTES of a body that is dropped.

        Blank lines count as bytes that are no body, so a client cannot keep a connection open by sending them.
        """
        self._bytes_without_body += len(data)
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                self._decline(memoryview(data)[offer.args[0] :])
        except httptools.HttpParserError:
            self._is_invalid = True
            self._answer_invalid()
            return
        if self._bytes_without_body > MOST_HEADER_BYTES or self._discarded_bytes > MOST_DISCARDED_BYTES:
            self.transport.close()

    def _answer_invalid(self) -> None:
        """Answer data that is not valid HTTP with status 400. If earlier requests of the connection are not answered
        yet, `on_response_complete` sends the 400 after their responses.

        The order matters, because a client assigns responses to requests by their order.
        """
        last, pipeline = self.cycle, self.pipeline
        if last is not None and not last.response_complete and last.more_body and pipeline and pipeline[0][0] is last:
            # The invalid data is part of the body of a request that waits in the pipeline. Remove this request, so that
            # the response with status 400 is sent in its place when its turn comes.
            pipeline.popleft()
        elif last is None or last.response_complete or last.more_body:
            self.send_400_response(INVALID)

    def on_response_complete(self) -> None:
        """After a response, start the connection's next waiting request. If none waits, give the client IDLE_SECONDS to
        send one.
        """
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._is_invalid:
            self.send_400_response(INVALID)
        else:
            self._idle_until = self.loop.time() + IDLE_SECONDS
        self._go_on()

    def send_400_response(self, msg: str) -> None:
        """Send a response with status 400 and the JSON body {"error": msg}, as the service's other errors have, and
        close the connection.
        """
        body = msgspec.json.encode({"error": msg})
        number = request_id(self.scope["headers"] if self.scope else ())
        head = f"HTTP/1.1 400 Bad Request\r\n{ID_HEADER}: {number}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        own = {WHOLE_ANSWER: partial(self._write, cycle), BODY_ARRIVED: lambda: not cycle.more_body}
        cycle.scope["extensions"] = own  # type: ignore[typeddict-item]
        super()._start_asgi_task(cycle, app)

    async def _write(self, cycle: RequestResponseCycle, response: Response) -> None:
        """Write a response's headers and body to the connection at once. ASGI would send them as two messages, which
        would wake the client twice.
        """
        # The functions in `extensions` refer to the cycle, which refers to the scope. Break this circle of references,
        # because otherwise only the garbage collector could free a request.
        cycle.scope["extensions"] = {}
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        if cycle.disconnected:
            return
        headers = [*self.server_state.default_headers, *response.raw_headers]
        if (b"connection", b"close") in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            headers.append((b"connection", b"close"))
        lines = [STATUS_LINE[response.status_code], *(b"%s: %s\r\n" % header for header in headers), b"\r\n"]
        self.transport.write(b"".join(lines) if cycle.scope["method"] == "HEAD" else b"".join([*lines, response.body]))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    def _decline(self, rest: memoryview) -> None:
        """Treat a request that offers to switch to another protocol (as `curl --http2` does) as a plain HTTP/1.1
        request. `rest` is the data after its headers.

        The parser stops at such a request's headers. Create a new parser, and pass it the headers of the request
        without the header `upgrade`, then `rest`.
        """
        while True:
            if self.parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError("this is no proxy")
            first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
            lines = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            try:
                self.parser.feed_data(b"\r\n".join([first, *lines, b"\r\n"]))
                self.parser.feed_data(rest)
                return
            # The error means that a later request in `rest` also offers to switch to another protocol.
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]

    def on_message_begin(self) -> None:
        """Reset the counts for a new request, and set the deadline for its headers. The parser calls this method when a
        request begins.
        """
        super().on_message_begin()
        self._idle_until = math.inf
        self._bytes_without_body = self._discarded_bytes = self._body_left = 0
        self._headers_until = self.loop.time() + HEADER_SECONDS

    def _take_host_of_target(self) -> None:
        """Set the header Host of a request whose target is a whole URL (GET http://host/path) to the host in this URL,
        as RFC 9112 (3.2.2) demands.
        """
        host = (b"host", self.url.partition(b"//")[2].partition(b"/")[0].partition(b"?")[0])
        if all(name != b"host" for name, _ in self.headers) and self.parser.get_http_version() == "1.0":
            self.headers.append(host)
        self.headers[:] = [host if header[0] == b"host" else header for header in self.headers]

    def on_headers_complete(self) -> None:
        """Check a request whose headers have arrived. Pass it on to uvicorn, or refuse it if it would wait too long."""
        if self.parser.should_upgrade():
            return
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise httptools.HttpParserError("a request without a version, or of another one, is none")
        if not self.url.startswith(b"/"):
            self._take_host_of_target()
        # Remove the deadline for the next request to begin. `on_response_complete` of the previous request may have set
        # it after the present request had begun.
        self._idle_until = math.inf
        self._body_left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        refusal = self._refusal()
        # The parser appends trailers (headers after the body) to `self.headers`. The trailers are not used, so let the
        # parser append them to a new list.
        self.headers = []
        if refusal is None:
            self._headers_until = math.inf
            super().on_headers_complete()
            return
        # Keep the deadline for the headers, so that the body of a refused request must also arrive before this
        # deadline.
        self.cycle: Any = _Refused()
        answer, delay = refusal
        if delay:
            self.loop.call_at(moment_of(self.loop.time() + delay), self._refuse, self.cycle, answer)
        else:
            self._refuse(self.cycle, answer)

    def _refuse(self, refused: _Refused, answer: bytes) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        refused.response_complete = True
        if not refused.keep_alive:
            self.transport.close()
        elif not refused.more_body:
            self.on_response_complete()

    def on_body(self, body: bytes) -> None:
        """Pass received bytes of a body on to its request. Drop them if the request was refused or already answered."""
        self._bytes_without_body = 0
        self._body_left -= len(body)
        if isinstance(self.cycle, _Refused) or self.cycle.response_complete:
            self._discarded_bytes += len(body)
        else:
            # Collect the body in a bytearray, because appending to bytes would copy the whole body each time.
            self.cycle.body = self.cycle.body or bytearray()
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request's body. If the request was refused and its response has been sent, continue with
        the connection's next request.
        """
        if self.parser.should_upgrade():
            return
        if not isinstance(self.cycle, _Refused):
            super().on_message_complete()
            return
        self._headers_until = math.inf
        self.cycle.more_body = False
        if self.cycle.response_complete:
            self.on_response_complete()

    def _refusal(self) -> tuple[bytes, float] | None:
        """Return the response of a request that is refused after its headers because it would wait too long, and the
        seconds to wait before it is sent.

        Return None if the request is not refused here: if it would not wait too long, if the response to an earlier
        request is due first, or if the connection ends after the request.
        """
        service = self.app.service
        is_next = self.cycle is None or self.cycle.response_complete
        is_last = self.expect_100_continue or not self.parser.should_keep_alive()
        if service is None or not is_next or is_last or self.parser.get_method() != b"POST":
            return None
        refusal: tuple[bytes, float] | None = service.refusal(self.url, self.headers, self._body_left)
        return refusal
