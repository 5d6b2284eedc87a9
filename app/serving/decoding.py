"""Decode the bodies of requests to rows. Large bodies are decoded in a separate process, because a decoder holds the
global interpreter lock.

The process is started when the first large body arrives, and imports only what decoding needs. It is started anew
instead of forked, so it does not inherit the memory of the service. It ignores SIGTERM and SIGINT, and ends when the
service closes the connection to it.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from app.serving.forms import FORMS, tensors
from app.serving.forms.form import NameRow, RequestError, RowsToScore, rejected_row
from app.serving.options import Limits
from data_prep.encoding.encoder import Chunk
from data_prep.encoding.from_values import choose_kernels, rejected
from data_prep.options.log_format import LogFormat

log = logging.getLogger(__name__)

# The decoding process is killed if starting it and sending it a body takes more than this many seconds.
TAKEN_SECONDS = 30.0
DECODE_SECONDS = 10.0  # The decoding process is killed if it decodes a body for longer than this.
# Memory limit of the decoding process, as a multiple of the largest allowed body. Decoded JSON takes 5 to 30 times the
# size of its text.
MEMORY_OF_BODIES = 16
NICE = 5  # Nice value of the decoding process, so that it has a lower priority than the event loop.

# Function that takes the body of a request and returns two values: its rows, and whatever else of the body is needed to
# write the response.
Decode = Callable[[bytes], tuple[RowsToScore, Any]]


def decode_rows(content_type: str, log_format: LogFormat, limits: Limits, body: bytes) -> tuple[RowsToScore, None]:
    """Return the rows of a body that was sent to /v1/score with the given content type, and None, because the response
    needs nothing else of the body. Raise RequestError if the body is wrong.
    """
    return FORMS[content_type].to_chunk(body, log_format, limits), None


def decode_tensors(
    header_length: str | None, log_format: LogFormat, limits: Limits, body: bytes
) -> tuple[RowsToScore, tensors.InferRequest]:
    """Return the rows of a V2 (Open Inference Protocol) request, and the request's JSON without inputs, which the
    response needs. Raise RequestError if the body is wrong.
    """
    infer, binary = tensors.split_body(body, header_length)
    chunk = tensors.to_chunk(infer, binary, log_format, limits)
    infer.inputs = []
    return chunk, infer


def decode_checked(
    decode: Decode, name_row: NameRow | None, log_format: LogFormat, body: bytes
) -> tuple[RowsToScore, Any]:
    """Return the result of `decode` after checking that the log's parser accepts every row. Raise RequestError for the
    first row that is wrong.

    `name_row` finds the row's name for the error message, such as its line. The decoding process calls this function,
    because a wrong row may be large, and finding its name may take as long as decoding the body.
    """
    try:
        chunk, reply = decode(body)
        if isinstance(chunk, Chunk):
            reasons = rejected(chunk, choose_kernels("auto").parse_chunk(chunk, log_format))
            for row, reason in sorted(reasons.items())[:1]:
                raise rejected_row(chunk, row, reason, log_format)
    except RequestError as error:
        raise error.with_row_as(partial(name_row, body)) if name_row else error from None
    return chunk, reply


class DecodingProcess:
    """A separate process that decodes one body at a time. Only one thread may use an object of this class."""

    def __init__(self, limits: Limits) -> None:
        self._memory_bytes = MEMORY_OF_BODIES * limits.max_body_mib << 20
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None

    def run(self, decode: Decode, body: bytes) -> tuple[RowsToScore, Any]:
        """Return decode(body), computed in the decoding process. Raise RequestError if decoding fails or takes too
        long, or if the process dies.
        """
        killer = threading.Timer(TAKEN_SECONDS, self._kill)
        try:
            connection = self._connection or self._start()
            killer.start()
            connection.send(decode)
            connection.send_bytes(body)
            killer.cancel()
            if not connection.poll(DECODE_SECONDS):
                raise self._failed(504, f"decoding the body took longer than {DECODE_SECONDS:g} seconds")
            status, result = connection.recv()
        except (OSError, EOFError):
            raise self._failed(503, "the process that decodes large bodies has died; try again") from None
        finally:
            killer.cancel()
        if status != 200:
            raise RequestError(status, result)
        rows: tuple[RowsToScore, Any] = result
        return rows

    def _start(self) -> Connection[Any, Any]:
        self._connection, theirs = Pipe()
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(self._memory_bytes)]
        # Block SIGTERM and SIGINT while the decoding process is started. The new process inherits the blocked signals,
        # so these two signals never end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])  # noqa: S603
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        return self._connection

    def _failed(self, status: int, message: str) -> RequestError:
        """Kill the decoding process, which has failed. Return the error for the request whose body it was decoding.
        `run` starts a new process for the next body.
        """
        log.warning("%s", message)
        self.close()
        return RequestError(status, message)

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._kill()
            self._process.wait()
        self._process = self._connection = None

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()


def _run(connection: Connection[Any, Any], memory_bytes: int) -> None:
    """Run the decoding process: receive pairs of a decoding function and a body, and send back (200, result) or (HTTP
    status, error message), until the connection closes.
    """
    os.nice(NICE)
    if sys.platform == "linux":
        # If the machine runs out of memory, Linux kills the process with the highest score first. Give the decoding
        # process the highest score, so that the service is not killed.
        Path("/proc/self/oom_score_adj").write_text("1000")
        num_bytes = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (num_bytes + memory_bytes, num_bytes + memory_bytes))
    with suppress(EOFError):
        while True:
            decode, body = connection.recv(), connection.recv_bytes()
            try:
                answer: tuple[int, Any] = 200, decode(body)
            except RequestError as error:
                answer = error.status, str(error)
            except MemoryError:
                answer = 413, f"decoding the body takes more than {memory_bytes:,} bytes"
            del body
            connection.send(answer)


if __name__ == "__main__":
    _run(Connection(int(sys.argv[1])), int(sys.argv[2]))
