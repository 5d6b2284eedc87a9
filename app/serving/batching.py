"""Score the requests that wait at the same time in one batch.

The score of a row does not depend on the other rows of its batch, so batching changes only how long the response takes.
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
from data_prep.encoding.rows_to_score import Cells, RawTable

# Number of recent batches (requests that were scored together) from which the mean time of a request is computed.
TIMED_BATCHES = 31
# The mean time of a request leaves out the slowest 1 of this many batches, because the process may have been held up
# during it, for example while a model was opened.
PAUSED_SHARE = 10
# Requests with a body above this size (in bytes) have a queue of their own, so that requests with small bodies do not
# wait for them.
LARGE_BODY = 1 << 16
# Requests with a body above this size (in bytes) have a third queue, so that merely large ones do not wait for them.
HUGE_BODY = 1 << 20
# The event loop decodes and scores waiting requests itself if their bodies have at most this many bytes together (25
# rows of JSON, which take 2 ms). A thread scores larger batches.
LOOP_BYTES = 1 << 14
REFUSED = 429  # HTTP status of a request that is refused because it would wait too long.
# This many requests may always wait in a queue, even if scoring each takes so long that the last would wait too long.
LEAST_QUEUE = 4
# Maximum rate at which requests are refused at once (with status 429). Above it, refusals are delayed, because clients
# that retry immediately would take all the processor's time.
REFUSALS_A_SECOND = 250
FREE_REFUSALS = 25  # This many refusals (responses with status 429) in quick succession are sent without delay.
# Longest delay of a refusal (response with status 429) in seconds. Clients often give up after two seconds. With a
# limit of 1.6 seconds, some gave up on a busy machine.
MOST_DELAY = 1.5
# A refusal (response with status 429) that would have to wait longer than MOST_DELAY gets a random delay between
# LEAST_LATE and MOST_DELAY (in seconds).
LEAST_LATE = 1.1

Decode = Callable[[], RowsToScore]
ScoredRows = tuple[Predictor, RowsToScore, Scored]
Observe = Callable[[Predictor, RowsToScore, Scored], None]
Result = np.ndarray | Exception


@dataclass
class Work:
    """A waiting request: the model that scores it, the function that decodes its body to rows, and the future that gets
    its logits. The model stays the same even if the service switches to another one meanwhile.
    """

    predictor: Predictor
    decode: Decode
    num_bytes: int
    deadline: float  # Deadline in seconds of time.monotonic.
    future: asyncio.Future[np.ndarray]


@dataclass
class ScoredBatch:
    """Result of scoring a batch (requests that are scored together): each request with its logits or its error
    (`answers`), and the models, rows and logits that the service counts in its metrics (`scored`).
    """

    answers: list[tuple[Work, Result]]
    scored: list[ScoredRows]
    milliseconds: float  # Time that scoring took.


class Batcher:
    """Scores requests in batches from three queues: for small, large and huge bodies. Only the event loop's thread may
    use this class.
    """

    def __init__(self, limits: Limits, observe: Observe) -> None:
        self.small, self.large, self.huge = (_Queue(limits, observe, most) for most in (LOOP_BYTES, 0, 0))
        self.refusals = Refusals()

    @property
    def num_waiting(self) -> int:
        """Number of requests in all queues, including those that are being scored."""
        return self.small.num_waiting + self.large.num_waiting + self.huge.num_waiting

    def admit(self, num_bytes: int) -> None:
        """Count a new request, whose body has `num_bytes` bytes, as waiting from now on. Raise RequestError with status
        REFUSED if the request would wait too long for its score.
        """
        self._queue(num_bytes).admit()

    async def logits(self, predictor: Predictor, decode: Decode, num_bytes: int, deadline: float) -> np.ndarray:
        """Put a request in its queue, wait for its batch, and return its logits, float32 [n].

        `decode` returns the rows of the body, which has `num_bytes` bytes. Raise RequestError if the queue is full, if
        the request still waits at `deadline` (in seconds of time.monotonic), or if its rows are wrong.
        """
        try:
            # The queue had room when the headers arrived, but other requests may have filled it while the body arrived.
            self._queue(num_bytes).check_room()
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
    """Computes the delay of each refusal (status 429). Under overload, refusals are spread over time so that about
    REFUSALS_A_SECOND are sent in a second. None waits longer than MOST_DELAY.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # `_last` is the time (in seconds of `clock`) at which the latest refusal so far is to be sent.
        self._clock, self._last = clock, 0.0

    def delay(self) -> float:
        """Return for how many seconds a new refusal (response with status 429) must be held back before it is sent, and
        count this refusal.
        """
        now, free = self._clock(), FREE_REFUSALS / REFUSALS_A_SECOND
        due = max(self._last, now - free) + 1 / REFUSALS_A_SECOND
        # Draw the delay at random, because clients that sent their requests at the same time would otherwise also retry
        # at the same time.
        if due > now + MOST_DELAY:
            return random.uniform(LEAST_LATE, MOST_DELAY)  # noqa: S311
        self._last = due
        return max(due - now, 0.0)


