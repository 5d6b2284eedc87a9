"""Workload of all contenders of the step benchmarks: one model, one size, the same seeded batches.

Letters: B batch, C categorical fields, N numeric fields, V vocabulary size.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from app.config.config import FirstLayer
from app.config.device import Precision
from benchmarks.harness.contender import Parts
from benchmarks.training.kernels import NUM_FIELDS, power_law_ids
from data_prep.prepared.batches import Batch
from data_prep.prepared.prefetch import Prefetcher
from data_prep.sources.shape import MISSING_RANK, LogShape, draw_fields, load_shape

NUM_NUMERIC = 13
LOG_ROWS, LOG_MIN_COUNT = 5_000_000, 10
# The batches are repeated. Together they are larger than any cache, and after the first round all their rows exist.
NUM_BATCHES = 6


@dataclass(frozen=True)
class Workload:
    """The sizes of a training step of the model zoo's Wide&Deep, which all contenders take.

    Without `fold_numeric` the N numeric fields are looked up like the others.
    """

    batch_size: int = 16_000
    precision: Precision = "float32"
    fold_numeric: bool = True
    vocabulary_size: int = 200_000
    embedding_dim: int = 80
    hidden_widths: tuple[int, ...] = (1024, 512, 256, 128)
    threads: int = len(os.sched_getaffinity(0))
    ids: Literal["power law", "log"] = "power law"
    first_layer: FirstLayer = "direct"


def make_batches(workload: Workload) -> list[Batch]:
    """Return NUM_BATCHES random batches, which depend only on the sizes in `workload`.

    Ids follow a power law that all fields share, or are as in a log. A quarter of the labels is 1.
    """
    rng = np.random.default_rng(0)
    batch_size, num_rows = workload.batch_size, workload.batch_size * NUM_BATCHES
    ids = log_ids(rng, num_rows) if workload.ids == "log" else power_law_ids(rng, workload.vocabulary_size, num_rows)
    numeric = rng.random((num_rows, NUM_NUMERIC), np.float32)
    labels = (rng.random(num_rows) < 0.25).astype(np.float32)
    return [
        Batch(ids[start : start + batch_size], numeric[start : start + batch_size], labels[start : start + batch_size])
        for start in range(0, num_rows, batch_size)
    ]


def log_cuts(shape: LogShape, log_rows: int = LOG_ROWS, min_count: int = LOG_MIN_COUNT) -> list[int]:
    """Return, for each field, the number of its values that are frequent in a synthetic log.

    Those are expected at least `min_count` times in `log_rows` rows. No log is drawn. With 1 M rows and min_count
    10, 7.7 % of a batch's ids are then distinct. A prepared log has 7.6 %.
    """
    frequent = (np.flatnonzero(value.share_of_bin * log_rows >= min_count) for value in shape.values)
    return [int(value.edges[bins[-1] + 1]) for value, bins in zip(shape.values, frequent, strict=True)]


def field_starts(log_rows: int = LOG_ROWS, min_count: int = LOG_MIN_COUNT) -> np.ndarray:
    """Return the first id of each field in the result of `log_ids`, followed by the vocabulary's size, [C + 1]."""
    return np.cumsum([0, *(cut + 2 for cut in log_cuts(load_shape(), log_rows, min_count))])


def log_ids(
    rng: np.random.Generator, num_rows: int, log_rows: int = LOG_ROWS, min_count: int = LOG_MIN_COUNT
) -> np.ndarray:
    """Return random ids as in a log, [B, C] int32.

    The ids of a field begin at its element of `field_starts`: its frequent values, one id for all rarer ones, and one
    for missing cells.
    """
    shape = load_shape()
    _, ranks, _ = draw_fields(shape, rng.random((shape.num_uniforms, num_rows)))
    cuts = np.array(log_cuts(shape, log_rows, min_count))[:, None]
    ids = (
        np.where(ranks == MISSING_RANK, cuts + 1, np.minimum(ranks, cuts))
        + field_starts(log_rows, min_count)[:-1, None]
    )
    return np.ascontiguousarray(ids.T.astype(np.int32))


def distinct_share(workload: Workload) -> float:
    """Return the number of distinct rows divided by the number of ids, both counted for each field of each batch."""
    # Each row of `ids` has the ids of one field in one batch.
    ids = np.concatenate([batch.ids.T for batch in make_batches(workload)])
    return sum(len(np.unique(of_field)) for of_field in ids) / ids.size


class Step(Protocol):
    """A training step in two halves, `prepare` and a call. `seconds` is what each of its parts has taken so far."""

    seconds: dict[str, float]

    def prepare(self, batch: Batch, will_change: bool) -> Any: ...


def steps_on_prefetched_batches(
    step: Step, take: Callable[[Batch, Any], object], workload: Workload
) -> Callable[[int], Parts]:
    """Return a function that takes `count` steps on the batches of a workload, which are repeated endlessly."""
    return steps_on_batches(step, take, itertools.cycle(make_batches(workload)))


def steps_on_batches(
    step: Step, take: Callable[[Batch, Any], object], batches: Iterable[Batch]
) -> Callable[[int], Parts]:
    """Return a function for a contender: it takes `count` steps, and returns the seconds of their parts.

    As in `app.training.loop`, a thread prepares the next batches during the steps. It ends with the process.
    """
    prefetcher = Prefetcher((batch, step.prepare(batch, True)) for batch in batches)
    prepared = iter(prefetcher.__enter__())

    def take_steps(count: int) -> Parts:
        before, waited = dict(step.seconds), prefetcher.waited_seconds
        for _ in range(count):
            take(*next(prepared))
        parts = {name: seconds - before[name] for name, seconds in step.seconds.items()}
        return {**parts, "waiting": prefetcher.waited_seconds - waited}

    return take_steps


def tower_widths(workload: Workload) -> tuple[int, ...]:
    num_looked_up = NUM_FIELDS + (0 if workload.fold_numeric else NUM_NUMERIC)
    return (num_looked_up * workload.embedding_dim, *workload.hidden_widths, 1)
