"""Join requests: those that wait together are scored together.

A row's score does not depend on the rows beside it, so joining requests changes nothing but the time that they take.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from app.scoring.bundle_model import Scored
from app.scoring.predictor import Predictor
from app.serving.forms.form import RequestError, RowsToScore, rejected_row
from app.serving.options import Limits
from data_prep.encoding.encoder import Chunk
from data_prep.encoding.from_table import Cells, RawTable

TIMED_BATCHES = 31  # that show the pace
PAUSED_SHARE = 10  # one in so many does not count: it may have paused, as while a model is opened
LARGE_BODY = 1 << 16  # bytes: larger ones have a queue of their own, so that small ones do not wait for them
HUGE_BODY = 1 << 20  # larger ones too
LOOP_BYTES = 1 << 14  # of JSON that the event loop itself decodes and scores: 25 rows, 2 ms
REFUSED = 429  # status of a request that would wait too long
LEAST_QUEUE = 4  # requests that wait, however long they take
REFUSALS_A_SECOND = 250  # Beyond, a refusal is given later: clients that ask again at once would take all the time
FREE_REFUSALS = 25  # at once
MOST_DELAY = 1.5  # seconds of a refusal. Clients often give up after two; with 1.6 some did beside other work
LEAST_LATE = 1.1  # seconds of a refusal that would come later at that rate

Decode = Callable[[], RowsToScore]
ScoredRows = tuple[Predictor, RowsToScore, Scored]
Observe = Callable[[Predictor, RowsToScore, Scored], None]
Result = np.ndarray | Exception


@dataclass
class Work:
    """A request that waits. `predictor` scores its rows, even if another model serves meanwhile."""

    predictor: Predictor
    decode: Decode
    num_bytes: int
    deadline: float  # by time.monotonic
    future: asyncio.Future[np.ndarray]


@dataclass
class Batch:
    """Requests that were scored together."""

    answers: list[tuple[Work, Result]]
    scored: list[ScoredRows]
    milliseconds: float  # that they took


class Batcher:
    """Queues of small, large and huge bodies. Everything here is for the event loop's thread."""

    def __init__(self, limits: Limits, observe: Observe) -> None:
        self.small, self.large = _Queue(limits, observe, LOOP_BYTES), _Queue(limits, observe, 0)
        self.huge = _Queue(limits, observe, 0)
        self.refusals = Refusals()

    @property
    def num_waiting(self) -> int:
        return self.small.num_waiting + self.large.num_waiting + self.huge.num_waiting

    def admit(self, num_bytes: int) -> None:
        """Raise RequestError REFUSED if a body of so many bytes would wait too long. Else it has a place."""
        self._queue(num_bytes).admit()

    async def logits(self, predictor: Predictor, decode: Decode, num_bytes: int, deadline: float) -> np.ndarray:
        """Return the logits [n] float32 of what `decode` makes of a body of so many bytes. Raises RequestError."""
        try:
            self._queue(num_bytes).check_room()  # again: others have come while its body arrived
        except RequestError:
            await asyncio.sleep(self.refusals.delay())
            raise
        future = asyncio.get_running_loop().create_future()
        return await self._queue(num_bytes).logits(Work(predictor, decode, num_bytes, deadline, future))

    def _queue(self, num_bytes: int) -> _Queue:
        if num_bytes > HUGE_BODY:
            return self.huge
        return self.large if num_bytes > LARGE_BODY else self.small


