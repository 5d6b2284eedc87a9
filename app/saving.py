"""When a run is saved, the saving itself, and what becomes of a save that failed."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from pathlib import Path

from app.assemble import Parts
from app.checkpoint import save
from app.config import Config
from app.identity import data_identity
from app.manifest import Manifest
from app.metrics import Metrics, defined
from app.progress import Position
from app.retention import remove_old
from app.run_folder import RunFolder, checkpoint_folder
from app.selection import Selection
from app.stopping import StopRequest
from app.table_statistics import table_statistics
from data_prep import settings
from data_prep.schema import Schema

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
    ) -> None:
        self.saved: Position | None = None  # where the newest checkpoint stands
        self._config = config
        self._dataset = dataset
        self._schema = schema
        self._run = run
        self._parts = parts
        self._selection = selection
        self._stop = stop
        self._due_at = self._next_timed_save()

    def restore(self, path: Path) -> Position:
        """Take over the state of a checkpoint, and return where it stands.

        Raises ValueError where it is damaged or does not fit.
        """
        manifest = self._parts.restore(path)
        self._selection.load_state(manifest.selection)
        self.saved = Position(manifest.step, manifest.epoch, manifest.epoch_step)
        log.info("going on from %s: epoch %d, step %d of it", path, manifest.epoch, manifest.epoch_step + 1)
        return dataclasses.replace(self.saved)

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after `step` steps, in the middle of an epoch."""
        every = self._config.checkpoint.every_steps
        return bool(every and step % every == 0) or time.monotonic() >= self._due_at

    def save(self, position: Position, metrics: Metrics | None) -> None:
        """Save, or say that it failed: the next save may work again, and a step's work is not thrown away for it."""
        start = time.perf_counter()
        try:
            path = self._write(position, metrics)
        except OSError as error:
            self._run.note_failed_save(position.step, error)
            return
        finally:
            self._due_at = self._next_timed_save()
        self.saved = dataclasses.replace(position)
        seconds = time.perf_counter() - start
        self._stop.note_save(seconds)
        log.info("saved %s in %.1f s", path, seconds)

    def finish(self, position: Position, metrics: Metrics | None) -> None:
        """Save what is not saved yet; once more where that failed before.

        Raises NotSavedError where it fails again.
        """
        if self.saved != position:
            self.save(position, metrics)
        if self.saved != position:
            raise NotSavedError(
                f"step {position.step} is in no checkpoint; make room, and the same command goes on from "
                f"{f'step {self.saved.step}' if self.saved else 'the start'}"
            )

    def _write(self, position: Position, metrics: Metrics | None) -> Path:
        folder, options = checkpoint_folder(self._run.path, self._config), self._config.checkpoint
        manifest = Manifest(
            step=position.step,
            epoch=position.epoch,
            epoch_step=position.epoch_step,
            config=settings.as_dict(self._config),
            dataset=str(self._dataset.resolve()),
            data=data_identity(self._schema),
            metrics=defined(metrics) if metrics else {},
            selection=self._selection.state(),
        )
        state = self._parts.state()
        sizes = table_statistics(state.tables, self._schema.vocabulary_size)
        self._run.append_metrics(step=position.step, epoch=manifest.last_epoch, **sizes)
        path = save(folder, state, manifest, options.shards)
        remove_old(folder, options, self._config.eval.metric)
        return path

    def _next_timed_save(self) -> float:
        return time.monotonic() + (60 * self._config.checkpoint.every_minutes or math.inf)