class _Queue:
    """A queue of waiting requests, and the thread that decodes and scores them.

    Passing a one-row request to a thread and its result back takes as long as scoring it. The event loop therefore
    scores waiting requests itself if the thread is idle and their bodies have at most `loop_bytes` bytes together.
    Larger batches go to the thread, so that the event loop stays free to receive and to refuse requests.
    """

    def __init__(self, limits: Limits, observe: Observe, loop_bytes: int) -> None:
        self.limits, self._observe, self._loop_bytes = limits, observe, loop_bytes
        self._thread = ThreadPoolExecutor(1, "scoring")
        self._waiting: deque[Work] = deque()
        self.num_waiting = 0  # Number of requests in the queue, including those that are being scored.
        self._num_coming = 0
        # Handle with which the scheduled start of the next batch can be cancelled. None if no batch is scheduled.
        self._next: asyncio.Handle | None = None
        self._is_scoring = False  # True while the thread scores a batch.
        # For each recent batch, the mean time per request in milliseconds and the number of requests.
        self._last: deque[tuple[float, int]] = deque(maxlen=TIMED_BATCHES)
        # Mean time of a request in milliseconds, the result of `pace_of(_last)`. None if it must be computed again,
        # because a batch was added to `_last`.
        self._request_ms: float | None = 0.0
        # Total CPU time that the event loop's thread had used, in milliseconds, when the last batch had been scored.
        self._loop_ms = 0.0

    def check_room(self) -> None:
        """Raise RequestError with status REFUSED if the queue is full, or if a new request would wait longer than
        `max_wait_ms`.

        The wait is estimated from the mean time of a request in recent batches. The slowest batches are left out, so a
        short pause of the machine does not lead to refusals.
        """
        waiting = self.num_waiting + self._num_coming
        is_slow = waiting >= LEAST_QUEUE and waiting * self._pace() > self.limits.max_wait_ms
        if is_slow or waiting >= self.limits.max_queue:
            raise RequestError(REFUSED, f"{waiting} requests wait already; try again in a second")

    def admit(self) -> None:
        """Check the room for a request whose headers have arrived, and count the request as waiting until the asyncio
        task that answers it starts.

        The event loop may read many requests before the first of their tasks starts. Without this count, all of them
        would find an empty queue and be admitted.
        """
        self.check_room()
        self._num_coming += 1
        asyncio.get_running_loop().call_soon(self._note_arrival)

    def _note_arrival(self) -> None:
        self._num_coming -= 1

    async def logits(self, work: Work) -> np.ndarray:
        """Put a request in the queue, wait until it is scored, and return its logits, float32 [n]. Raise RequestError
        if it still waits at its deadline or if its rows are wrong.
        """
        self._waiting.append(work)
        self.num_waiting += 1
        try:
            self._plan()
            return await work.future
        finally:
            self.num_waiting -= 1

    def _plan(self) -> None:
        """Schedule the scoring of the next batch if requests wait and this queue's thread is idle. A batch that is
        scheduled already stays so, but is started at once if `max_batch` requests wait.
        """
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

    def _scored(self, batch: asyncio.Future[ScoredBatch]) -> None:
        self._is_scoring = False
        self._finish(batch.result(), batch.result().milliseconds)

    def _finish(self, batch: ScoredBatch, thread_ms: float) -> None:
        """Give each request of a scored batch its logits or its error. When the responses are on their way, record the
        time that the batch took and schedule the next batch.
        """
        for work, result in batch.answers:
            _answer(work, result)
        asyncio.get_running_loop().call_soon(self._note_batch, batch, thread_ms)

    def _note_batch(self, batch: ScoredBatch, thread_ms: float) -> None:
        self._note_pace(batch, thread_ms)
        self._plan()
        for each in batch.scored:
            self._observe(*each)

    def _note_pace(self, batch: ScoredBatch, thread_ms: float) -> None:
        """Record the mean time per request of a batch.

        The time includes the work of the event loop since the last batch, such as reading requests. For batches of
        fewer than LEAST_QUEUE requests, and in the queues of large bodies, only the time of scoring counts, because the
        event loop may have worked on requests of other queues meanwhile.
        """
        before, self._loop_ms = self._loop_ms, processor_ms()
        milliseconds = batch.milliseconds
        if self._loop_bytes and len(batch.answers) >= LEAST_QUEUE:
            milliseconds = self._loop_ms - before + thread_ms
        self._last.append((milliseconds / len(batch.answers), len(batch.answers)))
        self._request_ms = None

    def _pace(self) -> float:
        """Return the mean time that a request took in recent batches, in milliseconds. The mean is computed only when
        needed, because the computation takes a thirtieth of the time of a one-row request.
        """
        if self._request_ms is None:
            self._request_ms = pace_of(self._last)
        return self._request_ms


