"""Manage a run's checkpoints: when and in which thread they are written, which are kept, and how a failed save is
handled.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.checkpoint.manifest import Manifest, ManifestReader, ParentRecord, Position
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import open_if_whole, remove_old
from app.checkpoint.write import ModelState, write_checkpoint
from app.distributed.process_group import first_error, is_collective
from app.evaluation.metrics import Metrics, defined
from app.evaluation.selection import Selection
from app.run.identity import data_identity
from app.tables.interface import Snapshot, TableSnapshot
from app.training.assemble import TrainingState
from app.training.auto.memory import BACKGROUND_SHARE, SAMPLED_VALUES
from app.training.context import RunContext
from common import settings
from common.arrays.disk import Progress, no_progress

log = logging.getLogger(__name__)

# Function that returns the arrays with which a checkpoint records when rows were last updated and which values have
# expired. Its argument is True if the checkpoint is a delta, which holds changes only.
ExpiryArrays = Callable[[bool], Mapping[str, np.ndarray]]

# With checkpoint.delta, every tenth checkpoint holds all rows, and the other nine (deltas) hold changed rows only.
FULL_EVERY = 10


class NotSavedError(Exception):
    """Raised at the end of a training whose last state could not be saved, so that its last steps are lost."""


class Throttle:
    """A callback, called while a checkpoint is written, that slows its thread down: it sleeps so that the thread works
    only a `share` of the time.

    Once the event `hurried` is set, it does not sleep any more.
    """

    def __init__(self, share: float, hurried: threading.Event) -> None:
        self.slept_seconds = 0.0
        self._rest_over_work = 1 / share - 1
        self._hurried = hurried
        # The thread's CPU time in seconds at the end of the last call of this object, None before the first. CPU time
        # does not grow while the thread waits.
        self._worked_until: float | None = None

    def __call__(self, _: int) -> None:
        """Sleep in proportion to the CPU time that the thread has used since the last call."""
        if self._worked_until is not None and not self._hurried.is_set():
            start = time.perf_counter()
            self._hurried.wait((time.thread_time() - self._worked_until) * self._rest_over_work)
            self.slept_seconds += time.perf_counter() - start
        self._worked_until = time.thread_time()


@dataclass(frozen=True)
class Written:
    """The result of a successful save: the new checkpoint and how long writing took. `tidy_error` is the error if older
    checkpoints could not be removed.
    """

    checkpoint: Checkpoint
    seconds: float  # Duration of the save without the time that `Throttle` slept.
    tidy_error: OSError | ValueError | None


@dataclass(frozen=True)
class Writing:
    """A checkpoint that the background thread is writing. Once the event `awaited` is set, because training waits, the
    thread no longer slows itself down.
    """

    future: Future[Written]
    awaited: threading.Event
    position: Position
    saved_before: Position | None


class CheckpointManager:
    """Writes a run's checkpoints, one at a time in a thread, and removes those that the settings do not keep.

    A failed write loses only that checkpoint: it is logged, and training continues. `saved` is the position (step and
    epoch) of the newest checkpoint that is written or being written.
    """

    def __init__(self, context: RunContext, training: TrainingState, selection: Selection) -> None:
        self.saved: Position | None = None
        # A run that trains online, on a growing log, assigns new values to the next four attributes. The next manifest
        # records the first three. `online` says which parts of the log the run has trained on.
        self.online: dict[str, Any] = {}
        self.schema, self.dataset = context.schema, context.dataset
        self.expiry: ExpiryArrays | None = None
        # If True, the next checkpoint holds all rows, not only the changed ones (a delta). An online run sets it.
        self.wants_full = False
        self.full_every = FULL_EVERY
        self._context = context
        self._run, self._group = context.run, context.group
        self._options = context.config.checkpoint
        self._training = training
        self._selection = selection
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Writing | None = None
        # The newest checkpoint that was written completely or resumed from. If the next one is a delta, it holds only
        # the rows that changed since this checkpoint, and names it as its parent.
        self.newest: Checkpoint | None = None
        self._read_manifest = ManifestReader()
        self._longest_save = 0.0
        self._due_at = self._next_timed_save()

    def restore(self, checkpoint: Checkpoint) -> Position:
        """Load a checkpoint into the tables and the model on all ranks, and return the position (step and epoch) at
        which training continues.

        Raise ValueError if the checkpoint is damaged or does not fit the run.
        """
        self._group.rpc("load", checkpoint)
        self._training.restore(checkpoint)
        self._selection.load_state(checkpoint.manifest.selection)
        self.newest = checkpoint
        self.saved = position = checkpoint.manifest.position
        log.info("resuming from %s: epoch %d, step %d of it", checkpoint.path, position.epoch, position.epoch_step + 1)
        return position

    def is_due(self, step: int) -> bool:
        """Return True if, by the settings for the steps or the minutes between checkpoints, one should be written after
        step `step` within an epoch.
        """
        if self._writing is not None and self._writing.future.done():
            self._settle()
        every = self._options.every_steps
        return bool(every and step % every == 0) or bool(self._group.all_reduce_max(time.monotonic() >= self._due_at))

    def save(self, position: Position, metrics: Metrics | None, wait: bool = False) -> None:
        """Write a checkpoint of the present state. `metrics` are the metrics of this state on the split valid if the
        state was evaluated.

        An error is logged and not raised, because the next save may succeed. If the previous checkpoint is still being
        written, wait for it first. With `checkpoint.background` and without `wait`, the method returns before the
        checkpoint is written, as soon as later steps cannot change what is saved.
        """
        self._settle()
        start = time.perf_counter()
        self._due_at = self._next_timed_save()
        try:
            parent = self._group.on_rank0(lambda: self._parent_for(position.step))
            dense, snapshot = self._snapshot(position, changed_only=parent is not None)
        except (OSError, MemoryError) as error:
            self._note_failed(position, error)
            return
        self._run.sync_logs()
        # Several ranks write a checkpoint together, which needs messages between them, so they cannot train meanwhile.
        in_background = self._options.background and not self._group.sharded and not wait
        progress = Throttle(BACKGROUND_SHARE, snapshot.awaited) if in_background else no_progress
        manifest = self._manifest(position, metrics, parent)
        state = ModelState(dense, snapshot.tables, self.expiry(parent is not None) if self.expiry else {})
        future = self._thread.submit(self._write, state, snapshot, manifest, progress)
        self._writing = Writing(future, snapshot.awaited, position, self.saved)
        self.saved = position
        if not in_background:
            self._settle()
        log.debug("the training stood for %.2f s", time.perf_counter() - start)

    def finish(self, position: Position, metrics: Metrics | None) -> None:
        """Save the state at the end of a training, unless a checkpoint has it already.

        A save of this state in the background that has failed is repeated once. Raise NotSavedError if no checkpoint
        has the state afterwards.
        """
        self._settle()
        if self.saved != position:
            self.save(position, metrics, wait=True)
        if self.saved != position:
            raise NotSavedError(
                f"step {position.step} is in no checkpoint; make room, and the same command resumes from "
                f"{f'step {self.saved.step}' if self.saved else 'the start'}"
            )

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and end the thread.

        Every training must call it at its end, also after an error.
        """
        try:
            self._settle()
        finally:
            self._thread.shutdown()

    def is_full(self, step: int) -> bool:
        """Return True if a checkpoint at `step` would hold all rows, and False if it would hold only changed rows (a
        delta).

        Call this method only in a job of one process.
        """
        return self._parent_for(step) is None

    def _parent_for(self, step: int) -> ParentRecord | None:
        """Return the checkpoint on which one at `step` builds (its parent) if it should be a delta, which holds only
        rows changed since. Return None if it should be a full checkpoint.

        Only rank 0 may call this method, because a shared file system may show new files to other ranks later.
        """
        options, newest = self._options, self.newest
        if self.wants_full or not options.delta or newest is None or newest.manifest.step >= step:
            return None
        if len(newest.older) + 1 >= self.full_every:
            return None
        if isinstance(open_if_whole(newest.path, self._read_manifest), str):
            return None
        return ParentRecord(step=newest.manifest.step, id=newest.manifest.id)

    def _snapshot(self, position: Position, changed_only: bool) -> tuple[dict[str, np.ndarray], Snapshot]:
        """Return copies of the dense arrays, and a read-only view of the table rows as they are now (a snapshot).

        For a full checkpoint, also write the statistics of the tables to metrics.jsonl. Raise MemoryError on all ranks
        if one rank lacks memory for the snapshot.
        """
        snapshot: Snapshot | None = None
        statistics: dict[str, float] = {}
        error: Exception | None = None
        try:
            snapshot = self._training.snapshot_rows(changed_only)
            # The statistics describe all updated rows, and a delta checkpoint holds only some of them.
            if not changed_only:
                statistics = table_statistics(snapshot.tables, self.schema.vocabulary_size)
        except MemoryError as raised:
            error = raised
        try:
            if (failed := first_error(self._group, error)) is not None:
                raise failed from error
            assert snapshot is not None
            if not changed_only:
                sizes = merged_statistics([*self._group.gather(statistics), *self._group.rpc("statistics")])
                self._run.append_metrics(step=position.step, epoch=position.last_epoch, **sizes)
            return self._training.dense_values(), snapshot
        except BaseException:
            if snapshot is not None:
                snapshot.release(saved=False)
            raise

    def _manifest(self, position: Position, metrics: Metrics | None, parent: ParentRecord | None) -> Manifest:
        return Manifest(
            step=position.step,
            epoch=position.epoch,
            epoch_step=position.epoch_step,
            config=settings.as_dict(self._context.config),
            dataset=str(self.dataset.resolve()),
            data=data_identity(self.schema),
            metrics=defined(metrics) if metrics else {},
            selection=self._selection.state(),
            schedules=self._training.learning_rates.state(),
            parent=parent,
            online=self.online,
        )

    def _write(self, state: ModelState, snapshot: Snapshot, manifest: Manifest, progress: Progress) -> Written:
        """Write `state` as a checkpoint, and remove older checkpoints that the settings do not keep. Release `snapshot`
        (the view from which the rows are read), even if writing fails. Return what was written and how long it took.
        The background thread runs this method if there is one.
        """
        start, saved = time.perf_counter(), False
        folder = self._run.checkpoints
        try:
            path = write_checkpoint(folder, state, manifest, self._options.shards, progress, self._group)
            # Servers (ranks that only own rows) have marked their rows as saved by now. If opening the new checkpoint
            # fails, the next delta would lack these rows. So clear `newest` first: without it, the next checkpoint is
            # a full one.
            self.newest = None
            self.newest = written = self._group.on_rank0(lambda: Checkpoint.open(path, self._read_manifest))
            saved, self.wants_full = True, False
        finally:
            snapshot.release(saved)
        tidy_error = self._group.on_rank0(self._tidy)
        slept = progress.slept_seconds if isinstance(progress, Throttle) else 0.0
        return Written(written, time.perf_counter() - start - slept, tidy_error)

    def _tidy(self) -> OSError | ValueError | None:
        """Remove the run's checkpoints that its settings `checkpoint` do not keep. Return the error if that fails,
        otherwise None.
        """
        metric = self._context.config.eval.metric
        try:
            remove_old(self._run.checkpoints, self._options, metric, self._read_manifest)
        except (OSError, ValueError) as error:
            return error
        return None

    def _settle(self) -> None:
        """Wait for the checkpoint that is being written, if any. Log that it was saved, or that the save failed."""
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        writing.awaited.set()
        try:
            written = writing.future.result()
        # Opening a delta that was just written raises ValueError if its parent, the checkpoint that it builds on, was
        # removed meanwhile.
        except (OSError, ValueError, MemoryError) as error:
            self._note_failed(writing.position, error)
            self.saved = writing.saved_before
            return
        if written.tidy_error is not None:
            self._run.note_failed_save(writing.position.step, written.tidy_error)
        self._longest_save = max(self._longest_save, written.seconds)
        # Before the time limit (train.time_limit), reserve time for the last save of the training. If saves run in the
        # background, an earlier save may still be running then, so reserve time for two saves.
        self._context.stop.note_save(self._longest_save * (2 if self._options.background else 1))
        kind = "the changes" if written.checkpoint.older else "all"
        log.info("saved %s (%s) in %.1f s", written.checkpoint.path, kind, written.seconds)

    def _note_failed(self, position: Position, error: Exception) -> None:
        """Log that the checkpoint at `position` (step, epoch) could not be written.

        If the error has occurred only on this rank, raise it. This ends the job, because the other ranks wait for this
        rank.
        """
        if self._group.size > 1 and not is_collective(error):
            raise error
        self._run.note_failed_save(position.step, error)

    def _next_timed_save(self) -> float:
        return time.monotonic() + (60 * self._options.every_minutes or math.inf)


