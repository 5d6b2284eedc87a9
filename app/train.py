"""Training: epochs of steps, with what is logged, measured and saved around them.

Letters: B batch size.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from app import checkpoint
from app.assemble import Parts, assemble
from app.config import Config
from app.dataset import Batch, num_batches, read_batches, training_order
from app.evaluate import measure, one_line
from app.identity import data_identity
from app.manifest import Manifest
from app.metrics import Metrics
from app.prefetch import Prefetcher
from app.progress import Position, Progress
from app.run_folder import RunFolder, checkpoint_folder
from app.stopping import Stopped, StopRequest
from app.tables.interface import UniqueIds
from app.train_step import Losses
from data_prep import settings
from data_prep.schema import Schema

log = logging.getLogger(__name__)


class NotSavedError(Exception):
    """The training ended, and its last state could not be written."""


class Trainer:
    """One run: its parts, its place in the data and its folder."""

    def __init__(
        self, config: Config, backend: str, dataset: Path, schema: Schema, run: RunFolder, stop: StopRequest
    ) -> None:
        self.config = config
        self.dataset = dataset
        self.schema = schema
        self.run = run
        self.stop = stop
        self.parts: Parts = assemble(config, schema, backend)
        self.profile = self.parts.step.profile(run.path / "profile") if config.train.profile else None
        self.position = Position()
        self._saved: Position | None = None  # where the newest checkpoint stands
        self._save_due_at = self._next_timed_save()
        if run.plan.checkpoint is not None:
            self._restore(run.plan.checkpoint)

    def train(self) -> None:
        """All epochs that are left.

        Raises Stopped, the state saved, where a stop was asked for; FloatingPointError, naming the step, where
        something is not finite: nothing of that step is kept; NotSavedError where the last state could not be written.
        """
        metrics = None
        try:
            while self.position.epoch <= self.config.train.epochs:
                metrics = None
                self._train_epoch()
                epoch = self.position.epoch
                metrics = self._evaluate(epoch)
                self.position = Position(self.position.step, epoch + 1, 0)
                self._save(metrics)
        except Stopped:
            self._end(metrics)
            raise
        self._end(metrics)

    def _train_epoch(self) -> None:
        epoch, total = self.position.epoch, num_batches(self.schema, "train", self.config.train.batch_size)
        progress = Progress(
            self.run, epoch, total, self.position.epoch_step, self.config.train.log_every_steps, self.parts.step.seconds
        )
        with Prefetcher(self._prepared_batches()) as batches, progress:
            for batch, unique in batches:
                self.stop.check()
                losses = self._take_step(batch, unique)
                progress.add(self.position, losses, batch.num_rows, batches.waited_seconds)
                if self.profile is not None:
                    self.profile.after_step()
                if self.position.epoch_step < total and self._save_is_due():
                    progress.flush()
                    self._save(None)

    def _prepared_batches(self) -> Iterator[tuple[Batch, UniqueIds]]:
        options = self.config.train
        order = training_order(self.schema, options.seed, self.position.epoch, options.pool_blocks)
        batches = read_batches(
            self.dataset, self.schema, "train", order, options.batch_size, first_batch=self.position.epoch_step
        )
        for batch in batches:
            yield batch, self.parts.step.prepare(batch)

    def _take_step(self, batch: Batch, unique: UniqueIds) -> Losses:
        try:
            losses = self.parts.step(batch, unique)
        except FloatingPointError as error:
            at = f"epoch {self.position.epoch} step {self.position.epoch_step + 1}"
            raise FloatingPointError(f"{at}: not finite: {error}") from error
        self.position.step += 1
        self.position.epoch_step += 1
        return losses

    def _evaluate(self, epoch: int) -> Metrics | None:
        if not self.schema.splits["valid"].rows:
            log.warning("the data has no rows in split 'valid': epoch %d is not evaluated", epoch)
            return None
        step = self.parts.step
        metrics = measure(
            self.dataset, self.schema, "valid", self.config.train.batch_size, step.tables.unique, self._score
        )
        line = one_line("valid", epoch, self.position.step, metrics)
        self.run.append_eval(line)
        self.run.append_metrics(step=self.position.step, epoch=epoch, split="valid", **dataclasses.asdict(metrics))
        log.info(line)
        return metrics

    def _score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        self.stop.check()  # an evaluation is left undone; the next launch does it
        return self.parts.step.score(batch, unique)

    def _save_is_due(self) -> bool:
        every = self.config.checkpoint.every_steps
        return bool(every and self.position.step % every == 0) or time.monotonic() >= self._save_due_at

    def _next_timed_save(self) -> float:
        return time.monotonic() + (60 * self.config.checkpoint.every_minutes or math.inf)

    def _end(self, metrics: Metrics | None) -> None:
        """Save what is not saved yet; once more where that failed before."""
        if self.profile is not None:
            self.profile.finish()
        if self._saved != self.position:
            self._save(metrics)
        if self._saved != self.position:
            raise NotSavedError(
                f"step {self.position.step} is in no checkpoint; make room, and the same command goes on from "
                f"{f'step {self._saved.step}' if self._saved else 'the start'}"
            )

    def _save(self, metrics: Metrics | None) -> None:
        """Save, or say that it failed: the next save may work again, and a step's work is not thrown away for it."""
        start = time.perf_counter()
        try:
            path = self._write_checkpoint(metrics)
        except OSError as error:
            self.run.note_failed_save(self.position.step, error)
            return
        finally:
            self._save_due_at = self._next_timed_save()
        self._saved = dataclasses.replace(self.position)
        seconds = time.perf_counter() - start
        self.stop.note_save(seconds)
        log.info("saved %s in %.1f s", path, seconds)

    def _write_checkpoint(self, metrics: Metrics | None) -> Path:
        folder, options = checkpoint_folder(self.run.path, self.config), self.config.checkpoint
        manifest = Manifest(
            step=self.position.step,
            epoch=self.position.epoch,
            epoch_step=self.position.epoch_step,
            config=settings.as_dict(self.config),
            dataset=str(self.dataset.resolve()),
            data=data_identity(self.schema),
            metrics=dataclasses.asdict(metrics) if metrics and not np.isnan(metrics.auc) else {},
        )
        path = checkpoint.save(folder, self.parts.state(), manifest, options.shards)
        checkpoint.remove_old(folder, options.keep_last, options.keep_best)
        return path

    def _restore(self, path: Path) -> None:
        manifest, state = checkpoint.load(path)
        self.parts.load_state(state, manifest.step)
        self.position = Position(manifest.step, manifest.epoch, manifest.epoch_step)
        self._saved = dataclasses.replace(self.position)
        log.info("going on from %s: epoch %d, step %d of it", path, manifest.epoch, manifest.epoch_step + 1)
