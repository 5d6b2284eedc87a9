"""Training: epochs of steps, with what is logged, measured and saved around them.

Letters: B batch size.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from app.batches import Batch, Prefetcher, num_batches, read_batches, training_order
from app.checkpoint.manifest import Position
from app.config.config import Config
from app.distributed.process_group import ProcessGroup, SingleProcess, shows_progress
from app.evaluation.evaluate import measure
from app.evaluation.metrics import Metrics, merit
from app.evaluation.results import Measurement, content_of
from app.evaluation.selection import Selection
from app.evaluation.text import one_line
from app.run.folder import RunFolder
from app.run.logs import PROFILE_FOLDER
from app.tables.interface import UniqueIds
from app.training.assemble import Parts, assemble
from app.training.progress import Progress
from app.training.saving import CheckpointManager
from app.training.step.profile import KernelProfile
from app.training.step.step import Losses
from app.training.stopping import Stopped, StopRequest
from app.training.warm_start.dense import warm_start
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)


class Trainer:
    """One run: its parts, its place in the data and its folder."""

    def __init__(
        self,
        config: Config,
        backend: str,
        dataset: Path,
        schema: Schema,
        run: RunFolder,
        stop: StopRequest,
        group: ProcessGroup | None = None,
    ) -> None:
        group = group or SingleProcess()
        self.group = group
        self.config = config
        self.dataset = dataset
        self.schema = schema
        self.run = run
        self.stop = stop
        self.parts: Parts = assemble(config, schema, backend, group)
        self.profile = KernelProfile(self.parts.step, run.path / PROFILE_FOLDER) if config.train.profile else None
        self.position = Position()
        self.epoch_steps = num_batches(schema, "train", config.train.batch_size)
        self.selection = Selection(config.eval)
        self.metrics: Metrics | None = None  # of valid at this position, where it was evaluated
        self.checkpoints = CheckpointManager(config, dataset, schema, run, self.parts, self.selection, stop, group)
        if run.plan.checkpoint is not None:
            self.position = self.checkpoints.restore(run.plan.checkpoint)
        elif config.train.init_from:
            warm_start(self.parts, config, schema, dataset, group)

    def train(self) -> None:
        """All epochs that are left.

        Raises Stopped, the state saved, where a stop was asked for; FloatingPointError, naming the step, where
        something is not finite: nothing of that step is kept; NotSavedError where the last state could not be written.
        """
        try:
            self._train_epochs()
        finally:
            self.checkpoints.close()

    def _train_epochs(self) -> None:
        try:
            if self.config.train.init_from and self.position.step == 0:
                self._evaluate_start()
            while self.position.epoch <= self.config.train.epochs and not self.selection.is_over:
                self._train_epoch()
                if not self.selection.is_over:
                    self._end_epoch()
        except Stopped:
            self._end()
            raise
        if self.selection.is_over:
            log.info("stopped early: %s", self.selection.reason)
            self.run.append_metrics(step=self.position.step, stopped_early=self.selection.reason)
        self._end()

    def _train_epoch(self) -> None:
        log_every, seconds = self.config.train.log_every_steps, self.parts.step.seconds
        epoch, done = self.position.epoch, self.position.epoch_step
        rates = self.parts.learning_rates
        progress = Progress(self.run, epoch, self.epoch_steps, done, log_every, seconds, rates)
        with Prefetcher(self._prepared_batches()) as batches, progress:
            self._between_steps(progress)  # an evaluation that a stop left undone
            for batch, unique in batches:
                if self.selection.is_over:
                    return
                self.stop.check()
                losses = self._take_step(batch, unique)
                progress.add(self.position, losses, batch.num_rows, batches.waited_seconds)
                if self.profile is not None:
                    self.profile.after_step()
                self._between_steps(progress)

    def _between_steps(self, progress: Progress) -> None:
        """In the middle of an epoch: evaluate where it is due; save what is due, and the best model so far."""
        if not 0 < self.position.epoch_step < self.epoch_steps:
            return
        is_best = False
        if self._evaluation_is_due():
            with progress.paused():
                is_best = self._evaluate()
        save_best = is_best and self.config.checkpoint.keep_best > 0  # it is gone after the next step
        if save_best or (self.checkpoints.saved != self.position and self.checkpoints.is_due(self.position.step)):
            with progress.paused():
                self.checkpoints.save(self.position, self.metrics)

    def _evaluation_is_due(self) -> bool:
        every, step = self.config.eval.every_steps, self.position.step
        return every > 0 and step % every == 0 and step != self.selection.last_step

    def _end_epoch(self) -> None:
        self._evaluate()
        self.position = Position(self.position.step, self.position.epoch + 1, 0)
        self.checkpoints.save(self.position, self.metrics)

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
        self.position = self.position.after_step()
        self.metrics = None
        return losses

    def _evaluate_start(self) -> None:
        """Evaluate what a warm start took, before the first step: no model of this run, so nothing is decided by it."""
        if self.schema.splits["valid"].rows:
            measured = self._measure()
            log.info("before the first step: %s", self._log_evaluation(measured.metrics, epoch=0))

    def _measure(self) -> Measurement:
        options, prepare = self.config, self.parts.step.prepare
        batch_size, group_field = options.train.batch_size, options.eval.group_field
        return measure(
            self.dataset, self.schema, "valid", batch_size, prepare, self._score, group_field, shows_progress()
        )

    def _log_evaluation(self, metrics: Metrics, epoch: int) -> str:
        """Add a line to eval.log and to metrics.jsonl; returns the former."""
        line = one_line("valid", epoch, self.position.step, metrics)
        self.run.append_eval(line)
        self.run.append_metrics(step=self.position.step, epoch=epoch, split="valid", **dataclasses.asdict(metrics))
        return line

    def _evaluate(self) -> bool:
        """Judge the model on `valid`, which changes nothing of it; whether it is the best so far."""
        step, epoch = self.position.step, self.position.epoch
        if not self.schema.splits["valid"].rows:
            log.warning("the data has no rows in split 'valid': epoch %d is not evaluated", epoch)
            return False
        measured = self._measure()
        self.metrics = measured.metrics
        line = self._log_evaluation(self.metrics, epoch)
        self.run.write_evaluation(content_of("valid", step, epoch, measured))
        log.info(line)
        is_best = self.selection.update(self.metrics, step)
        metric = self.config.eval.metric
        value = merit(metric, dataclasses.asdict(self.metrics)[metric])
        for fall in self.parts.learning_rates.after_evaluation(metric, value, step):
            log.info("step %d: %s", step, fall)
            self.group.call_servers("learning_rates", self.parts.learning_rates.state())
        return is_best

    def _score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        self.stop.check()  # an evaluation is left undone; the next launch does it
        return self.parts.step.score(batch, unique)

    def _end(self) -> None:
        if self.profile is not None:
            self.profile.finish()
        self.checkpoints.finish(self.position, self.metrics)
