"""Counts of requests, rows and scores for Prometheus and the page, the drift of the rows from the held-out rows, and
the access log: a line of JSON for each request on standard output, and the ids by which callers find theirs.

Of what a client has sent, a line has the id alone: no value of a row, no other header, and an address by its form.
"""

from __future__ import annotations

import mmap
import os
import random
import re
import time
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

from app.scoring.bundle_model import Scored
from app.scoring.distribution import SCORE_BINS, Distribution, count_scores, held_out_rows
from app.scoring.predictor import Predictor
from app.serving.batching import REFUSED
from app.serving.generations import Generations
from app.serving.options import RECENT_BYTES
from data_prep.encoding.encoder import Examples

SECONDS = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)
NOTED_ROWS = 1024
WINDOW_ROWS = 100_000  # of drift: the last one to two times as many rows
POINTS, POINT_SECONDS = 60, 2  # of the page's charts
_SLOTS = 64  # of a worker, one a point: the last POINTS are whole
_REFUSALS = (REFUSED, 503, 504)
ID_HEADER = "x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")
_TRACE = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")  # W3C's
_STANDARD_OUTPUT = 1


class Recent:
    """The scored and refused requests of the last two minutes, in memory that the workers share.

    Each worker counts in a ring of its own, [slots, counts]: the point that a slot holds, its refused requests, then
    the others by the time that they took. Any worker can sum them.
    """

    def __init__(self, shared: mmap.mmap, worker: int) -> None:
        """`shared` has RECENT_BYTES for each worker."""
        counts = np.frombuffer(shared, np.int64).reshape(-1, _SLOTS, RECENT_BYTES // 8 // _SLOTS)
        self._counts = counts[..., : 2 + len(SECONDS) + 1]
        self._counts_here = self._counts[worker]

    def note(self, status: int, seconds: float) -> None:
        """Count a request."""
        point = int(time.monotonic()) // POINT_SECONDS
        slot = self._counts_here[point % _SLOTS]
        if slot[0] != point:
            slot[:] = 0
            slot[0] = point
        slot[1 if status in _REFUSALS else 2 + bisect_left(SECONDS, seconds)] += 1

    def series(self) -> dict[str, Any]:
        """Return the rates and times of the last points, the oldest first. A point without requests has no times."""
        points = np.arange(POINTS) + int(time.monotonic()) // POINT_SECONDS - POINTS
        slots = self._counts[:, points % _SLOTS]
        counts = np.where(slots[..., :1] == points[:, None], slots, 0).sum(0)
        times = counts[:, 2:]
        return {
            "seconds": POINT_SECONDS,
            "answered": (times.sum(1) / POINT_SECONDS).tolist(),
            "refused": (counts[:, 1] / POINT_SECONDS).tolist(),
            "p50_ms": [_quantile_ms(each, 0.5) for each in times],
            "p99_ms": [_quantile_ms(each, 0.99) for each in times],
        }


def _quantile_ms(counts: np.ndarray, share: float) -> float | None:
    """Return a quantile of requests that are counted by SECONDS, as if they lay evenly between two of these."""
    below = np.concatenate([[0], np.cumsum(counts)])
    if not below[-1]:
        return None
    return float(1e3 * np.interp(share * below[-1], below, (0, *SECONDS, SECONDS[-1])))


class Observed:
    """The metrics of one process, for its event loop. Those of several processes are summed when they are read."""

    def __init__(self, is_restart: bool = False, recent: Recent | None = None) -> None:
        self.recent = recent or Recent(mmap.mmap(-1, RECENT_BYTES), 0)
        self._registry = CollectorRegistry()
        self._noted: list[tuple[Predictor, Examples, np.ndarray]] = []  # of one model, with the logits
        self._num_noted = 0
        self._requests = self._make(Counter, "requests", "Requests by address and status.", ["route", "status"])
        self._seconds = self._make(Histogram, "request_seconds", "Time to answer.", ["route"], buckets=SECONDS)
        self._batch_rows = self._make(Histogram, "batch_rows", "Rows that were scored together.", buckets=ROWS)
        self._rejected = self._make(Counter, "rejected_rows", "Rows that are none of the log's.")
        self._scores = self._make(Counter, "scores", "Rows by their score, in twentieths.", ["bin"])
        self._queue = self._make(Gauge, "queue", "Requests that wait.", multiprocess_mode="livesum")
        self._generation = self._make(Gauge, "generation", "Of the model.", multiprocess_mode="livemin")
        self._ready = self._make(Gauge, "ready", "Workers that are ready.", multiprocess_mode="livesum")
        self._pinned = self._make(Gauge, "pinned", "1 if a version is pinned.", multiprocess_mode="livemax")
        self._swaps = self._make(Counter, "swaps", "Models that a worker has swapped to.")
        self._restarts = self._make(Counter, "restarts", "Workers that were started again.")
        self._restarts.inc(is_restart)
        self._num_swaps = 0  # of these that are counted
        self._num_waiting = 0  # requests, that the gauge has
        most = {"multiprocess_mode": "livemax"}
        self._psi = self._make(Gauge, "psi", "Drift of a field from the held-out rows.", ["field"], **most)
        self._unseen = self._make(Gauge, "unseen", "Share of values outside the vocabulary.", ["field"], **most)
        self._refused = self._make(Gauge, "refused_bundles", "Bundles of the folder that are refused.", **most)
        text = "Time for which the newest bundle is in the folder and does not serve."
        self._newest_age = self._make(Gauge, "newest_age_seconds", text, **most)
        self._bins = [self._scores.labels(str(number)) for number in range(SCORE_BINS)]
        self._predictor: Predictor | None = None
        self._held_out: Distribution | None = None
        self._windows: list[Distribution] = []  # the one that is counted last
        self._by_route: dict[tuple[str, int], tuple[Any, Any]] = {}

    def _make(self, kind: Any, name: str, text: str, labels: Any = (), **more: Any) -> Any:
        return kind(f"wide_deep_{name}", text, labels, registry=self._registry, **more)

    def model(self, generations: Generations, is_ready: bool, num_waiting: int) -> None:
        """Note what is served and what is not, and the requests that wait. The thread that watches calls this."""
        self._note_waiting(num_waiting)
        status = generations.status()
        self._generation.set(generations.current.generation)
        self._pinned.set(status["pinned"] is not None)
        self._refused.set(len(status["refused"]))
        self._newest_age.set(status["newest_age_seconds"])
        self._ready.set(is_ready)
        self._swaps.inc(generations.num_swaps - self._num_swaps)
        self._num_swaps = generations.num_swaps

    def request(self, route: str, status: int, seconds: float, num_waiting: int) -> None:
        """Count a request that was answered while others wait."""
        counters = self._by_route.get((route, status))
        if counters is None:
            counters = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._by_route[route, status] = counters
        counters[0].inc()
        if status != REFUSED:  # given by the headers, or late on purpose: no time that it took to answer
            counters[1].observe(seconds)
        if num_waiting != self._num_waiting:
            self._note_waiting(num_waiting)

    def _note_waiting(self, num_waiting: int) -> None:
        self._num_waiting = num_waiting
        self._queue.set(num_waiting)

    def batch(self, predictor: Predictor, scored: Scored) -> bool:
        """Note a batch, to be counted with others. Return True if `count` has to be called in a while."""
        self._batch_rows.observe(len(scored.logits))
        if scored.rejected:
            self._rejected.inc(len(scored.rejected))
        if scored.encoded is None:
            return False
        if self._noted and self._noted[0][0] is not predictor:
            self.count()
        self._noted.append((predictor, scored.encoded, scored.logits))
        self._num_noted += len(scored.logits)
        if self._num_noted > NOTED_ROWS:
            self.count()
        return len(self._noted) == 1

    def count(self) -> None:
        """Count the scores and the drift of what was noted."""
        noted, self._noted, self._num_noted = self._noted, [], 0
        if not noted:
            return
        predictor = noted[0][0]
        logits = np.concatenate([logits for *_, logits in noted])
        counts = count_scores(logits)
        for number in np.flatnonzero(counts):
            self._bins[number].inc(int(counts[number]))
        if predictor is not self._predictor:
            before = self._held_out
            if before is not None:  # the model may lack its fields, and a gauge of several processes cannot be removed
                for gauge, names in ((self._psi, before.names), (self._unseen, before.names[: len(before.values)])):
                    for name in names:
                        gauge.labels(name).set(0)
            self._predictor = predictor
            self._held_out = held_out_rows(predictor)
            self._windows = [Distribution(predictor.schema)]
        if self._windows[-1].num_rows >= WINDOW_ROWS:
            self._windows = [self._windows[-1], Distribution(predictor.schema)]
        ids, numeric = (np.concatenate([getattr(rows, name) for _, rows, _ in noted]) for name in ("ids", "numeric"))
        self._windows[-1].add(ids, numeric, logits)

    def _drift(self) -> dict[str, Any] | None:
        """Return the drift of the last rows of this process, or None if the bundle has no counts of held-out rows."""
        self.count()
        if self._held_out is None or self._predictor is None:
            return None
        served = Distribution(self._predictor.schema)
        for name in ("scores", "values", "numbers"):
            setattr(served, name, sum(getattr(window, name) for window in self._windows))
        fields = served.drift_from(self._held_out)
        return {"rows": served.num_rows, "scores": self._held_out.scores.tolist(), "fields": fields}

    def metrics(self) -> tuple[bytes, str]:
        """Return what Prometheus reads, and its media type."""
        for field in (self._drift() or {"fields": []})["fields"]:
            self._psi.labels(field["field"]).set(field["psi"])
            if field["unseen"] is not None:
                self._unseen.labels(field["field"]).set(field["unseen"])
        return generate_latest(self._collected()), CONTENT_TYPE_LATEST

    def _collected(self) -> CollectorRegistry:
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return registry

    def status(self) -> dict[str, Any]:
        """Return the metrics for the page: [name, labels, value] of each."""
        drift = self._drift()
        samples = [
            [sample.name.removeprefix("wide_deep_"), sample.labels, sample.value]
            for metric in self._collected().collect()
            for sample in metric.samples
            if not sample.name.endswith("_created")
        ]
        return {"samples": samples, "drift": drift, "recent": self.recent.series()}


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id of a request: its x-request-id, the trace's of its traceparent, or a new one if neither is right.

    An id has up to 128 letters, digits and ._:/+=@~- so that it can stand in any log.
    """
    values = dict(headers)
    if (client_id := values.get(b"x-request-id")) and _ID.fullmatch(client_id):
        return client_id.decode()
    parent = values.get(b"traceparent")
    trace = _TRACE.fullmatch(parent) if parent else None
    return trace[1].decode() if trace else f"{random.getrandbits(128):032x}"


def log_request(number: str, method: str, route: str, status: int, rows: int | None, seconds: float) -> None:
    """Write a line. `rows` is the number of those that were scored.

    In one write, so that lines of several processes are whole. A reader that has gone costs no client an answer.
    """
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": number,
        "method": method,
        "route": route,
        "status": status,
        "rows": rows,
        "milliseconds": round(seconds * 1e3, 3),
    }
    with suppress(OSError):
        os.write(_STANDARD_OUTPUT, msgspec.json.encode(line) + b"\n")
