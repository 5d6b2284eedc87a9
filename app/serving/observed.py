"""Observe the service: metrics for Prometheus and the page, the access log, and drift (how the scored rows differ from
the rows on which the model was evaluated).

A line of the access log contains nothing that a client has sent, except the request id. The line names the route (such
as /v2/models/{model}) instead of the address, and contains no values of rows.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import platform
import random
import re
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from app.scoring.bundle_model import Scored
from app.scoring.distribution import COUNTS, SCORE_BINS, Distribution, count_scores, held_out_rows
from app.scoring.predictor import Predictor
from app.serving.batching import REFUSED
from app.serving.generations import Generations
from app.serving.options import RECENT_BYTES
from common import RELEASE
from data_prep.prepared.examples import Examples, concatenate

SECONDS = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)
NOTED_ROWS = 1024
# Drift is measured over the most recent rows: over WINDOW_ROWS to 2 · WINDOW_ROWS rows, or over all rows if fewer were
# scored.
WINDOW_ROWS = 100_000
POINTS, POINT_SECONDS = 60, 2  # Number of intervals in the page's charts, and the length of each.
# Number of intervals of POINT_SECONDS for which a worker keeps counts. The counts of a new interval replace those of
# the oldest one. The page shows the POINTS intervals before the current one.
_SLOTS = 64
_REFUSALS = (REFUSED, 503, 504)
ID_HEADER = "x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")
# Pattern of the header traceparent, which W3C's Trace Context defines. Its group 1 is the trace id.
_TRACE = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_STANDARD_OUTPUT = 1


class Recent:
    """Counts of the scored and refused requests of the last two minutes, in memory that all workers share.

    Each worker counts in its own ring buffer, [slots, counts]. A slot belongs to one interval. It holds the interval's
    number, the number of refused requests, and for each bin between two values of SECONDS the number of other requests
    whose time to answer lies in the bin. Any worker can sum over the buffers of all workers.
    """

    def __init__(self, shared: mmap.mmap, worker: int) -> None:
        """Count the requests of the worker with the number `worker`, in its part of the shared memory `shared`, which
        has RECENT_BYTES bytes for each worker.
        """
        counts = np.frombuffer(shared, np.int64).reshape(-1, _SLOTS, RECENT_BYTES // 8 // _SLOTS)
        self._counts = counts[..., : 2 + len(SECONDS) + 1]
        self._counts_here = self._counts[worker]

    def note(self, status: int, seconds: float) -> None:
        """Count a request in the current interval, by its HTTP status and the time that it took."""
        point = int(time.monotonic()) // POINT_SECONDS
        slot = self._counts_here[point % _SLOTS]
        if slot[0] != point:
            slot[:] = 0
            slot[0] = point
        slot[1 if status in _REFUSALS else 2 + bisect_left(SECONDS, seconds)] += 1

    def series(self) -> dict[str, Any]:
        """Return five values by name for the page's charts: the length of an interval in seconds, and for each of the
        last POINTS intervals, oldest first, the answered and the refused requests per second and the median and 99 %
        quantile of the time to answer in milliseconds (None without requests).
        """
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
    """Return the quantile `share` of the time to answer in milliseconds, interpolated within a bin, or None if all
    counts are 0. `counts` holds the number of requests in each bin of SECONDS.
    """
    below = np.concatenate([[0], np.cumsum(counts)])
    if not below[-1]:
        return None
    return float(1e3 * np.interp(share * below[-1], below, (0, *SECONDS, SECONDS[-1])))


class Observed:
    """The metrics of one worker process, updated by its event loop. `metrics` and `status` combine the metrics of all
    workers.
    """

    def __init__(self, is_restart: bool = False, recent: Recent | None = None) -> None:
        self.recent = recent or Recent(mmap.mmap(-1, RECENT_BYTES), 0)
        self._registry = CollectorRegistry()
        # Scored batches that `count` has not counted yet: model, encoded rows and logits. One model has scored all of
        # them.
        self._noted: list[tuple[Predictor, Examples, np.ndarray]] = []
        self._num_noted = 0
        self._requests = self._make(Counter, "requests", "Requests by address and status.", ["route", "status"])
        self._seconds = self._make(Histogram, "request_seconds", "Time to answer.", ["route"], buckets=SECONDS)
        self._failed = self._make(Counter, "failed_request_seconds", "Time to answer with an error.", ["route"])
        self._batch_rows = self._make(Histogram, "batch_rows", "Rows that were scored together.", buckets=ROWS)
        self._last = self._make(Gauge, "last_scored_timestamp_seconds", "Of the last rows.", multiprocess_mode="max")
        self._rejected = self._make(Counter, "rejected_rows", "Rows that are none of the log's.")
        self._scores = self._make(Counter, "scores", "Rows by their score, in twentieths.", ["bin"])
        self._queue = self._make(Gauge, "queue", "Requests that wait.", multiprocess_mode="livesum")
        self._generation = self._make(Gauge, "generation", "Of the model.", multiprocess_mode="livemin")
        self._ready = self._make(Gauge, "ready", "Workers that are ready.", multiprocess_mode="livesum")
        self._pinned = self._make(Gauge, "pinned", "1 if a version is pinned.", multiprocess_mode="livemax")
        self._swaps = self._make(Counter, "swaps", "Models that a worker has swapped to.")
        self._restarts = self._make(Counter, "restarts", "Workers that were started again.")
        self._restarts.inc(is_restart)
        self._num_swaps = 0  # Number of switches to another model that the counter `_swaps` already includes.
        self._num_waiting = 0  # Number of waiting requests that the gauge of waiting requests shows now.
        most = {"multiprocess_mode": "livemax"}
        self._drift_rows = self._make(Gauge, "drift_rows", "Recent rows that the figures of drift are about.", **most)
        # Gauges of drift, by the name of the figure in the result of `Distribution.drift_from`.
        self._drift_gauges = {
            name: self._make(Gauge, name, text, ["field"], **most)
            for name, text in (
                ("psi", "Drift of a field from the held-out rows."),
                ("unseen", "Share of values outside the vocabulary."),
                ("distance", "Mean distance of a vector from the training mean, in standard deviations."),
                ("missing", "Share of rows without a vector."),
            )
        }
        # The gauges of drift that have been set, as pairs (name of the gauge, name of the field).
        self._drift_shown: set[tuple[str, str]] = set()
        self._refused = self._make(Gauge, "refused_bundles", "Bundles of the folder that are refused.", **most)
        text = "Time for which the newest bundle is in the folder and does not serve."
        self._newest_age = self._make(Gauge, "newest_age_seconds", text, **most)
        info = self._make(Gauge, "build_info", "Versions of the service.", ["version", "python", "onnxruntime"], **most)
        info.labels(RELEASE, platform.python_version(), version("onnxruntime")).set(1)
        self._registry.register(_Processes())
        self._bins = [self._scores.labels(str(number)) for number in range(SCORE_BINS)]
        self._predictor: Predictor | None = None
        self._held_out: Distribution | None = None
        # Counts of recently scored rows, from which drift is computed. There are at most two elements. New rows are
        # added to the last one until it has WINDOW_ROWS rows.
        self._windows: list[Distribution] = []
        self._by_route: dict[tuple[str, int], tuple[Any, Any]] = {}

    def _make(self, kind: Any, name: str, text: str, labels: Any = (), **more: Any) -> Any:
        return kind(f"wide_deep_{name}", text, labels, registry=self._registry, **more)

    def model(self, generations: Generations, is_ready: bool, num_waiting: int) -> None:
        """Update the gauges and counters about the served model, bundles that cannot serve, and waiting requests. The
        thread that watches the folder calls this method.
        """
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
        """Count a request that was answered, and update the gauge of waiting requests to `num_waiting`."""
        counters = self._by_route.get((route, status))
        if counters is None:
            counters = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._by_route[route, status] = counters
        counters[0].inc()
        # Leave refused requests out of the histogram of times: a refusal is sent before the body has arrived, or is
        # delayed on purpose.
        if status != REFUSED:
            counters[1].observe(seconds)
            if status >= 400:
                self._failed.labels(route).inc(seconds)
        if num_waiting != self._num_waiting:
            self._note_waiting(num_waiting)

    def _note_waiting(self, num_waiting: int) -> None:
        self._num_waiting = num_waiting
        self._queue.set(num_waiting)

    def batch(self, predictor: Predictor, scored: Scored) -> bool:
        """Record a scored batch, which a later call of `count` counts together with other batches. Return True if no
        other recorded batch waits for this call, so that the caller must schedule the call.
        """
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
        """Add the batches that `batch` has recorded to the counts: their scores to the metrics, and their rows to the
        counts from which drift is computed.
        """
        noted, self._noted, self._num_noted = self._noted, [], 0
        if not noted:
            return
        self._last.set_to_current_time()
        predictor = noted[0][0]
        logits = np.concatenate([logits for *_, logits in noted])
        counts = count_scores(logits)
        for number in np.flatnonzero(counts):
            self._bins[number].inc(int(counts[number]))
        if predictor is not self._predictor:
            # The new model may lack fields of the old model. Set the drift of the old model's fields to 0, because a
            # gauge that several processes share cannot be removed.
            for gauge, field in self._drift_shown:
                self._drift_gauges[gauge].labels(field).set(0)
            self._predictor = predictor
            self._held_out = held_out_rows(predictor)
            self._windows = [Distribution(predictor.schema)]
        if self._windows[-1].num_rows >= WINDOW_ROWS:
            self._windows = [self._windows[-1], Distribution(predictor.schema)]
        # Leave out the rows' weights and keys (hashes of the texts in columns of kind id), because not every format of
        # a request's rows (such as CSV) has them.
        rows = concatenate([replace(rows, weights=None, keys={}) for _, rows, _ in noted])
        self._windows[-1].add(rows, logits)

    def _drift(self) -> dict[str, Any] | None:
        """Return the drift of the rows that this process has scored recently: their number, the score counts of the
        rows on which the model was evaluated (held-out rows), and the drift of each field. Return None if nothing was
        scored or the bundle has no counts of held-out rows.
        """
        self.count()
        if self._held_out is None or self._predictor is None:
            return None
        served = Distribution(self._predictor.schema)
        for name in COUNTS:
            setattr(served, name, sum(getattr(window, name) for window in self._windows))
        fields = served.drift_from(self._held_out)
        return {"rows": served.num_rows, "scores": self._held_out.scores.tolist(), "fields": fields}

    def metrics(self) -> tuple[bytes, str]:
        """Return the metrics of all workers in Prometheus' text format, and its media type."""
        drift = self._drift() or {"rows": 0, "fields": []}
        self._drift_rows.set(drift["rows"])
        for field in drift["fields"]:
            for name in self._drift_gauges:
                if field.get(name) is not None:
                    self._drift_gauges[name].labels(field["field"]).set(field[name])
                    self._drift_shown.add((name, field["field"]))
        return generate_latest(self._collected()), CONTENT_TYPE_LATEST

    def _collected(self) -> CollectorRegistry:
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        registry.register(_Processes())
        return registry

    def status(self) -> dict[str, Any]:
        """Return the content of /v1/status that comes from metrics: `samples` (each metric of all workers as [name,
        labels, value]), `drift` of this worker's rows or None, and `recent` (see `Recent.series`).
        """
        drift = self._drift()
        samples = [
            [sample.name.removeprefix("wide_deep_"), sample.labels, sample.value]
            for metric in self._collected().collect()
            for sample in metric.samples
            if sample.name.startswith("wide_deep_") and not sample.name.endswith("_created")
        ]
        return {"samples": samples, "drift": drift, "recent": self.recent.series()}

    def statistics(self, routes: Collection[str]) -> dict[str, Any]:
        """Return the counts and times of all requests of `routes`, as Triton's statistics extension defines them.

        The service does not measure the parts of the time to answer, so their counts are 0.
        """
        totals: defaultdict[str, float] = defaultdict(float)
        for name, labels, value in self.status()["samples"]:
            if labels.get("route") in {None, *routes}:
                totals[f"{name} 200" if labels.get("status") == "200" else name] += value
        failed = totals["failed_request_seconds_total"]
        return {
            "last_inference": round(1000 * totals["last_scored_timestamp_seconds"]),
            "inference_count": int(totals["batch_rows_sum"]),
            "execution_count": int(totals["batch_rows_count"]),
            "inference_stats": {
                "success": _duration(totals["requests_total 200"], totals["request_seconds_sum"] - failed),
                "fail": _duration(totals["requests_total"], failed),
                **dict.fromkeys(("queue", "compute_input", "compute_infer", "compute_output"), _duration(0, 0)),
            },
            "batch_stats": [],
        }


