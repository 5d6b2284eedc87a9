"""Counts of requests, rows and scores for Prometheus and the page, and the drift of the rows from the held-out rows."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

from app.scoring.bundle_model import Scored
from app.scoring.distribution import SCORE_BINS, Distribution
from app.scoring.predictor import Predictor
from app.serving.generations import Generations
from data_prep.encoding.encoder import Examples

SECONDS = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)
NOTED_ROWS = 1024
WINDOW_ROWS = 100_000  # of drift: the last one to two times as many rows


class Observed:
    """The metrics of one process, for its event loop. Those of several processes are summed when they are read."""

    def __init__(self, is_restart: bool = False) -> None:
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

    def model(self, generations: Generations, is_ready: bool) -> None:
        """Note what is served and what is not. The thread that watches calls this."""
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
        found = self._by_route.get((route, status))
        if found is None:
            found = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._by_route[route, status] = found
        found[0].inc()
        found[1].observe(seconds)
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
        bins = (SCORE_BINS / (1 + np.exp(-logits))).astype(np.int64).clip(0, SCORE_BINS - 1)
        counts = np.bincount(bins, minlength=SCORE_BINS)
        for number in np.flatnonzero(counts):
            self._bins[number].inc(int(counts[number]))
        if predictor is not self._predictor:
            before = self._held_out
            if before is not None:  # the model may lack its fields, and a gauge of several processes cannot be removed
                for gauge, names in ((self._psi, before.names), (self._unseen, before.names[: len(before.values)])):
                    for name in names:
                        gauge.labels(name).set(0)
            self._predictor = predictor
            self._held_out = predictor.held_out
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
        return {"samples": samples, "drift": drift}
