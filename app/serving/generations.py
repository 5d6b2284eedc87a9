"""The models that are served, one after another: found in a folder, checked, swapped, rolled back, folded.

A folder holds whole bundles and deltas beside one another. The whole bundle with the last name counts, then the delta
that holds changes of it, then the delta of that one, whatever their names. Each model is immutable, so a swap is the
assignment of `current`; requests that began with the old one end with it.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections import deque
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from app.scoring.bundle import MANIFEST, Manifest, read_manifest
from app.scoring.predictor import Predictor
from app.serving.batching import join
from app.serving.decoding import RowsToScore
from common.files import write_whole
from data_prep.options.log_format import LogFormat

log = logging.getLogger(__name__)

FOLD_SHARE = 0.1  # changed rows of the whole bundle's, beyond which a new one is written
RECENT_ROWS = 2000  # scored by a new model before it serves, so that the pages of frequent rows are in memory
FOLDED = "-folded"


def _kind(chunk: RowsToScore) -> str:
    """Key of what can stand in one chunk."""
    return str(chunk.is_bare)


class Generations:
    """The current model and the one before it. All but `current` is for one thread, that of `watch`, and roll-backs."""

    def __init__(self, path: Path, num_threads: int, control: Path, folds: bool) -> None:
        """Open the bundle at `path`, or the newest of a folder of bundles.

        `control` is a file shared by the service's processes: versions that were rolled back. One of them `folds`.
        Raises as `Predictor.open`.
        """
        self._path, self._num_threads, self._control, self._folds = path, num_threads, control, folds
        self._is_folder = not (path / MANIFEST).is_file()
        self._lock = threading.Lock()
        self._manifests: dict[Path, tuple[int, Manifest | None]] = {}
        self._refused: dict[Path, tuple[int, str]] = {}
        self._recent: deque[tuple[LogFormat, RowsToScore]] = deque()
        self._num_recent = 0  # rows of them
        self._folding: subprocess.Popen[bytes] | None = None
        self._fold_of: Path | None = None  # the last chain that was folded, or could not be
        self.previous: Predictor | None = None
        self.num_swaps = 0
        self.current = self._first()
        self.since = time.time()

    def _first(self) -> Predictor:
        if not self._is_folder:
            return self._checked(Predictor.open(self._path, self._num_threads))
        for path in reversed(self._whole()):
            try:
                return self._checked(Predictor.open(path, self._num_threads))
            except (ValueError, OSError) as error:
                self._refuse(path, error)
        reasons = "; ".join(f"{path.name}: {reason}" for path, (_, reason) in self._refused.items())
        raise FileNotFoundError(f"{self._path} is no bundle and holds none that can be served {reasons}".rstrip())

    def refresh_safely(self) -> None:
        """Refresh; whatever happens, what serves keeps serving."""
        try:
            self.refresh()
        except Exception:
            log.exception("%s cannot be refreshed", self._path)

    def refresh(self) -> None:
        """Serve the newest model of the folder, as far as it can be opened and its golden rows score right."""
        with self._lock:
            rolled_back = self._rolled_back()
            if self.previous is not None and self.current.version in rolled_back:
                self._swap(self.previous, None)
            if not self._is_folder:
                return
            while self._step(rolled_back):
                pass
            self._fold()

    def _step(self, rolled_back: list[str]) -> bool:
        """Swap to the next newer model, if there is one."""
        manifests = self._read_manifests()
        current, base = self.current, self.current.chain[0][0]
        for path in reversed(self._whole()):
            manifest = manifests[path]
            if manifest.version in rolled_back or path in self._refused:
                continue
            is_folded = manifest.version == current.version and len(current.chain) > 1
            if (_order(path) > _order(base) and manifest.version != current.version) or is_folded:
                return self._try(path, lambda path=path: Predictor.open(path, self._num_threads))
        for path in sorted(manifests, key=_order):
            parent, version = manifests[path].parent, manifests[path].version
            if parent is None or version in rolled_back or path in self._refused:
                continue
            if parent["id"] == current.version:
                return self._try(path, lambda path=path: current.with_delta(path))
        self._note_gaps(manifests)
        return False

    def _try(self, path: Path, open_it: Any) -> bool:
        started = time.monotonic()
        try:
            predictor = self._checked(open_it())
        except Exception as error:  # damaged in whatever way: what serves keeps serving
            self._refuse(path, error)
            return True
        self._swap(predictor, self.current)
        log.info("%s serves, generation %d, after %.1f s", path, predictor.generation, time.monotonic() - started)
        return True

    def _swap(self, predictor: Predictor, previous: Predictor | None) -> None:
        self.previous = previous
        self.current = predictor
        self.num_swaps += 1
        self.since = time.time()

    def _checked(self, predictor: Predictor) -> Predictor:
        """Score the golden rows, and the last requests' rows of this log for their pages. Raises ValueError."""
        predictor.check_golden()
        _ = predictor.example  # kept while its folder is there
        kept = list(self._recent)
        formats = {id(log_format): log_format for log_format, _ in kept}
        fit = {key for key, log_format in formats.items() if log_format == predictor.log_format}
        recent = [chunk for log_format, chunk in kept if id(log_format) in fit]
        # Together: thousands of chunks of one row would hold up the thread that scores for seconds.
        for _, alike in groupby(sorted(recent, key=_kind), _kind):
            chunk = join(list(alike))
            if not np.isfinite(predictor.score_chunk(chunk).logits).all():
                raise ValueError(f"{predictor.folder} scores a row of the last requests as NaN or infinity")
        return predictor

    def keep_recent(self, log_format: LogFormat, chunk: RowsToScore) -> None:
        """Keep scored rows for the next model of the same log; from the event loop's thread."""
        if self._is_folder:
            self._recent.append((log_format, chunk))
            self._num_recent += chunk.num_lines
            while self._num_recent > RECENT_ROWS:
                self._num_recent -= self._recent.popleft()[1].num_lines

    def roll_back(self, version: str) -> None:
        """Serve the model before the current one, in all processes, and take `version` no more.

        Raises ValueError where that is not the current one, or there is none before it.
        """
        with self._lock:
            if version != self.current.version.rpartition(":")[2]:
                raise ValueError("this version is not the current one")
            if self.previous is None:
                raise ValueError("no other model served before this one since the service has started")
            rolled_back = [*self._rolled_back(), self.current.version]
            write_whole(self._control, json.dumps(rolled_back))
            log.warning("%s was rolled back", self.current.folder)
            self._swap(self.previous, None)

    def status(self) -> dict[str, Any]:
        """Return the age of the current model, its folder, and what was refused."""
        refused = {path.name: reason for path, (_, reason) in dict(self._refused).items()}
        return {"folder": self.current.folder.name, "age_seconds": time.time() - self.since, "refused": refused}

    def _rolled_back(self) -> list[str]:
        return list(json.loads(self._control.read_text())) if self._control.is_file() else []

    def _whole(self) -> list[Path]:
        return sorted((path for path, found in self._read_manifests().items() if found.parent is None), key=_order)

    def _read_manifests(self) -> dict[Path, Manifest]:
        """Return the manifests by folder; each is read once, and again when it was replaced."""
        times = {path.parent: path.stat().st_ctime_ns for path in self._path.glob(f"*/{MANIFEST}")}
        for known in (self._manifests, self._refused):
            for path in [path for path, (when, _) in known.items() if times.get(path) != when]:
                del known[path]
        for path, when in times.items():
            if path not in self._manifests:
                try:
                    self._manifests[path] = when, read_manifest(path)
                except (ValueError, OSError) as error:
                    self._manifests[path] = when, None
                    self._refuse(path, error)
        return {path: manifest for path, (_, manifest) in self._manifests.items() if manifest is not None}

    def _refuse(self, path: Path, error: object) -> None:
        if self._refused.get(path, (0, ""))[1] != str(error):
            log.warning("%s is not served: %s", path, error)
        self._refused[path] = (path / MANIFEST).stat().st_ctime_ns, str(error)

    def _note_gaps(self, manifests: dict[Path, Manifest]) -> None:
        """Warn once of a delta whose parent is not here; it may still come."""
        versions = {manifest.version for manifest in manifests.values()}
        for path, manifest in manifests.items():
            if manifest.parent is not None and manifest.parent["id"] not in versions and path not in self._refused:
                log.warning("%s waits for its parent %s, which is not here", path, manifest.parent["name"])
                versions.add(manifest.parent["id"])

    def _fold(self) -> None:
        """Write the chain as a whole bundle where it has grown, in a process of its own."""
        delta = self.current.folder
        if not self._folds or self.current.changed_share <= FOLD_SHARE or delta == self._fold_of:
            return
        if self._folding is not None and self._folding.poll() is None:
            return
        self._fold_of = delta
        log.info("%s: %.0f %% of the rows have changed; folding", delta, 100 * self.current.changed_share)
        output = delta.with_name(f"{delta.name}{FOLDED}")
        command = ["nice", sys.executable, "-m", "app.cli.bundle", "fold", str(delta), str(output)]
        self._folding = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603


def _order(path: Path) -> list[tuple[int, str]]:
    """Order of names in which 10 comes after 9."""
    parts = re.findall(r"\d+|\D+", path.name)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]