class Refusals:
    """Spaces refusals in time, once there are many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, 0.0  # the time of the last refusal, if none were free

    def delay(self) -> float:
        """Return the seconds to wait before a refusal is given."""
        now, free = self._clock(), FREE_REFUSALS / REFUSALS_A_SECOND
        due = max(self._last, now - free) + 1 / REFUSALS_A_SECOND
        if due > now + MOST_DELAY:  # Clients that came together must not come together again
            return random.uniform(LEAST_LATE, MOST_DELAY)  # noqa: S311
        self._last = due
        return max(due - now, 0.0)


class _Queue:
    """Requests that wait, and the thread that decodes and scores them.

    To hand a request of one row to a thread and back takes as long as to score it. So the event loop itself scores what
    waits if the thread is idle and that has at most `loop_bytes`. Otherwise the loop must be free to read and refuse.
    """

    def __init__(self, limits: Limits, observe: Observe, loop_bytes: int) -> None:
        self.limits, self._observe, self._loop_bytes = limits, observe, loop_bytes
        self._thread = ThreadPoolExecutor(1, "scoring")
        self._waiting: deque[Work] = deque()
        self.num_waiting = 0  # those being scored too
        self._num_coming = 0
        self._next: asyncio.Handle | None = None  # the next batch's start
        self._is_scoring = False  # in the thread
        self._last: deque[tuple[float, int]] = deque(maxlen=TIMED_BATCHES)  # milliseconds of a request, requests
        self._request_ms: float | None = 0.0  # that a request takes, by these; None until somebody asks
        self._loop_ms = 0.0  # that the event loop has had when the last batch was answered

    def check_room(self) -> None:
        """Raise RequestError REFUSED if a new request would wait too long at the pace of the last batches.

        A short pause of the machine refuses nothing: the pace is without the slowest batches.
        """
        waiting = self.num_waiting + self._num_coming
        is_slow = waiting >= LEAST_QUEUE and waiting * self._pace() > self.limits.max_wait_ms
        if is_slow or waiting >= self.limits.max_queue:
            raise RequestError(REFUSED, f"{waiting} requests wait already; try again in a second")

    def admit(self) -> None:
        """Check the room for a request whose headers have arrived, and count it until its task begins.

        Else all of those that the event loop reads in one go would be admitted by what waited before them.
        """
        self.check_room()
        self._num_coming += 1
        asyncio.get_running_loop().call_soon(self._note_arrival)

    def _note_arrival(self) -> None:
        self._num_coming -= 1

    async def logits(self, work: Work) -> np.ndarray:
        """Return the logits of a request. Raises RequestError."""
        self._waiting.append(work)
        self.num_waiting += 1
        try:
            self._plan()
            return await work.future
        finally:
            self.num_waiting -= 1

    def _plan(self) -> None:
        """Schedule the next batch, once, if something waits and nobody scores."""
        if self._is_scoring or not self._waiting:
            return
        is_full = len(self._waiting) >= self.limits.max_batch
        delay = 0.0 if is_full else self.limits.max_delay_ms / 1000
        if self._next is not None:
            if delay or not self.limits.max_delay_ms:
                return
            self._next.cancel()
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(delay, self._start) if delay else loop.call_soon(self._start)

    def _start(self) -> None:
        self._next = None
        if sum(work.num_bytes for work in self._waiting) <= self._loop_bytes:
            self._finish(score_batch(self._waiting, self.limits), 0.0)
            return
        self._is_scoring = True
        scored = asyncio.get_running_loop().run_in_executor(self._thread, score_batch, self._waiting, self.limits)
        scored.add_done_callback(self._scored)

    def _scored(self, batch: asyncio.Future[Batch]) -> None:
        self._is_scoring = False
        self._finish(batch.result(), batch.result().milliseconds)

    def _finish(self, batch: Batch, thread_ms: float) -> None:
        """Answer what was scored. Once the answers are written, note the pace and start the next batch."""
        for work, result in batch.answers:
            _answer(work, result)
        asyncio.get_running_loop().call_soon(self._note_batch, batch, thread_ms)

    def _note_batch(self, batch: Batch, thread_ms: float) -> None:
        self._note_pace(batch, thread_ms)
        self._plan()
        for each in batch.scored:
            self._observe(*each)

    def _note_pace(self, batch: Batch, thread_ms: float) -> None:
        """Note the time that a request takes: all that the event loop and the thread have had since the last batch.

        Of small batches only their own, since the loop may have done anything between them.
        """
        before, self._loop_ms = self._loop_ms, processor_ms()
        milliseconds = batch.milliseconds
        if self._loop_bytes and len(batch.answers) >= LEAST_QUEUE:
            milliseconds = self._loop_ms - before + thread_ms
        self._last.append((milliseconds / len(batch.answers), len(batch.answers)))
        self._request_ms = None

    def _pace(self) -> float:
        """Return the milliseconds that a request takes. To find them takes a thirtieth of a request of one row."""
        if self._request_ms is None:
            self._request_ms = pace_of(self._last)
        return self._request_ms


def pace_of(batches: Collection[tuple[float, int]]) -> float:
    """Return the mean time of a request from that of each batch's requests and their number, but for the slowest.

    A request alone takes several times as long as one of many, and what the event loop has read during one batch counts
    in the next. So each batch counts by its requests: by a median of batches a few that come at a time let few in.
    """
    kept = sorted(batches)[: len(batches) - len(batches) // PAUSED_SHARE]
    return sum(value * count for value, count in kept) / sum(count for _, count in kept)


def score_batch(queue: deque[Work], limits: Limits) -> Batch:
    """Take requests from a queue until they have enough rows, and score them. No other thread may take from it."""
    stopwatch, num_rows = _Stopwatch(), 0
    answers: list[tuple[Work, Result]] = []
    decoded: list[tuple[Work, RowsToScore]] = []
    while queue and num_rows < limits.max_batch:
        work = queue.popleft()
        try:
            chunk = _decoded(work)
        except RequestError as error:  # without its frames, which hold the body
            answers.append((work, error.with_traceback(None)))
        except Exception as error:  # whatever one request does, the others are served
            answers.append((work, error))
        else:
            decoded.append((work, chunk))
            num_rows += chunk.num_lines
    seen: list[ScoredRows] = []
    # Lines with quotes, without, and rows of tables cannot stand in one chunk.
    for _, alike in groupby(decoded, lambda each: (id(each[0].predictor), each[1].is_bare)):
        works, chunks = zip(*alike, strict=True)
        results, scored = score_together(works[0].predictor, chunks)
        answers += zip(works, results, strict=True)
        seen += scored
    return Batch(answers, seen, stopwatch.milliseconds())


class _Stopwatch:
    """Measures the time that this thread has, without what other processes take, and what it waits for the disk."""

    def __init__(self) -> None:
        self._began, self._had_ms, self._num_read = time.monotonic(), processor_ms(), _num_read()

    def milliseconds(self) -> float:
        if _num_read() > self._num_read:
            return 1000 * (time.monotonic() - self._began)
        return processor_ms() - self._had_ms


def processor_ms() -> float:
    """Return the milliseconds that this thread has had. Those of getrusage grow by the kernel's ticks of 4 ms."""
    return 1000 * time.thread_time()


