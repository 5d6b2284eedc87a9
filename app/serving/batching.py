"""Join requests: those that wait together are scored together.

A row's score does not depend on the rows beside it, so joining requests changes nothing but the time that they take.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from app.scoring.predictor import Predictor, ScoredChunk, probabilities
from app.serving.decoding import RequestError, RowsToScore
from app.serving.options import Limits
from data_prep.encoding.encoder import Chunk
from data_prep.encoding.raw_rows import TableRows, join_table_rows, split_line

TIMED_BATCHES = 31
LARGE_BODY = 1 << 16  # bytes: a larger one is decoded and scored by a thread; JSON of one row has about 1,000
LEAST_QUEUE = 4  # requests that wait, however long they take

Decode = Callable[[], RowsToScore]
Seen = tuple[Predictor, RowsToScore, ScoredChunk]
Observe = Callable[[Predictor, RowsToScore, ScoredChunk], None]


@dataclass
class Work:
    """A request that waits; `predictor` scores its rows, which a refresh meanwhile does not change."""

    predictor: Predictor
    chunk: RowsToScore
    deadline: float  # by time.monotonic
    future: asyncio.Future[np.ndarray]


class Batcher:
    """The queue, which the event loop scores between two looks at its sockets.

    A thread beside the loop would cost a request of one row as much as its scoring does. A large request has one, and
    one large request is scored at a time. Everything here is for the loop's thread; `observe` is called after a batch.
    """

    def __init__(self, limits: Limits, observe: Observe) -> None:
        self.limits, self._observe = limits, observe
        self._queue: deque[Work] = deque()
        self._num_rows = 0  # in the queue
        self._next: asyncio.Handle | None = None  # the next batch's start
        self._is_delayed = False  # so that others can join it
        self._one_large = asyncio.Semaphore(1)
        self._num_large = 0
        self._last_ms: deque[float] = deque(maxlen=TIMED_BATCHES)
        self._request_ms = 0.0  # that a request takes: the median of the last batches

    @property
    def num_waiting(self) -> int:
        return len(self._queue) + self._num_large

    def check_room(self) -> None:
        """Raise RequestError 429 where a new request would wait too long, by the time that scoring takes now.

        A moment in which the machine did something else refuses none: what waits is answered soon after it.
        """
        waiting = self.num_waiting
        is_slow = waiting >= LEAST_QUEUE and waiting * self._request_ms > self.limits.max_wait_ms
        if is_slow or waiting >= self.limits.max_queue:
            raise RequestError(429, f"{waiting} requests wait already; try again in a second")

    async def score(self, predictor: Predictor, decode: Decode, num_bytes: int, deadline: float) -> np.ndarray:
        """Return the scores [n] float32 of what `decode` makes of a body of so many bytes. Raises RequestError."""
        self.check_room()
        if num_bytes > LARGE_BODY:
            return await self._score_large(predictor, decode, deadline)
        chunk = self._decoded(decode)
        if chunk.num_lines > self.limits.max_batch:
            return await self._score_large(predictor, lambda: chunk, deadline)
        loop = asyncio.get_running_loop()
        work = Work(predictor, chunk, deadline, loop.create_future())
        self._queue.append(work)
        self._num_rows += chunk.num_lines
        delay = self.limits.max_delay_ms / 1000 if self._num_rows < self.limits.max_batch else 0.0
        if self._next is None or (self._is_delayed and not delay):
            if self._next is not None:
                self._next.cancel()
            self._is_delayed = delay > 0
            self._next = loop.call_later(delay, self._score_next) if delay else loop.call_soon(self._score_next)
        return await work.future

    async def _score_large(self, predictor: Predictor, decode: Decode, deadline: float) -> np.ndarray:
        self._num_large += 1
        try:
            async with self._one_large:
                started = time.monotonic()
                if started > deadline:
                    raise _too_late()
                (result,), seen = await asyncio.to_thread(lambda: score_together(predictor, [self._decoded(decode)]))
                self._note(started, 1, seen)
        finally:
            self._num_large -= 1
        if isinstance(result, Exception):
            raise result
        return result

    def _decoded(self, decode: Decode) -> RowsToScore:
        chunk = decode()
        if chunk.num_lines > self.limits.max_rows:
            raise RequestError(
                413, f"the request has {chunk.num_lines:,} rows, expected at most {self.limits.max_rows:,}"
            )
        return chunk

    def _score_next(self) -> None:
        """Score a batch of what waits, and answer it."""
        started, batch, num_rows = time.monotonic(), [], 0
        while self._queue and num_rows < self.limits.max_batch:
            work = self._queue.popleft()
            self._num_rows -= work.chunk.num_lines
            if started > work.deadline:
                _answer(work, _too_late())
            else:
                batch.append(work)
                num_rows += work.chunk.num_lines
        self._next, self._is_delayed = None, False
        if self._queue:
            self._next = asyncio.get_running_loop().call_soon(self._score_next)
        seen: list[Seen] = []
        # Lines with quotes, without, and rows of tables cannot stand in one chunk.
        for _, alike in groupby(batch, lambda work: (id(work.predictor), work.chunk.is_bare)):
            works = list(alike)
            results, scored = score_together(works[0].predictor, [work.chunk for work in works])
            seen += scored
            for work, result in zip(works, results, strict=True):
                _answer(work, result)
        if batch:
            self._note(started, len(batch), seen)

    def _note(self, started: float, num_requests: int, seen: Sequence[Seen]) -> None:
        """Note the pace, and let the batch be observed."""
        self._last_ms.append(1000 * (time.monotonic() - started) / num_requests)
        self._request_ms = sorted(self._last_ms)[len(self._last_ms) // 2]
        for each in seen:
            self._observe(*each)


def _too_late() -> RequestError:
    return RequestError(504, "the request's deadline passed while it waited")


def _answer(work: Work, result: np.ndarray | Exception) -> None:
    if work.future.done():  # cancelled: the client has gone
        return
    if isinstance(result, Exception):
        work.future.set_exception(result)
    else:
        work.future.set_result(result)


def join(chunks: Sequence[RowsToScore]) -> RowsToScore:
    """Return chunks, all with quotes taken off or none, or all rows of tables, as one."""
    if len(chunks) == 1:
        return chunks[0]
    if chunks[0].is_bare is None:
        return join_table_rows([chunk for chunk in chunks if isinstance(chunk, TableRows)])
    lines = b"".join(chunk.lines for chunk in chunks if isinstance(chunk, Chunk))
    return Chunk(0, sum(chunk.num_lines for chunk in chunks), lines, is_bare=chunks[0].is_bare)


def score_together(
    predictor: Predictor, chunks: Sequence[RowsToScore]
) -> tuple[list[np.ndarray | Exception], list[Seen]]:
    """Return each request's scores or error, and what was scored; each is scored alone where all together fail."""
    joined = join(chunks)
    try:
        scored = predictor.score_chunk(joined)
    except Exception as error:  # whatever one request does, the others are served
        if len(chunks) == 1:
            return [error], []
        alone = [score_together(predictor, [chunk]) for chunk in chunks]
        return [result for results, _ in alone for result in results], [each for _, seen in alone for each in seen]
    scores = np.full(joined.num_lines, np.nan, np.float32)
    scores[scored.places] = probabilities(scored.logits)
    results: list[np.ndarray | Exception] = []
    start = 0
    for chunk in chunks:
        end = start + chunk.num_lines
        bad = next((place for place in sorted(scored.rejected) if start <= place < end), None)
        if bad is None or not isinstance(chunk, Chunk):
            results.append(scores[start:end])
        else:
            results.append(_bad_row(predictor, chunk, bad - start, scored.rejected[bad]))
        start = end
    return results, [(predictor, joined, scored)]


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
