"""When a run is saved, the saving itself, and what becomes of a save that failed."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from pathlib import Path

import numpy as np

from app.checkpoint.background import CheckpointWriter, Writing
from app.checkpoint.manifest import Manifest, ParentRecord
from app.checkpoint.read import Checkpoint
from app.config.config import Config
from app.distributed.process_group import ProcessGroup, first_error, is_together
from app.evaluation.metrics import Metrics, defined
from app.evaluation.selection import Selection
from app.run.folder import RunFolder
from app.run.identity import data_identity
from app.tables.interface import Snapshot
from app.tables.statistics import merged, table_statistics
from app.training.assemble import Parts
from app.training.progress import Position
from app.training.stopping import StopRequest
from common import settings
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)


class NotSavedError(Exception):
    """The training ended, and its last state could not be written."""


class Saver:
    """Writes a run's checkpoints and knows which of its steps the newest one has.

    A write error costs that checkpoint alone: it is said, and the training goes on.
    """

    def __init__(
        self,
        config: Config,
        dataset: Path,
        schema: Schema,
        run: RunFolder,
        parts: Parts,
        selection: Selection,
        stop: StopRequest,
        group: ProcessGroup,
    ) -> None:
        self._group = group
        self.saved: Position | None = None  # where the newest checkpoint stands that is written, or on its way
        self._config = config
        self._dataset = dataset
        self._schema = schema
        self._run = run
        self._parts = parts
        self._selection = selection
        self._stop = stop
        self._writer = CheckpointWriter(run.checkpoints, config.checkpoint, config.eval.metric, group)
        self._on_its_way: tuple[Writing, Position, Position | None] | None = None  # with its position and that before
        self._longest_save = 0.0
        self._due_at = self._next_timed_save()

    def restore(self, checkpoint: Checkpoint) -> Position:
        """Take over the state of a checkpoint, and return where it stands.

        Raises ValueError where it is damaged or does not fit.
        """
        path, manifest = checkpoint.path, checkpoint.manifest
        self._group.call_servers("load", checkpoint)
        self._parts.restore(checkpoint)
        self._selection.load_state(manifest.selection)
        self._writer.go_on_from(checkpoint)
        self.saved = Position(manifest.step, manifest.epoch, manifest.epoch_step)
        log.info("going on from %s: epoch %d, step %d of it", path, manifest.epoch, manifest.epoch_step + 1)
        return dataclasses.replace(self.saved)

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after `step` steps, in the middle of an epoch."""
        if self._on_its_way is not None and self._on_its_way[0].is_done():
            self._settle()
        every = self._config.checkpoint.every_steps
        return bool(every and step % every == 0) or bool(self._group.agree(time.monotonic() >= self._due_at))

    def save(self, position: Position, metrics: Metrics | None) -> None:
        """Save, or say that it failed: the next save may work again, and a step's work is not thrown away for it.

        With `checkpoint.background` this returns when the state is safe from the next steps. One that is still on its
        way is waited for.
        """
        self._settle()
        in_background = self._config.checkpoint.background and self._writer.can_write_aside
        self._begin(position, metrics, in_background)
        if not in_background:
            self._settle()

    def finish(self, position: Position, metrics: Metrics | None) -> None:
        """Save what is not saved yet; once more where that failed before.

        Raises NotSavedError where it fails again.
        """
        self._settle()
        if self.saved != position:
            self._begin(position, metrics, in_background=False)
            self._settle()
        if self.saved != position:
            raise NotSavedError(
                f"step {position.step} is in no checkpoint; make room, and the same command goes on from "
                f"{f'step {self.saved.step}' if self.saved else 'the start'}"
            )

    def close(self) -> None:
        """Wait for what is on its way, and end the thread; to be called however the training ends."""
        try:
            self._settle()
        finally:
            self._writer.close()

    def _begin(self, position: Position, metrics: Metrics | None, in_background: bool) -> None:
        start = time.perf_counter()
        self._due_at = self._next_timed_save()
        try:
            parent = self._writer.parent_for(position.step)
            dense, snapshot = self._snapshot(position, changed_only=parent is not None)
        except (OSError, MemoryError) as error:
            self._note_failed(position, error)
            return
        self._run.sync_logs()
        writing = self._writer.start(dense, snapshot, self._manifest(position, metrics, parent), in_background)
        self._on_its_way = writing, dataclasses.replace(position), self.saved
        self.saved = dataclasses.replace(position)
        log.debug("the training stood for %.2f s", time.perf_counter() - start)

    def _snapshot(self, position: Position, changed_only: bool) -> tuple[dict[str, np.ndarray], Snapshot]:
        """What a checkpoint is to hold, as it is now; the sizes of a full one are logged.

        Raises MemoryError, on all ranks, where one has none for its rows.
        """
        snapshot: Snapshot | None = None
        own: dict[str, float] = {}
        error: Exception | None = None
        try:
            snapshot = self._parts.snapshot_rows(changed_only)
            if not changed_only:  # the changed rows alone would not tell
                own = table_statistics(snapshot.tables, self._schema.vocabulary_size)
        except MemoryError as raised:
            error = raised
        try:
            if (failed := first_error(self._group, error)) is not None:
                raise failed from error
            assert snapshot is not None
            if not changed_only:
                sizes = merged([*self._group.gather(own), *self._group.call_servers("statistics")])
                self._run.append_metrics(step=position.step, epoch=position.last_epoch, **sizes)
            return self._parts.dense_to_save(), snapshot
        except BaseException:
            if snapshot is not None:
                snapshot.release(saved=False)
            raise

    def _note_failed(self, position: Position, error: Exception) -> None:
        """Say that a save failed; an error of this rank alone is raised, and ends the job: the others wait for it."""
        if self._group.size > 1 and not is_together(error):
            raise error
        self._run.note_failed_save(position.step, error)

    def _settle(self) -> None:
        """Wait for the checkpoint that is on its way, and say what became of it."""
        if self._on_its_way is None:
            return
        (writing, position, before), self._on_its_way = self._on_its_way, None
        try:
            written = writing.result()
        except (OSError, MemoryError) as error:
            self._note_failed(position, error)
            self.saved = before
            return
        if written.tidy_error is not None:
            self._run.note_failed_save(position.step, written.tidy_error)
        self._longest_save = max(self._longest_save, written.seconds)
        # At the end one may be on its way, and the last one comes after it.
        self._stop.note_save(self._longest_save * (2 if self._config.checkpoint.background else 1))
        kind = "the changes" if written.manifest.parent else "all"
        log.info("saved %s (%s) in %.1f s", written.path, kind, written.seconds)

    def _manifest(self, position: Position, metrics: Metrics | None, parent: ParentRecord | None) -> Manifest:
        return Manifest(
            step=position.step,
            epoch=position.epoch,
            epoch_step=position.epoch_step,
            config=settings.as_dict(self._config),
            dataset=str(self._dataset.resolve()),
            data=data_identity(self._schema),
            metrics=defined(metrics) if metrics else {},
            selection=self._selection.state(),
            schedules=self._parts.learning_rates.state(),
            parent=parent,
        )

    def _next_timed_save(self) -> float:
        return time.monotonic() + (60 * self._config.checkpoint.every_minutes or math.inf)
