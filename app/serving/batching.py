"""Decode and score in one thread: requests that wait together are scored together.

A row's score does not depend on the rows beside it, so joining requests changes nothing but the time that they take.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from app.scoring.predictor import Predictor, ScoredChunk, probabilities
from app.serving.decoding import RequestError
from app.serving.options import Limits
from data_prep.encoding.encoder import Chunk
from data_prep.encoding.raw_rows import split_line

log = logging.getLogger(__name__)

TIMED_BATCHES = 31

Observe = Callable[[Predictor, Chunk, ScoredChunk], None]


@dataclass
class Work:
    """A request on its way: decoded and scored by `predictor`, which a refresh meanwhile does not change."""

    predictor: Predictor
    decode: Callable[[], Chunk]
    deadline: float  # by time.monotonic
    arrival: float = field(default_factory=time.monotonic)
    chunk: Chunk | None = None
    result: np.ndarray | Exception | None = None
    future: asyncio.Future[np.ndarray] | None = None


class Batcher:
    """The queue and its thread. `observe` is called after each batch, when its answers are on their way."""

    def __init__(self, limits: Limits, observe: Observe) -> None:
        self.limits, self._observe = limits, observe
        self._queue: deque[Work] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._last_ms: deque[float] = deque(maxlen=TIMED_BATCHES)
        self._request_ms = 0.0  # that scoring a request takes: the median of the last batches
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def check_room(self) -> None:
        """Raise RequestError 429 where a new request would wait too long, by the time that scoring takes now.

        A moment in which the machine did something else refuses none: what waits is answered soon after it.
        """
        num_waiting = len(self._queue)
        if num_waiting >= self.limits.max_queue or num_waiting * self._request_ms > self.limits.max_wait_ms:
            raise RequestError(429, f"{num_waiting} requests wait already; try again in a second")

    async def score(self, work: Work) -> np.ndarray:
        """Return the scores of a request's rows [n] float32. Raises RequestError."""
        self.check_room()
        work.future = asyncio.get_running_loop().create_future()
        with self._changed:
            self._queue.append(work)
            self._changed.notify()
        return await work.future

    def close(self) -> None:
        """Score what waits, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            started, observed = time.monotonic(), []
            for predictor, works in groupby(batch, lambda work: work.predictor):
                ready = [work for work in works if work.result is None]
                # Lines with quotes and without cannot stand in one chunk.
                for _, alike in groupby(ready, lambda work: work.chunk.is_bare):  # type: ignore[union-attr]
                    observed += _score(predictor, list(alike))
            loops = {work.future.get_loop() for work in batch if work.future is not None}
            for loop in loops:
                loop.call_soon_threadsafe(_answer, batch)
            for seen in observed:
                self._observe(*seen)
            self._last_ms.append(1000 * (time.monotonic() - started) / len(batch))
            self._request_ms = sorted(self._last_ms)[len(self._last_ms) // 2]

    def _next_batch(self) -> list[Work] | None:
        """Wait for requests and return those for the next batch, decoded; None at the end."""
        batch: list[Work] = []
        num_rows = 0
        with self._changed:
            while not self._queue:
                if self._stopping:
                    return None
                self._changed.wait()
        until = self._queue[0].arrival + self.limits.max_delay_ms / 1000
        while num_rows < self.limits.max_batch:
            with self._changed:
                while not self._queue and not self._stopping and (left := until - time.monotonic()) > 0:
                    self._changed.wait(left)
                if not self._queue:
                    break
                work = self._queue.popleft()
            self._decode(work)
            batch.append(work)
            num_rows += work.chunk.num_lines if work.chunk else 0
        return batch

    def _decode(self, work: Work) -> None:
        if time.monotonic() > work.deadline:
            work.result = RequestError(504, "the request's deadline passed while it waited")
            return
        try:
            work.chunk = work.decode()
            if work.chunk.num_lines > self.limits.max_rows:
                raise RequestError(
                    413, f"the request has {work.chunk.num_lines:,} rows, expected at most {self.limits.max_rows:,}"
                )
        except Exception as error:  # whatever one request does, the thread serves the others
            work.result = error


def join(chunks: Sequence[Chunk]) -> Chunk:
    """Return chunks, all with quotes taken off or none, as one."""
    lines = b"".join(chunk.lines for chunk in chunks)
    return Chunk(0, sum(chunk.num_lines for chunk in chunks), lines, is_bare=chunks[0].is_bare)


def _score(predictor: Predictor, works: list[Work]) -> list[tuple[Predictor, Chunk, ScoredChunk]]:
    """Score requests together, or each alone where that fails; fill in their results."""
    chunks = [work.chunk for work in works if work.chunk is not None]
    joined = join(chunks)
    try:
        scored = predictor.score_chunk(joined)
    except Exception as error:
        if len(works) > 1:
            return [seen for work in works for seen in _score(predictor, [work])]
        works[0].result = error
        return []
    scores = np.full(joined.num_lines, np.nan, np.float32)
    scores[scored.places] = probabilities(scored.logits)
    start = 0
    for work, chunk in zip(works, chunks, strict=True):
        end = start + chunk.num_lines
        bad = next((place for place in sorted(scored.rejected) if start <= place < end), None)
        if bad is None:
            work.result = scores[start:end]
        else:
            work.result = _bad_row(predictor, chunk, bad - start, scored.rejected[bad])
        start = end
    return [(predictor, joined, scored)]


def _bad_row(predictor: Predictor, chunk: Chunk, row: int, reason: str) -> RequestError:
    """Return the error that names a rejected row, and its first field that is rejected with all others blank."""
    cells = split_line(chunk.lines.split(b"\n")[row], predictor.log_format, chunk.is_bare)
    columns = predictor.log_format.columns
    where = f"row {row}"
    if len(cells) == len(columns):
        named = dict(zip(columns, cells, strict=True))
        fields = [name for name, _ in predictor.log_format.fields]
        alone = [{name: named[name] if name == one else None for name in fields} for one in fields]
        rejected = [one for one, cells in zip(fields, alone, strict=True) if _is_rejected(predictor, cells)]
        where += f", field {rejected[0]!r}, found {named[rejected[0]]!r}" if rejected else ""
        return RequestError(400, f"{where}: rejected as {reason!r}")
    return RequestError(
        400,
        f"{where}: rejected as {reason!r}: {len(cells)} cells, expected {len(columns)} columns: {', '.join(columns)}",
    )


def _is_rejected(predictor: Predictor, cells: dict[str, str | None]) -> bool:
    columns = predictor.log_format.columns
    line = predictor.log_format.separator.join(cells.get(name) or "" for name in columns if columns[name] != "label")
    return bool(predictor.score_chunk(predictor.chunk_of([line])).rejected)


def _answer(batch: list[Work]) -> None:
    """Hand results to the requests that wait for them, in the event loop's thread."""
    for work in batch:
        if work.future is None or work.future.done():  # cancelled: the client has gone
            continue
        if isinstance(work.result, Exception):
            work.future.set_exception(work.result)
        elif work.result is not None:
            work.future.set_result(work.result)
