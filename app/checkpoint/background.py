"""One run's checkpoints, written one after the other in a thread: full ones and deltas, and what stays of them."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.checkpoint import write
from app.checkpoint.disk import Progress, ignore
from app.checkpoint.manifest import Manifest, ManifestReader, ParentRecord
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import compact, delta_to_compact, open_if_whole, remove_old
from app.checkpoint.write import ModelState, step_name
from app.config.run import CheckpointOptions
from app.distributed.process_group import MpiGroup, ProcessGroup, SingleProcess
from app.tables.interface import Snapshot

log = logging.getLogger(__name__)

# Of the time of one core. Measured on two cores that both train: docs/results.md.
BACKGROUND_SHARE = 0.25


class Throttle:
    """A `Progress` that sleeps, so that its thread works a share of the time; not any more once `hurried` is set."""

    def __init__(self, share: float, hurried: threading.Event) -> None:
        self.slept_seconds = 0.0
        self._rest_over_work = 1 / share - 1
        self._hurried = hurried
        self._worked_until: float | None = None  # on the thread's own clock, which stands while it waits

    def __call__(self, _: int) -> None:
        """Sleep in proportion to what was worked since the last call."""
        if self._worked_until is not None and not self._hurried.is_set():
            start = time.perf_counter()
            self._hurried.wait((time.thread_time() - self._worked_until) * self._rest_over_work)
            self.slept_seconds += time.perf_counter() - start
        self._worked_until = time.thread_time()


@dataclass(frozen=True)
class Written:
    """A checkpoint that stands; `tidy_error` is why older ones could not be removed or compacted."""

    path: Path
    manifest: Manifest
    seconds: float  # without those that the throttle slept
    tidy_error: OSError | ValueError | None


class Writing:
    """A checkpoint on its way."""

    def __init__(self, future: Future[Written], hurried: threading.Event) -> None:
        self._future = future
        self._hurried = hurried

    def is_done(self) -> bool:
        """Whether `result` returns at once."""
        return self._future.done()

    def result(self) -> Written:
        """Wait for it, at full speed. Raises what the writing raised."""
        self._hurried.set()
        return self._future.result()


class CheckpointWriter:
    """Writes into one folder, one checkpoint at a time; `go_on_from` what was loaded, if anything was."""

    def __init__(
        self, folder: Path, options: CheckpointOptions, metric: str, group: ProcessGroup | None = None
    ) -> None:
        self._group = group or SingleProcess()
        self._folder = folder
        self._options = options
        self._metric = metric
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._read_manifest = ManifestReader()
        self._newest: Checkpoint | None = None  # that the next delta holds the changes since

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Let the next delta hold what changes after `checkpoint`."""
        self._newest = checkpoint

    @property
    def can_write_aside(self) -> bool:
        """Whether the training may go on meanwhile: several ranks write together, in steps that all of them take."""
        return not isinstance(self._group, MpiGroup)

    def parent_for(self, step: int) -> ParentRecord | None:
        """What the checkpoint of `step` is to hold the changes since; None if it is to be a full one.

        Rank 0 decides for all: a file system shows its files to one rank sooner than to another.
        """
        return self._group.first(lambda: self._parent_for(step))

    def _parent_for(self, step: int) -> ParentRecord | None:
        options, newest = self._options, self._newest
        if not options.delta or newest is None or newest.manifest.step >= step:
            return None
        if not options.compact and len(newest.older) + 1 >= options.full_every:
            return None
        path = self._folder / step_name(newest.manifest.step)
        if isinstance(open_if_whole(path, self._read_manifest), str):
            return None
        return ParentRecord(step=newest.manifest.step, id=newest.manifest.id)

    def start(self, dense: dict[str, np.ndarray], snapshot: Snapshot, manifest: Manifest, throttled: bool) -> Writing:
        """Begin to write; the checkpoint before must be done. The snapshot is released in any case."""
        progress: Progress = Throttle(BACKGROUND_SHARE, snapshot.awaited) if throttled else ignore
        future = self._thread.submit(self._write, dense, snapshot, manifest, progress)
        return Writing(future, snapshot.awaited)

    def _write(
        self, dense: dict[str, np.ndarray], snapshot: Snapshot, manifest: Manifest, progress: Progress
    ) -> Written:
        start, saved = time.perf_counter(), False
        try:
            path = self._save(ModelState(dense, snapshot.tables), manifest, progress)
            self._newest = self._group.first(lambda: Checkpoint.open(path, self._read_manifest))
            saved = True
        finally:
            snapshot.release(saved)
        tidy_error = self._group.first(lambda: self._tidy(progress))
        slept = progress.slept_seconds if isinstance(progress, Throttle) else 0.0
        return Written(path, self._newest.manifest, time.perf_counter() - start - slept, tidy_error)

    def _save(self, state: ModelState, manifest: Manifest, progress: Progress) -> Path:
        if isinstance(self._group, MpiGroup):
            return write.save_together(self._folder, state, manifest, self._group, self._options.sliced)
        return write.save(self._folder, state, manifest, self._options.shards, progress)

    def _tidy(self, progress: Progress) -> OSError | ValueError | None:
        """Remove old checkpoints; before, make a delta full for whose sake too many of them stay."""
        try:
            keep = (self._folder, self._options, self._metric, self._read_manifest)
            if self._options.compact and (delta := delta_to_compact(*keep)):
                compact(delta, self._options.shards, progress)
                log.info("compacted %s", delta.path)
            remove_old(*keep)
        except (OSError, ValueError) as error:
            return error
        return None

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
