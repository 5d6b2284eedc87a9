"""A model judged on one split of a prepared folder: every row, in bounded memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from app.batches import Batch, Prefetcher, num_batches, read_batches, written_order
from app.config.config import Config
from app.evaluation.grouped_auc import GroupedAucStream
from app.evaluation.metrics import Metrics, MetricStream, confidence_intervals
from app.evaluation.results import Groups, Measurement, find_field
from app.tables.interface import UniqueIds
from common.console import progress_bar
from data_prep.prepared.schema import Schema, row_numbers_file
from data_prep.prepared.truth import Best, best_possible

log = logging.getLogger(__name__)

Prepare = Callable[[Batch], UniqueIds]

Score = Callable[[Batch, UniqueIds], np.ndarray]


@dataclass(frozen=True)
class Evaluation:
    """What `make eval` prints: the checkpoint judged, its metrics and, on a synthetic log, the best possible."""

    checkpoint: Path
    step: int
    epoch: int
    split: str
    measured: Measurement
    intervals: dict[str, tuple[float, float]]
    best: Best | None

    @property
    def metrics(self) -> Metrics:
        """Those of all rows."""
        return self.measured.metrics


def measure(
    folder: Path,
    schema: Schema,
    split: str,
    batch_size: int,
    prepare: Prepare,
    score: Score,
    group_field: str = "",
    show_progress: bool = False,
) -> Measurement:
    """All rows of a split judged; with `group_field`, also those of each value of that field.

    Raises ValueError for a split without rows, FloatingPointError for a logit that is not finite.
    """
    check_split(folder, schema, split)

    def prepared() -> Iterator[tuple[Batch, UniqueIds]]:
        for batch in read_batches(folder, schema, split, written_order(schema, split), batch_size):
            yield batch, prepare(batch)

    stream, groups = MetricStream(), GroupedAucStream()
    place = find_field(schema, group_field) if group_field else None
    total = num_batches(schema, split, batch_size)
    with (
        Prefetcher(prepared()) as batches,
        progress_bar(
            total=total, desc=f"evaluate {split}", unit="batch", leave=False, disable=not show_progress
        ) as bar,
    ):
        for batch, ids in batches:
            logits = score(batch, ids)
            stream.add(logits, batch.labels)
            if place is not None:
                groups.add(batch.ids[:, place], logits, batch.labels)
            bar.update()
    metrics, bins = stream.result_and_bins()
    if place is None:
        return Measurement(metrics, bins)
    found = Groups.of(groups.result(), group_field, folder, schema)
    return Measurement(replace(metrics, grouped_auc=found.auc.weighted_mean), bins, found)


def check_split(folder: Path, schema: Schema, split: str) -> None:
    """Raise ValueError for a split without rows."""
    if split not in schema.splits or not schema.splits[split].rows:
        filled = ", ".join(name for name, content in schema.splits.items() if content.rows)
        raise ValueError(f"{folder} has no rows in split {split!r}; the splits with rows: {filled or 'none'}")


def intervals_of(measured: Measurement, config: Config) -> dict[str, tuple[float, float]]:
    """95 % confidence intervals by metric; none where `eval.bootstrap` is 0 or the rows have one class."""
    if not config.eval.bootstrap or np.isnan(measured.metrics.auc):
        return {}
    return confidence_intervals(measured.bins, config.eval.bootstrap, config.train.seed)


def best_on(folder: Path, schema: Schema, split: str) -> Best | None:
    """The best that any model can do on these rows, where the log is synthetic and its truth is still there."""
    truth, rows = schema.source.get("truth"), folder / row_numbers_file(split)
    if not truth or not Path(truth).is_file() or not rows.is_file():
        return None
    return best_possible(Path(truth), np.load(rows))
