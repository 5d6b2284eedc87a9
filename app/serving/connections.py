"""The HTTP server of a worker: uvicorn's, with bounds on a request, a drain, and answers before a model is open."""

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

from app.serving.observed import ID_HEADER, request_id
from app.serving.options import ServerOptions
from app.serving.service import BODY_ARRIVED, LIVE, READY, Service

HEADER_SECONDS = 10.0  # for the headers of a request to arrive, and for the first one of a connection
MOST_HEADER_BYTES = 1 << 16  # also of trailers, and of anything else between two bytes of a body
MOST_PARSED_BYTES = 1 << 12  # at once: the parser cannot stop behind a request, so it queues all that they hold
MOST_DISCARDED_BYTES = 1 << 26  # of a body whose request was answered before it arrived
IDLE_SECONDS = 75  # between two requests of a connection
TOGETHER_SECONDS = 0.02  # at whose multiples late refusals are given: one by one, each wakes the process and its client
LOOK_TICKS = 10  # tenths of a second between two looks for connections whose time is over
SPARE_FILES = 128  # that connections leave for bundles and all else
FINISH_SECONDS = 30  # for requests to be answered after the port was closed
INVALID = "Invalid HTTP request received."
POLL_SECONDS = 0.02  # of requests that wait for the model to be open
WHOLE_ANSWER = "whole_answer"  # ASGI extension of `BoundedRequests`: a function that writes an answer


def moment_of(due: float) -> float:
    """Return the moment of a refusal that is due: the next one at which late refusals are given."""
    return math.ceil(due / TOGETHER_SECONDS) * TOGETHER_SECONDS


class _Refused:
    """Stands for a request that is refused by its headers. Its body is dropped."""

    def __init__(self) -> None:
        self.response_complete = self.disconnected = False
        self.more_body = self.keep_alive = True
        self.message_event = asyncio.Event()