def pace_of(batches: Collection[tuple[float, int]]) -> float:
    """Return the mean time of a request over recent batches, in the unit of `batches`, without the slowest 1 of
    PAUSED_SHARE batches.

    `batches` holds a pair for each batch: the mean time of its requests and their number. The mean is weighted by the
    number of requests, because a request that is scored alone takes several times as long as one of many. A median over
    batches would overestimate the time, and so admit too few requests, when they arrive in small groups.
    """
    kept = sorted(batches)[: len(batches) - len(batches) // PAUSED_SHARE]
    return sum(value * count for value, count in kept) / sum(count for _, count in kept)


def score_batch(queue: deque[Work], limits: Limits) -> ScoredBatch:
    """Remove requests from the front of a queue until they have `max_batch` rows together, score them, and return the
    logits or the error of each. Only one thread at a time may call this function.
    """
    stopwatch, num_rows = _Stopwatch(), 0
    answers: list[tuple[Work, Result]] = []
    decoded: list[tuple[Work, RowsToScore]] = []
    while queue and num_rows < limits.max_batch:
        work = queue.popleft()
        try:
            chunk = _decoded(work)
        # Store the error without its traceback, whose frames would keep the request's body in memory.
        except RequestError as error:
            answers.append((work, error.with_traceback(None)))
        # An error in one request must not affect the other requests.
        except Exception as error:
            answers.append((work, error))
        else:
            decoded.append((work, chunk))
            num_rows += chunk.num_lines
    seen: list[ScoredRows] = []
    # Score consecutive requests together whose rows belong to the same model and are of the same kind (see `kind_of`).
    for _, alike in groupby(decoded, lambda each: (id(each[0].predictor), kind_of(each[1]))):
        works, chunks = zip(*alike, strict=True)
        results, scored = score_together(works[0].predictor, chunks)
        answers += zip(works, results, strict=True)
        seen += scored
    return ScoredBatch(answers, seen, stopwatch.milliseconds())


class _Stopwatch:
    """Measures how long scoring takes: the CPU time of this thread, or the elapsed time if the thread had to wait for
    pages from disk.
    """

    def __init__(self) -> None:
        self._began, self._had_ms, self._num_read = time.monotonic(), processor_ms(), _num_read()

    def milliseconds(self) -> float:
        """Return the time since this object was created, in milliseconds."""
        if _num_read() > self._num_read:
            return 1000 * (time.monotonic() - self._began)
        return processor_ms() - self._had_ms


def processor_ms() -> float:
    """Return the CPU time that this thread has used, in milliseconds. The times of `getrusage` would be rounded to the
    kernel's ticks of 4 ms.
    """
    return 1000 * time.thread_time()


def _num_read() -> int:
    """Return how often this thread has waited until a memory page was read from disk (major page faults), or 0 on other
    systems than Linux.
    """
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt if sys.platform == "linux" else 0


def _decoded(work: Work) -> RowsToScore:
    if time.monotonic() > work.deadline:
        raise RequestError(504, "the request's deadline passed while it waited")
    return work.decode()


def _answer(work: Work, result: Result) -> None:
    if work.future.done():  # The request was cancelled because its client has disconnected.
        return
    if isinstance(result, Exception):
        work.future.set_exception(result)
    else:
        work.future.set_result(result)


def kind_of(chunk: RowsToScore) -> tuple[str, bool]:
    """Return the kind of a chunk, a pair: whether its rows are quoted lines, unquoted lines or a table, and True if
    arrays beside its lines hold the numbers of its vectors. `join` can join chunks whose kinds are equal.
    """
    return str(chunk.is_bare), isinstance(chunk, Chunk) and bool(chunk.vectors)


def join(chunks: Sequence[RowsToScore]) -> RowsToScore:
    """Join the rows of several requests: return one chunk with the rows of all `chunks`, in their order. All must be
    of the same kind, see `kind_of`.
    """
    if len(chunks) == 1:
        return chunks[0]
    if chunks[0].is_bare is None:
        return _join_tables([chunk for chunk in chunks if isinstance(chunk, RawTable)])
    parts = [chunk for chunk in chunks if isinstance(chunk, Chunk)]
    vectors = {
        name: Cells(*map(np.concatenate, zip(*(part.vectors[name] for part in parts), strict=True)))
        for name in parts[0].vectors
    }
    lines = b"".join(part.lines for part in parts)
    return Chunk(0, sum(part.num_lines for part in parts), lines, is_bare=parts[0].is_bare, vectors=vectors)


def _join_tables(parts: Sequence[RawTable]) -> RawTable:
    """Return one table with the rows of several tables, in their order."""
    integers, hex_values = (
        Cells(*(np.concatenate(arrays, axis=1) for arrays in zip(*blocks, strict=True)))
        for blocks in ([part.integers for part in parts], [part.hex_values for part in parts])
    )
    return RawTable(integers, hex_values, parts[0].log_format)


def score_together(predictor: Predictor, chunks: Sequence[RowsToScore]) -> tuple[list[Result], list[ScoredRows]]:
    """Score the rows of several requests (`chunks`, one for each) as one chunk. Return the logits or the error of each
    request, and what was scored: model, rows and result of each chunk.

    If scoring the whole chunk fails, each request is scored alone.
    """
    try:
        return _score_joined(predictor, chunks)
    # An error in one request must not affect the other requests.
    except Exception as error:
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
