"""A model judged on one split of a prepared folder: every row, in bounded memory."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from app.config import Config
from app.dataset import Batch, check_files, num_batches, read_batches, written_order
from app.identity import check_same_inputs
from app.manifest import MANIFEST, read_manifest
from app.metrics import Metrics, MetricStream
from app.prefetch import Prefetcher
from app.tables.interface import UniqueIds
from data_prep import settings
from data_prep.schema import Schema, read_schema, row_numbers_file
from data_prep.truth import Best, best_possible

log = logging.getLogger(__name__)

Unique = Callable[[np.ndarray], UniqueIds]
Score = Callable[[Batch, UniqueIds], np.ndarray]


@dataclass(frozen=True)
class Evaluation:
    """What `make eval` prints: the checkpoint judged, its metrics and, on a synthetic log, the best possible."""

    checkpoint: Path
    step: int
    epoch: int
    split: str
    metrics: Metrics
    best: Best | None


def measure(folder: Path, schema: Schema, split: str, batch_size: int, unique: Unique, score: Score) -> Metrics:
    """The metrics of all rows of a split.

    Raises ValueError for a split without rows, FloatingPointError for a logit that is not finite.
    """
    if split not in schema.splits or not schema.splits[split].rows:
        filled = ", ".join(name for name, content in schema.splits.items() if content.rows)
        raise ValueError(f"{folder} has no rows in split {split!r}; the splits with rows: {filled or 'none'}")

    def prepared() -> Iterator[tuple[Batch, UniqueIds]]:
        for batch in read_batches(folder, schema, split, written_order(schema, split), batch_size):
            yield batch, unique(batch.ids)

    stream = MetricStream()
    total = num_batches(schema, split, batch_size)
    with (
        Prefetcher(prepared()) as batches,
        tqdm(total=total, desc=f"evaluate {split}", unit="batch", leave=False, mininterval=1.0) as bar,
    ):
        for batch, ids in batches:
            stream.add(score(batch, ids), batch.labels)
            bar.update()
    return stream.result()


def evaluate_checkpoint(path: Path, split: str, dataset: Path | None, config: Config | None = None) -> Evaluation:
    """Judge one checkpoint by what lies in its folder; `dataset` where the prepared folder has moved.

    Raises ValueError where checkpoint and data do not belong together.
    """
    from app.assemble import load_for_scoring

    manifest = read_manifest(path)
    folder = dataset or Path(manifest.dataset)
    schema = read_schema(folder)
    check_files(folder, schema)
    check_same_inputs(manifest, schema, folder)
    config = config or saved_config(path)
    batch_size = config.eval.batch_size or config.train.batch_size
    scorer = load_for_scoring(path, config, schema, batch_size)
    metrics = measure(folder, schema, split, batch_size, scorer.tables.unique, scorer)
    return Evaluation(path, manifest.step, manifest.last_epoch, split, metrics, best_on(folder, schema, split))


def saved_config(path: Path) -> Config:
    """The settings of the run that wrote a checkpoint."""
    return settings.merge(Config(), read_manifest(path).config, where=str(path / MANIFEST))


def best_on(folder: Path, schema: Schema, split: str) -> Best | None:
    """The best that any model can do on these rows, where the log is synthetic and its truth is still there."""
    truth, rows = schema.source.get("truth"), folder / row_numbers_file(split)
    if not truth or not Path(truth).is_file() or not rows.is_file():
        return None
    return best_possible(Path(truth), np.load(rows))


def describe(evaluation: Evaluation) -> str:
    """The evaluation as the lines a user reads."""
    metrics = evaluation.metrics
    lines = [
        f"{evaluation.split}: {metrics.rows:,} rows, click rate {metrics.click_rate:.4f}, "
        f"checkpoint {evaluation.checkpoint} (step {evaluation.step})",
        f"  AUC                 {metrics.auc:.6f}{_beside(evaluation.best, 'auc')}",
        f"  log loss            {metrics.log_loss:.6f}{_beside(evaluation.best, 'log_loss')}",
        f"  normalized entropy  {metrics.normalized_entropy:.6f}",
        f"  calibration         {metrics.calibration:.6f}   (mean prediction / mean label)",
        f"  PR-AUC              {metrics.pr_auc:.6f}",
    ]
    if np.isnan(metrics.auc):
        lines.append("  (AUC and PR-AUC are undefined: the rows have one class only)")
    return "\n".join(lines)


def one_line(split: str, epoch: int, step: int, metrics: Metrics) -> str:
    """The evaluation as a line of eval.log."""
    values = dataclasses.asdict(metrics)
    names = ("auc", "log_loss", "normalized_entropy", "calibration", "pr_auc")
    return f"epoch: {epoch} step: {step} split: {split} rows: {metrics.rows}, " + ", ".join(
        f"{name} is {values[name]:.6f}" for name in names
    )


def _beside(best: Best | None, name: str) -> str:
    return "" if best is None else f"   (best possible {getattr(best, name):.6f})"
