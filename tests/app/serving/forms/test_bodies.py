"""Compressed bodies score as others do, and what they unpack to has a bound in bytes, memory and time."""

import asyncio
import gzip
import json
import resource
import time
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.serving.forms.bodies import unpack
from app.serving.forms.form import RequestError
from tests.app.serving.conftest import Client, run_beside
from tests.app.serving.test_service import ARROW, binary_of, binary_scores, error_of, lines_of
from tests.request_bodies import arrow_stream


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


PACK = {"gzip": gzip.compress, "zstd": zstd}


@pytest.mark.parametrize(("encoding", "pack"), [*PACK.items(), ("X-GZIP", gzip.compress), (" Zstd ", zstd)])
def test_compressed_bodies_score_as_others(client, golden, golden_scores, encoding, pack):
    for body, form in (
        (json.dumps({"rows": golden.to_pylist()}).encode(), "application/json"),
        (lines_of(golden).encode(), "text/plain"),
        (arrow_stream(golden), ARROW),
    ):
        headers = {"content-type": form, "content-encoding": encoding}
        assert client.post("/v1/score", content=pack(body), headers=headers).json()["scores"] == golden_scores
    body, length = binary_of(golden)
    headers = {"inference-header-content-length": str(length), "content-encoding": encoding}
    answer = client.post("/v2/models/clicks/infer", content=pack(body), headers=headers)
    assert binary_scores(answer) == golden_scores


@given(data=st.data())
def test_what_is_unpacked_is_what_was_packed_or_refused(data):
    """Several members and frames side by side, cut, and with a byte changed."""

    async def unpacked(body, codec):
        return b"".join([piece async for piece in unpack(body, codec)])

    codec = data.draw(st.sampled_from(sorted(PACK)))
    parts = data.draw(st.lists(st.binary(max_size=300).map(lambda part: part * 50), min_size=1, max_size=3))
    body = b"".join(map(PACK[codec], parts))
    assert asyncio.run(unpacked(body, codec)) == b"".join(parts)
    last = len(body) - len(PACK[codec](parts[-1]))
    with pytest.raises(RequestError, match="content-encoding"):
        asyncio.run(unpacked(body[: data.draw(st.integers(last + 1, len(body) - 1))], codec))
    if codec == "gzip":  # Arrow's zstd frames have no checksum
        place = data.draw(st.integers(len(body) - 8, len(body) - 1))
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        with pytest.raises(RequestError, match="content-encoding"):
            asyncio.run(unpacked(changed, codec))


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd", "gzip,gzip", "compress"])
def test_another_encoding_is_refused_and_the_answer_names_those_that_are_taken(client, encoding):
    answer = client.post("/v1/score", content=b"{}", headers={"content-encoding": encoding})
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "gzip, zstd"
    assert "gzip, zstd" in error_of(answer)
    other = client.post("/v1/score", content=b"{}", headers={"content-type": "text/html"})
    assert other.status_code == 415
    assert "accept-encoding" not in other.headers  # it is not for the encoding


@pytest.mark.parametrize("encoding", sorted(PACK))
def test_a_body_that_is_not_packed_as_it_claims_is_refused(client, encoding):
    for body in (b'{"rows": []}', PACK[encoding](b"{}")[:-3]):
        answer = client.post("/v1/score", content=body, headers={"content-encoding": encoding})
        assert (answer.status_code, encoding in error_of(answer)) == (400, True)


def bomb(encoding, num_bytes):
    """A body of a few hundred KiB at most that unpacks to `num_bytes` zeros."""
    if encoding == "gzip":
        packer = zlib.compressobj(9, wbits=31)
        pieces = (packer.compress(bytes(1 << 20)) for _ in range(num_bytes >> 20))
        return b"".join(pieces) + packer.flush()
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for _ in range(num_bytes >> 20):
            stream.write(bytes(1 << 20))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("encoding", sorted(PACK))
def test_a_bomb_is_refused_within_memory_and_while_health_answers(make_service, tiny_bundle, encoding):
    service = make_service(tiny_bundle, max_body_mib=16)
    body = bomb(encoding, 1 << 29)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def send(client):
        headers = {"content-encoding": encoding}
        sent = [asyncio.create_task(client.post("/v1/score", content=body, headers=headers)) for _ in range(3)]
        latest = 0.0
        while not all(task.done() for task in sent):
            start = time.monotonic()
            assert (await client.get("/v2/health/live")).status_code == 200
            await asyncio.sleep(0.001)  # the loop's other tasks have a turn
            latest = max(latest, time.monotonic() - start)
        return [task.result() for task in sent], latest

    answers, latest = run_beside(service, send)
    assert {answer.status_code for answer in answers} <= {413, 503}
    assert any(answer.status_code == 413 for answer in answers)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 6 * 16 << 10  # 4 × --max-body-mib are held at most; 512 MiB would be unpacked without a bound
    assert latest < 1
    assert service._bodies.held_bytes == 0
    assert Client(service).post("/v1/score", content=PACK[encoding](b""), headers={}).status_code == 400