def table_statistics(tables: Mapping[str, TableSnapshot], vocabulary_size: int) -> dict[str, float]:
    """Return the number of touched rows, which were updated or loaded (`touched_rows`), their share of all rows
    (`touched_share`), and for each table the root mean square norm of its touched rows.

    If a table has more than `SAMPLED_VALUES` values, the norm is computed from every k-th row, so that the statistics
    do not make a save take longer.
    """
    touched = max((len(table.row_ids) for table in tables.values()), default=0)
    values: dict[str, float] = {"touched_rows": touched, "touched_share": touched / vocabulary_size}
    for name, table in tables.items():
        every = -(-len(table.row_ids) * table.layout["rows"].width // SAMPLED_VALUES) or 1
        rows = table.read("rows", slice(None, None, every)).astype(np.float64)
        values[f"{name}_row_norm"] = float(np.sqrt(np.square(rows, out=rows).sum() / max(len(rows), 1)))
    return values


def merged_statistics(parts: list[dict[str, float]]) -> dict[str, float]:
    """Combine the results of `table_statistics` that ranks have computed for their shares of the rows. Return the
    statistics of all rows.
    """
    if len(parts) == 1:
        return parts[0]
    total = sum(part["touched_rows"] for part in parts)
    values = {"touched_rows": total, "touched_share": sum(part["touched_share"] for part in parts)}
    for name in sorted({name for part in parts for name in part} - values.keys()):
        squares = sum(part["touched_rows"] * part.get(name, 0.0) ** 2 for part in parts)
        values[name] = float(np.sqrt(squares / max(total, 1)))
    return values
