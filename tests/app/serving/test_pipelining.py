"""Requests that come before earlier ones are answered: all get their answer, and few wait parsed at a time."""

import asyncio
import random

import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from app.serving.connections import MOST_PARSED_BYTES, WHOLE_ANSWER, BoundedRequests

LEAST_REQUEST = len("GET / HTTP/1.1\r\n\r\n")
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 1\r\n\r\n-"


class Wire(asyncio.Transport):
    """The transport of a connection whose client reads answers when the test says so."""

    def __init__(self):
        super().__init__()
        self.is_read, self.is_open, self.answers = True, True, bytearray()

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True

    def write(self, data):
        self.answers += data

    def is_closing(self):
        return not self.is_open

    def close(self):
        self.is_open = False


class Echo:
    """An application, and its service: refuses some requests by their headers, answers others by their body."""

    most_connections = 1

    def __init__(self):
        self.service = self

    def refusal(self, url, headers, num_bytes):
        return (REFUSED, 0.001 * (url == b"/late")) if url in (b"/refused", b"/late") else None

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            body, more = body + message["body"], message["more_body"]
            await asyncio.sleep(0)
        await scope["extensions"][WHOLE_ANSWER](PlainTextResponse(body))


def connect():
    """A connection to `Echo`, and its wire."""
    config = uvicorn.Config(Echo(), http=BoundedRequests, lifespan="off", log_config=None, proxy_headers=False)
    connection, wire = BoundedRequests(config, ServerState(), {}), Wire()
    connection.connection_made(wire)
    return connection, wire


async def send(connection, wire, data, sizes=lambda: 256_000):
    """Send pieces as a transport does, which gives none while reading is paused. Yields after each turn of the loop."""
    while wire.is_open and (data or connection.pipeline or not connection.cycle.response_complete):
        if data and wire.is_read:
            size = sizes()
            connection.data_received(data[:size])
            data = data[size:]
        yield
        await asyncio.sleep(0)


def test_only_few_pipelined_requests_are_parsed_ahead():
    assert MOST_PARSED_BYTES <= 1 << 13  # Each parsed request takes some kB, and there may be many connections.
    request = b"GET / HTTP/1.1\r\n\r\n"
    num_requests = (1 << 17) // len(request)

    async def run():
        connection, wire = connect()
        async for _ in send(connection, wire, num_requests * request):
            assert len(connection.pipeline) <= 1 + MOST_PARSED_BYTES // LEAST_REQUEST
            assert not (connection.pipeline and wire.is_read)
        return wire.answers

    assert asyncio.run(run()).count(b"HTTP/1.1 200") == num_requests


def post(path, body, is_chunked):
    head = b"POST %s HTTP/1.1\r\n" % path
    if is_chunked:
        cut = len(body) // 2
        parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
        return head + b"transfer-encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


REQUESTS = st.tuples(
    st.sampled_from([b"/", b"/", b"/refused", b"/late"]), st.sampled_from([0, 1, 5000, 100_000]), st.booleans()
)


@settings(max_examples=60)
@given(st.lists(REQUESTS, min_size=1, max_size=20), st.integers(0, 99), st.sampled_from([3000, 256_000]))
def test_every_pipelined_request_gets_its_answer_in_order(requests, seed, most):
    random_ = random.Random(seed)
    bodies = [random_.randbytes(size) for _, size, _ in requests]
    sent = b"".join(post(path, body, chunked) for (path, _, chunked), body in zip(requests, bodies, strict=True))

    async def run():
        connection, wire = connect()
        async for _ in send(connection, wire, sent, lambda: random_.randint(1, most)):
            assert not (connection.pipeline and wire.is_read)
        return wire.answers

    left = bytes(asyncio.run(run()))
    for (path, _, _), body in zip(requests, bodies, strict=True):
        if path != b"/" and left.startswith(REFUSED):  # only if none waited
            left = left[len(REFUSED) :]
            continue
        head, _, left = left.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and left.startswith(body)
        left = left[len(body) :]
    assert not left


def test_refusals_that_the_client_does_not_read_end_reading():
    request = post(b"/refused", b"", is_chunked=False)

    async def run():
        connection, wire = connect()
        connection.pause_writing()
        connection.data_received(1000 * request)
        assert not wire.answers and not wire.is_read
        connection.resume_writing()
        assert wire.answers == 1000 * REFUSED and wire.is_read

    asyncio.run(run())
