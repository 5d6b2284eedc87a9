"""Training: epochs of steps, with what is logged, measured and saved around them.

Letters: B batch size.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from app.assemble import Parts, assemble
from app.config import Config
from app.dataset import Batch, num_batches, read_batches, training_order
from app.evaluate import measure, one_line
from app.metrics import Metrics
from app.prefetch import Prefetcher
from app.progress import Position, Progress
from app.run_folder import RunFolder
from app.saving import Saver
from app.stopping import Stopped, StopRequest
from app.tables.interface import UniqueIds
from app.train_step import Losses
from data_prep.schema import Schema

log = logging.getLogger(__name__)


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
        self.saver = Saver(config, dataset, schema, run, self.parts, stop)
        if run.plan.checkpoint is not None:
            self.position = self.saver.restore(run.plan.checkpoint)

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
                self.saver.save(self.position, metrics)
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
                if self.position.epoch_step < total and self.saver.is_due(self.position.step):
                    progress.flush()
                    self.saver.save(self.position, None)

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

    def _end(self, metrics: Metrics | None) -> None:
        if self.profile is not None:
            self.profile.finish()
        self.saver.finish(self.position, metrics)
