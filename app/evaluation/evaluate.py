"""A model judged on one split of a prepared folder: every row, in bounded memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from app.batches import Batch, Prefetcher, check_files, num_batches, read_batches, written_order
from app.checkpoint.manifest import MANIFEST, read_manifest
from app.config.config import Config
from app.distributed.process_group import ProcessGroup, shows_progress
from app.evaluation.grouped_auc import GroupedAucStream
from app.evaluation.metrics import Metrics, MetricStream, confidence_intervals
from app.evaluation.results import Groups, Measurement, find_field
from app.evaluation.selection import check_group_field
from app.run.identity import check_same_inputs
from app.run.older import read_config
from app.tables.interface import UniqueIds
from common.console import progress_bar
from data_prep.prepared.schema import Schema, read_schema, row_numbers_file
from data_prep.prepared.truth import Best, best_possible
from data_prep.suspect import check_ids

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
    folder: Path, schema: Schema, split: str, batch_size: int, prepare: Prepare, score: Score, group_field: str = ""
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
            total=total, desc=f"evaluate {split}", unit="batch", leave=False, disable=not shows_progress()
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


def evaluate_checkpoint(
    path: Path,
    split: str,
    dataset: Path | None,
    config: Config | None = None,
    group: ProcessGroup | None = None,
    check: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Judge one checkpoint by what lies in its folder; `dataset` where the prepared folder has moved.

    The ranks of `group` share rows and tables, and each gets the whole result. `check` is called before each batch, and
    may raise. Raises as `check_data`.
    """
    from app.assemble import load_for_scoring

    config = config or saved_config(path)
    folder, schema = check_data(path, split, dataset, config)
    manifest = read_manifest(path)
    batch_size = config.eval.batch_size or config.train.batch_size
    scorer = load_for_scoring(path, config, schema, batch_size, group)

    def score(batch: Batch, ids: UniqueIds) -> np.ndarray:
        check()
        return scorer(batch, ids)

    measured = measure(folder, schema, split, batch_size, scorer.prepare, score, config.eval.group_field)
    best = best_on(folder, schema, split)
    intervals = intervals_of(measured, config)
    return Evaluation(path, manifest.step, manifest.last_epoch, split, measured, intervals, best)


def check_data(path: Path, split: str, dataset: Path | None, config: Config) -> tuple[Path, Schema]:
    """The prepared folder that a checkpoint is judged on, and its schema.

    Raises ValueError where they do not belong together, for a split without rows, and where an earlier release may have
    written wrong ids.
    """
    manifest = read_manifest(path)
    folder = dataset or Path(manifest.dataset)
    schema = read_schema(folder)
    check_ids(schema, folder)
    check_files(folder, schema)
    check_same_inputs(manifest, schema, folder)
    check_group_field(config.eval, schema)
    check_split(folder, schema, split)
    return folder, schema


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


def saved_config(path: Path) -> Config:
    """The settings of the run that wrote a checkpoint."""
    return read_config(read_manifest(path).config, where=str(path / MANIFEST))


def best_on(folder: Path, schema: Schema, split: str) -> Best | None:
    """The best that any model can do on these rows, where the log is synthetic and its truth is still there."""
    truth, rows = schema.source.get("truth"), folder / row_numbers_file(split)
    if not truth or not Path(truth).is_file() or not rows.is_file():
        return None
    return best_possible(Path(truth), np.load(rows))