class Application:
    """The service once its model is open. Before, it answers health alone, and other requests wait."""

    def __init__(self) -> None:
        self.service: Service | None = None
        self.is_draining = self.is_ending = False
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most_connections = max(most_files - SPARE_FILES, most_files // 2) if most_files > 0 else sys.maxsize

    def open(self, service: Service) -> None:
        """Answer by a service from now on."""
        self.service = service
        service.is_draining = self.is_draining

    def drain(self) -> None:
        """Be ready no more."""
        self.is_draining = True
        if self.service is not None:
            self.service.is_draining = True

    async def __call__(self, scope: Scope, receive: Receive, _: Send) -> None:
        """Answer a request of `BoundedRequests`."""
        await scope["extensions"][WHOLE_ANSWER](await self._answer(scope, receive))

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        is_health = scope["path"] in (LIVE, READY)
        while self.service is None and not is_health and not self.is_ending:
            await asyncio.sleep(POLL_SECONDS)
        if self.service is not None:
            return await self.service.answer(scope, receive)
        headers = {ID_HEADER: request_id(scope["headers"])}
        if scope["path"] == LIVE:
            return JSONResponse({}, headers=headers)
        return JSONResponse({"error": "no model is open"}, 503, headers | {"retry-after": "1"})


class Server(uvicorn.Server):
    """Ends at once by SIGINT. By SIGTERM it is first unready for `drain_seconds`, in which it answers as before."""

    def __init__(self, options: ServerOptions, beat: Callable[[bool], None]) -> None:
        """`beat` is called ten times a second, with whether the server ends."""
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
        """Handle a signal."""
        if sig == signal.SIGTERM:
            self.application.drain()
            self._end_time = min(self._end_time, time.monotonic() + self._drain_seconds)
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end. uvicorn calls this ten times a second."""
        self.application.is_ending = await super().on_tick(counter) or time.monotonic() >= self._end_time
        if counter % LOOK_TICKS == 0:
            for connection in list(self.server_state.connections):
                connection.close_if_late()  # type: ignore[union-attr]  # all are BoundedRequests
        self._beat(self.application.is_ending)
        return self.application.is_ending


class _Flow(FlowControl):
    """Flow control of a connection that reads nothing while its requests or answers wait.

    uvicorn resumes reading with every answer and every look at a body, however many requests are waiting.
    """

    def __init__(self, transport: Any, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    @property
    def must_wait(self) -> bool:
        """Whether a request waits for the answer to another, or answers for the client to read them."""
        return bool(self._pipeline) or self.write_paused

    def resume_reading(self) -> None:
        """Read on, unless something waits."""
        if not self.must_wait:
            super().resume_reading()


class BoundedRequests(HttpToolsProtocol):
    """Bounds every part of a request in time and bytes. Refuses by the headers alone. Stays with HTTP/1.1."""

    flow: _Flow

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._unparsed = b""  # was received, but waits until no request does
        self._is_invalid = False  # what came last is no request
        self._bytes_without_body = 0  # since the last byte of a body: headers, trailers, extensions of chunks
        self._discarded_bytes = 0  # of a body that came after the answer
        self._body_left = 0  # bytes that the headers announce and that are not here
        self._headers_until = self.loop.time() + HEADER_SECONDS  # infinite once they are here
        self._idle_until = math.inf  # set between two requests
        if len(self.connections) > self.app.most_connections:
            transport.abort()

    def close_if_late(self) -> None:
        """Close the connection if its time is over. A timer for each request would cost as much as to parse it."""
        if not self.flow.read_paused and self.loop.time() > min(self._headers_until, self._idle_until):
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it
        """Return True, which keeps the connection, if a client that sends no more waits for its answer."""
        if self._is_invalid:  # the last answer closes it
            return True
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        """Parse what was received, in small parts and only until a request has to wait. Keep the rest for `_go_on`."""
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
        """Parse what was kept and read on, if nothing waits any more. Headers get the time anew that reading paused."""
        if self.flow.must_wait or not self.flow.read_paused or self.transport.is_closing():
            return
        if self._headers_until < math.inf:
            self._headers_until = self.loop.time() + HEADER_SECONDS
        unparsed, self._unparsed = self._unparsed, b""
        self.data_received(unparsed)
        self.flow.resume_reading()

    def resume_writing(self) -> None:
        """Go on once the client has read its answers."""
        super().resume_writing()
        self._go_on()

    def _parse(self, data: bytes) -> None:
        """Parse. Neither blank lines nor the rest of an answered request's body keep a connection for longer."""
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
        """Answer what is no request, unless others before it wait: theirs is the first answer that a client reads."""
        last, pipeline = self.cycle, self.pipeline
        if last is not None and not last.response_complete and last.more_body and pipeline and pipeline[0][0] is last:
            pipeline.popleft()  # its body is what is wrong, and it has not begun
        elif last is None or last.response_complete or last.more_body:
            self.send_400_response(INVALID)

    def on_response_complete(self) -> None:
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
        """Answer what is no request, in the form of other errors."""
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
        """Write an answer in one piece: the two of ASGI would wake its client twice."""
        cycle.scope["extensions"] = {}  # They refer to it: else a collection of garbage has to find every request
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
        """Answer a request that offers another protocol, as `curl --http2` does, by this one, and parse what follows.

        The parser has stopped behind its headers. Another one gets them without the offer.
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
            except httptools.HttpParserUpgrade as offer:  # of the next request
                rest = rest[offer.args[0] :]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._idle_until = math.inf
        self._bytes_without_body = self._discarded_bytes = self._body_left = 0
        self._headers_until = self.loop.time() + HEADER_SECONDS

    def _take_host_of_target(self) -> None:
        """Put the host of an absolute request target in place of the header's, as RFC 9112 (3.2.2) demands."""
        host = (b"host", self.url.partition(b"//")[2].partition(b"/")[0].partition(b"?")[0])
        if all(name != b"host" for name, _ in self.headers) and self.parser.get_http_version() == "1.0":
            self.headers.append(host)
        self.headers[:] = [host if header[0] == b"host" else header for header in self.headers]

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise httptools.HttpParserError("a request without a version, or of another one, is none")
        if not self.url.startswith(b"/"):
            self._take_host_of_target()
        self._idle_until = math.inf  # set by the answer to the request before, if that came meanwhile
        self._body_left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        refusal = self._refusal()
        self.headers = []  # for trailers, which nobody reads
        if refusal is None:
            self._headers_until = math.inf
            super().on_headers_complete()
            return
        self.cycle: Any = _Refused()  # the body has as much time as the headers
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
        self._bytes_without_body = 0
        self._body_left -= len(body)
        if isinstance(self.cycle, _Refused) or self.cycle.response_complete:
            self._discarded_bytes += len(body)
        else:
            self.cycle.body = self.cycle.body or bytearray()  # To add to bytes copies all of them each time
            super().on_body(body)

    def on_message_complete(self) -> None:
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
        """Return an answer by the headers alone, and the seconds to wait before it, if there is one.

        None too if another answer is due before it, or if the connection ends with it."""
        service = self.app.service
        is_next = self.cycle is None or self.cycle.response_complete
        is_last = self.expect_100_continue or not self.parser.should_keep_alive()
        if service is None or not is_next or is_last or self.parser.get_method() != b"POST":
            return None
        refusal: tuple[bytes, float] | None = service.refusal(self.url, self.headers, self._body_left)
        return refusal