def _num_read() -> int:
    """Return the pages of mapped files that this thread has waited for."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt if sys.platform == "linux" else 0


def _decoded(work: Work) -> RowsToScore:
    if time.monotonic() > work.deadline:
        raise RequestError(504, "the request's deadline passed while it waited")
    return work.decode()


def _answer(work: Work, result: Result) -> None:
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
        return _join_tables([chunk for chunk in chunks if isinstance(chunk, RawTable)])
    lines = b"".join(chunk.lines for chunk in chunks if isinstance(chunk, Chunk))
    return Chunk(0, sum(chunk.num_lines for chunk in chunks), lines, is_bare=chunks[0].is_bare)


def _join_tables(parts: Sequence[RawTable]) -> RawTable:
    """Return the rows of several tables as those of one."""
    integers, hex_values = (
        Cells(*(np.concatenate(arrays, axis=1) for arrays in zip(*blocks, strict=True)))
        for blocks in ([part.integers for part in parts], [part.hex_values for part in parts])
    )
    return RawTable(integers, hex_values, parts[0].log_format)


def score_together(predictor: Predictor, chunks: Sequence[RowsToScore]) -> tuple[list[Result], list[ScoredRows]]:
    """Return each request's logits or error, and what was scored. If all fail together, each is scored alone."""
    try:
        return _score_joined(predictor, chunks)
    except Exception as error:  # whatever one request does, the others are served
        if len(chunks) == 1:
            return [error], []
    alone = [score_together(predictor, [chunk]) for chunk in chunks]
    return [result for results, _ in alone for result in results], [each for _, seen in alone for each in seen]


def _score_joined(predictor: Predictor, chunks: Sequence[RowsToScore]) -> tuple[list[Result], list[ScoredRows]]:
    all_rows = join(chunks)
    scored = predictor.score_chunk(all_rows)
    logits = scored.logits
    if scored.rejected:
        logits = np.full(all_rows.num_lines, np.nan, np.float32)
        logits[scored.places] = scored.logits
    results: list[Result] = []
    start = 0
    for chunk in chunks:
        end = start + chunk.num_lines
        bad = next((place for place in sorted(scored.rejected) if start <= place < end), None)
        if bad is None or not isinstance(chunk, Chunk):
            results.append(logits[start:end])
        else:
            results.append(rejected_row(chunk, bad - start, scored.rejected[bad], predictor.log_format))
        start = end
    return results, [(predictor, all_rows, scored)]