def _duration(count: float, seconds: float) -> dict[str, int]:
    return {"count": int(count), "ns": round(1e9 * max(0.0, seconds))}


class _Processes(Collector):
    """The metrics process_* that Prometheus defines for every program, over the supervisor and its workers.

    The values of all these processes are summed. Only the start time and the maximum number of files are the values of
    the supervisor alone.
    """

    def collect(self) -> Iterator[Metric]:
        """Yield each metric whose name begins with process_ and that the operating system provides, such as
        process_open_fds, summed over the supervisor and its workers.
        """
        supervisor, pids = multiprocessing.parent_process(), [str(os.getpid())]
        if supervisor is not None:
            children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
            with suppress(OSError):
                pids = [str(supervisor.pid), *children.read_text().split()]
        of_each = [list(ProcessCollector(pid=partial(str, pid), registry=None).collect()) for pid in pids]
        # Leave out empty lists, which belong to processes that have just ended.
        for alike in zip(*filter(None, of_each), strict=False):
            metric, values = alike[0], [each.samples[0].value for each in alike]
            is_whole = metric.name in ("process_start_time_seconds", "process_max_fds")
            metric.samples = [metric.samples[0]._replace(value=values[0] if is_whole else sum(values))]
            yield metric


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id of a request: the header x-request-id, else the trace id in the header traceparent, else a new
    random id. A header that is not valid is ignored.

    A valid x-request-id has 1 to 128 letters, digits or characters of ._:/+=@~- so that it is safe to write into any
    log.
    """
    values = dict(headers)
    if (client_id := values.get(b"x-request-id")) and _ID.fullmatch(client_id):
        return client_id.decode()
    parent = values.get(b"traceparent")
    trace = _TRACE.fullmatch(parent) if parent else None
    return trace[1].decode() if trace else f"{random.getrandbits(128):032x}"


def log_request(number: str, method: str, route: str, status: int, rows: int | None, seconds: float) -> None:
    """Write a line of the access log to standard output, as JSON. `number` is the request id, and `rows` the number of
    scored rows or None.

    The line is written in a single system call, so that lines of several processes do not mix. An error, such as a
    closed pipe, is ignored.
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
