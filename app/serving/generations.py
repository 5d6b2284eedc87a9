"""Decide which model of a folder of bundles serves: find new versions, check them, switch to them, pin one, and fold
deltas, which means to merge a whole bundle and its deltas into a new whole bundle.

The folder contains whole bundles and deltas side by side. The function `choose` of the module `statement` decides which
version must serve. A model is immutable, so switching to another one is an assignment to `current`. Requests that
started with the old model finish with it.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from app.scoring.bundle_folder import (
    MANIFEST,
    BundleManifest,
    Chain,
    bundles_in,
    chains,
    check_files,
    rank,
    read_manifest,
    short,
)
from app.scoring.bundle_tables import BundleTables
from app.scoring.bundle_writer import clear_leftovers, is_written
from app.scoring.distribution import held_out_rows
from app.scoring.predictor import Predictor
from app.serving.batching import join, kind_of
from app.serving.forms.form import RowsToScore
from app.serving.options import ServerOptions
from app.serving.statement import Statement, choose
from data_prep.encoding.encoder import Chunk
from data_prep.options.log_format import LogFormat

log = logging.getLogger(__name__)

# If the deltas change more than this share of the whole bundle's rows, the service folds (merges) them into a new whole
# bundle.
FOLD_SHARE = 0.1
# First and longest pause in seconds before folding (merging deltas into a whole bundle) is tried again after a failure.
# The pause is doubled each time.
FIRST_FOLD, LONGEST_FOLD = 60.0, 3600.0
# A new model scores this many rows of recent requests before it serves. This reads the memory pages with frequently
# used embedding rows from disk.
RECENT_ROWS = 2000
# Rows of a request are not kept for scoring with the next model if they have more bytes than this on average, because
# one row may be as large as the largest body.
RECENT_ROW_BYTES = 1 << 14
FOLDED = "-folded"
# First and longest pause in seconds before a bundle that could not be opened is tried again. The pause is doubled each
# time.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0


@dataclass
class _BundleState:
    """What the service knows about one bundle in the folder of bundles. The object is replaced by a new one when the
    bundle's manifest file changes.
    """

    # Times, inode and size of the bundle's manifest file. If any of them changes, the file was replaced.
    stamp: tuple[int, ...]
    since: float  # Time when the bundle was first seen, or when it was first found that it cannot serve.
    manifest: BundleManifest | None = None
    # True if the bundle is newer than the current model, or is pinned instead of the current model.
    is_newer: bool = False
    reason: str = ""  # Reason why the bundle does not serve, for the log and the status. Empty if there is none.
    pause: float = 0.0
    next_try: float = 0.0  # Time from which opening the bundle is tried again. 0 if it has never failed.


class Generations:
    """The model that answers requests now (`current`), and the folder from which newer models are opened. A lock
    ensures that only one thread at a time looks for models, pins one or rolls back.
    """

    def __init__(self, options: ServerOptions, is_first: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the bundle at `options.path`. If the path is a folder of bundles, open the bundle that must serve: the
        pinned or the newest version.

        `is_first` is True in only one of the service's processes, which folds deltas and logs which model serves. Raise
        FileNotFoundError if there is no bundle that can serve, and ValueError if the bundle at the path is damaged.
        """
        self._path, self._num_threads, self._is_first, self._clock = options.path, options.threads, is_first, clock
        self._statement = Statement(options)
        self._is_folder = not (self._path / MANIFEST).is_file()
        self._lock = threading.Lock()
        self._bundles: dict[Path, _BundleState] = {}
        self._recent: deque[tuple[LogFormat, RowsToScore]] = deque()
        self._num_recent = 0  # Number of rows in `_recent`.
        self._folding: subprocess.Popen[bytes] | None = None
        self._fold_pause, self._fold_again = FIRST_FOLD, 0.0
        self.pinned: str | None = None
        # Message of the error that the last `refresh` raised, such as a folder that cannot be read. Empty if it raised
        # none.
        self.error = ""
        self.num_swaps = 0
        self.current = self._first()
        self.since = clock()

    def _first(self) -> Predictor:
        if not self._is_folder:
            return self._checked(Predictor.open(self._path, self._num_threads))
        self._scan()
        self.pinned = self._statement.read()
        while (chain := choose(self._chains(), self.pinned, None)) is not None:
            if (predictor := self._open(chain)) is not None:
                return predictor
        pin = f" of version {self.pinned}, which {self._statement.path} pins (--version newest: none)"
        message = f"{self._path} is no bundle and holds none that can be served{pin if self.pinned else ''}"
        raise FileNotFoundError(f"{message}{self._reasons()}")

    def _reasons(self) -> str:
        return "".join(f"; {path.name}: {bundle.reason}" for path, bundle in self._bundles.items() if bundle.reason)

    def refresh_safely(self) -> None:
        """Call `refresh`. If it raises an error, log the error, and let the current model continue to serve.

        An error that repeats in the next calls is logged only once.
        """
        error = ""
        try:
            self.refresh()
        except Exception as caught:
            error = str(caught) or repr(caught)
            if error != self.error:
                is_known = isinstance(caught, ValueError | OSError)
                log.warning("%s serves on: %s", self.current.folder, error, exc_info=not is_known)
        self.error = error

    def refresh(self) -> None:
        """Look for new bundles in the folder. If another model than the current one must serve, open it, check it and
        switch to it. If the deltas have grown enough, start to fold (merge) them into a whole bundle.

        Raise ValueError or OSError if the folder cannot be read, or its file current.json, which states the version
        that must serve.
        """
        with self._lock:
            if self._is_folder:
                # First ask if a process is folding (merging) deltas, then read the folder. If that process has just
                # ended, the folder already contains the folded bundle, so the same fold is not started again.
                may_fold = self._may_fold()
                self._follow()
                if may_fold:
                    self._fold()

    def _follow(self) -> None:
        self._scan()
        self.pinned = self._statement.read()
        while (chain := choose(self._chains(), self.pinned, self.current.chain)) is not None:
            if (predictor := self._open(chain, self.current)) is not None:
                self._swap(predictor)
        self._note_newer()

    def _scan(self) -> None:
        """Read the manifests of those bundles in the folder that are new, were replaced, or could not be read before.
        Forget bundles that were removed. Raise ValueError if the service was started with one bundle instead of a
        folder.
        """
        if not self._is_folder:
            raise ValueError(f"{self._path} is one bundle; serve a folder of bundles to choose among them")
        bundles = {}
        for path in bundles_in(self._path):
            stamp: tuple[int, ...] = ()
            try:
                state = (path / MANIFEST).stat()
                stamp = state.st_ctime_ns, state.st_mtime_ns, state.st_ino, state.st_size
            except (FileNotFoundError, NotADirectoryError):
                # The path has no manifest, so it is no bundle, or one that is still being copied. Skip it.
                continue
            except OSError:
                # Ignore the error now. Reading the manifest below raises it again, and it then becomes the `reason` why
                # the bundle does not serve.
                pass
            old = self._bundles.get(path)
            bundles[path] = old if old is not None and old.stamp == stamp else _BundleState(stamp, self._clock())
        self._bundles = bundles
        for path, bundle in bundles.items():
            if bundle.manifest is None and self._clock() >= bundle.next_try:
                try:
                    bundle.manifest, bundle.reason = read_manifest(path), ""
                except (ValueError, OSError) as error:
                    self._refuse(path, error)

    def _chains(self, with_refused: bool = False) -> dict[str, Chain]:
        """Return, by version, the chain of each version that can be opened: a whole bundle and its deltas (changed
        rows).

        Bundles that could not be opened are left out until the time of their next try. With `with_refused`, these
        bundles are included as well.
        """
        now, bundles = self._clock(), self._bundles.items()
        usable = {path: bundle.manifest for path, bundle in bundles if with_refused or now >= bundle.next_try}
        return chains({path: manifest for path, manifest in usable.items() if manifest is not None})

    def _open(self, chain: Chain, current: Predictor | None = None) -> Predictor | None:
        """Open and check the model of a chain (a whole bundle and its deltas). If the chain consists of the chain of
        the model `current` and further deltas, share the tables that `current` has already mapped into memory. If the
        model cannot be used, record why, and return None.
        """
        tables: tuple[BundleTables, ...] = ()
        if current is not None and [m.id for _, m in current.chain] == [m.id for _, m in chain[: len(current.chain)]]:
            tables = current.tables
        if not self._check_files(chain, len(tables)):
            return None
        try:
            predictor = self._checked(Predictor(chain, self._num_threads, tables))
        # Catch every error, because damaged files can raise any, and the current model must continue to serve.
        except Exception as error:
            self._refuse(chain[-1][0], error)
            return None
        for folder, _ in chain:
            self._bundles[folder].reason, self._bundles[folder].pause = "", 0.0
        return predictor

    def _check_files(self, chain: Chain, num_mapped: int = 0) -> bool:
        """Return True if all files of a chain's bundles exist and are undamaged. Otherwise record why the first damaged
        bundle does not serve, and return False.

        The tables of a whole bundle, and of the first `num_mapped` bundles, which are mapped already, are not read.
        """
        for number, (folder, manifest) in enumerate(chain):
            try:
                check_files(folder, manifest, every_byte=manifest.parent is not None and number >= num_mapped)
            except (ValueError, OSError) as error:
                self._refuse(folder, error)
                return False
        return True

    def _swap(self, predictor: Predictor) -> None:
        self.current, self.since = predictor, self._clock()
        self.num_swaps += 1
        self._fold_pause, self._fold_again = FIRST_FOLD, 0.0
        # Every worker process switches to the new model, but only one of them logs this at the level INFO.
        level = logging.INFO if self._is_first else logging.DEBUG
        log.log(level, "%s serves, version %s", predictor.folder, short(predictor.version))

    def _refuse(self, path: Path, error: object) -> None:
        """Record `error`, because of which the bundle at `path` does not serve, and set the time before which opening
        the bundle is not tried again. An error that repeats is logged only once.
        """
        bundle = self._bundles[path]
        bundle.pause = min(max(2 * bundle.pause, FIRST_PAUSE), LONGEST_PAUSE)
        bundle.next_try = self._clock() + bundle.pause
        self._note(path, str(error) or repr(error))

    def _note(self, path: Path, reason: str) -> None:
        bundle = self._bundles[path]
        if bundle.reason != reason:
            log.warning("%s is not served: %s", path, reason)
            bundle.since = bundle.since if bundle.reason else self._clock()
            bundle.reason = reason

    def _note_newer(self) -> None:
        """Mark the bundles that should replace the current model, because they are newer or pinned. Clear the recorded
        reasons why bundles do not serve. Keep only the reasons of marked bundles, of bundles that a marked delta needs,
        and of bundles with the current version.
        """
        by_version, serving = self._chains(with_refused=True), short(self.current.version)

        def is_newer(version: str, chain: Chain) -> bool:
            return version != serving and (version == self.pinned or rank(chain) > rank(self.current.chain))

        newer = [chain for version, chain in by_version.items() if is_newer(version, chain)]
        needed = {folder for chain in newer for folder, _ in chain}
        for path, bundle in self._bundles.items():
            if bundle.manifest is None:
                continue
            version, parent = short(bundle.manifest.version), bundle.manifest.parent
            bundle.is_newer = is_newer(version, by_version.get(version, ((path, bundle.manifest),)))
            if bundle.is_newer and version not in by_version and parent is not None:
                self._note(path, f"it waits for its parent {parent['name']}, which is not here")
            elif not bundle.pause or not (bundle.is_newer or version == serving or path in needed):
                bundle.reason = ""
            elif self._clock() >= bundle.next_try and self._check_files(((path, bundle.manifest),)):
                # The bundle was damaged, but its files are good now, so clear the `reason` why it does not serve. This
                # is done here, because nothing will open the bundle again: a version is pinned or another copy serves.
                bundle.reason, bundle.pause = "", 0.0

    def _checked(self, predictor: Predictor) -> Predictor:
        """Return the new model `predictor` after scoring its golden rows (made-up rows with known logits) and rows of
        recent requests with it. The rows of recent requests make the system read the memory pages with frequently used
        embedding rows from disk.

        Raise ValueError if the score of a golden row is wrong, or if the logit of a row of a recent request is not
        finite.
        """
        predictor.check_golden()
        # Compute these two values now and let the model keep them: they are read from files of the bundle's folder,
        # which may be removed later.
        _ = predictor.example, held_out_rows(predictor)
        recent = [chunk for log_format, chunk in list(self._recent) if log_format == predictor.log_format]
        # Score the rows in large chunks. Scoring thousands of chunks of one row each would take seconds, during which
        # other threads could hardly score requests.
        for _, alike in groupby(sorted(recent, key=kind_of), kind_of):
            chunk = join(list(alike))
            if not np.isfinite(predictor.score_chunk(chunk).logits).all():
                raise ValueError(f"{predictor.folder} scores a row of the last requests as NaN or infinity")
        return predictor

    def keep_recent(self, log_format: LogFormat, chunk: RowsToScore) -> None:
        """Keep the rows of scored requests, at most RECENT_ROWS. The next model is checked with these rows if the model
        has the same log format. The event loop's thread calls this method.
        """
        num_bytes = 0
        if isinstance(chunk, Chunk):
            num_bytes = len(chunk.lines) + sum(cells.values.nbytes for cells in chunk.vectors.values())
        if self._is_folder and num_bytes <= RECENT_ROW_BYTES * chunk.num_lines:
            self._recent.append((log_format, chunk))
            self._num_recent += chunk.num_lines
            while self._num_recent > RECENT_ROWS:
                self._num_recent -= self._recent.popleft()[1].num_lines

    def pin(self, version: str | None) -> None:
        """Pin `version`, which means that this version serves from now on, also after a restart and in the service's
        other processes. If `version` is None, remove the pin, so that the newest version serves.

        Raise ValueError if the version does not exist or cannot be opened, or if current.json cannot be written.
        """
        with self._lock:
            self._scan()
            if version is None:
                self._statement.write(None)
            elif not self._pin(lambda name, _: name == version):
                versions = ", ".join(sorted(self._chains())) or "none"
                raise ValueError(
                    f"{self._path} has no version {version} that can be served, but {versions}{self._reasons()}"
                )
            self._follow()

    def roll_back(self, version: str) -> None:
        """Pin and serve the newest version that is older than the current one and can be opened.

        `version` is the version to leave. Raise ValueError if it is not the current one, if no older version can be
        opened, or if current.json cannot be written.
        """
        with self._lock:
            self._follow()
            current = self.current.chain
            if version != short(self.current.version):
                raise ValueError(f"this version is not the current one, which is {short(self.current.version)}")
            if not self._pin(lambda name, chain: name != version and rank(chain) < rank(current)):
                raise ValueError(f"{self._path} has no older version that can be served")
            log.warning("version %s was rolled back", version)
            self._follow()

    def _pin(self, is_wanted: Callable[[str, Chain], bool]) -> bool:
        """Pin and serve the newest version that `is_wanted` selects and that can be opened, and return True. If there
        is none, leave the pin and the current model as they are, and return False.
        """
        for bundle in self._bundles.values():
            # A user asks for a version now. So try again even bundles that could not be opened before, without waiting
            # until the pauses after their failures end.
            bundle.next_try = 0.0
        while choices := [chain for version, chain in self._chains().items() if is_wanted(version, chain)]:
            if (predictor := self._open(max(choices, key=rank))) is not None:
                self._statement.write(short(predictor.version))
                if predictor.version != self.current.version:
                    self._swap(predictor)
                return True
        return False

    def status(self) -> dict[str, Any]:
        """Return the state of the folder for /v1/status: folder and age of the current model, the pinned version, newer
        versions that do not serve yet, and bundles that cannot serve with the reasons.
        """
        now, place = self._clock(), self._place()
        bundles = {path.name: bundle for path, bundle in self._bundles.items()}
        refused = {name: bundle for name, bundle in bundles.items() if bundle.reason}
        newer = {name: bundle for name, bundle in bundles.items() if bundle.is_newer and bundle.manifest}
        return {
            "folder": place.name if place else None,
            "age_seconds": now - self.since,
            "pinned": self.pinned,
            "waiting": {name: short(b.manifest.version) for name, b in newer.items() if not b.reason and b.manifest},
            "refused": {name: {"reason": b.reason, "seconds": now - b.since} for name, b in refused.items()},
            "newest_age_seconds": max((now - bundle.since for bundle in newer.values()), default=0.0),
            "error": self.error,
        }

    def _place(self) -> Path | None:
        """Return the folder of a bundle with the same version as the model that serves now, or None if no such bundle
        exists any more.
        """
        current, bundles = self.current, self._bundles.items()
        places = [path for path, bundle in bundles if bundle.manifest and bundle.manifest.version == current.version]
        return current.folder if current.folder in places or not self._is_folder else next(iter(places), None)

    def _may_fold(self) -> bool:
        """Return True if this process may start to fold (merge) deltas: it is the one that does so for the service, and
        no process of this or another service is folding in the folder. Log if the last fold failed.
        """
        if self._folding is not None:
            if (status := self._folding.poll()) is None:
                return False
            if status:
                log.warning("folding ended with status %d and is tried again later", status)
            self._folding = None
        # `is_written` raises OSError if another user's process is merging bundles and this user may not read its files.
        # Return False in this case, as for any merge that is running.
        with suppress(OSError):
            return self._is_first and not is_written(self._path, f"*{FOLDED}")
        return False

    def _fold(self) -> None:
        """If the current model's deltas change more than FOLD_SHARE of the rows, start a process that merges them into
        a whole bundle in the same folder. The started process ends if this process ends.
        """
        delta, now = self._place(), self._clock()
        if delta is None or self.current.changed_share <= FOLD_SHARE or now < self._fold_again:
            return
        self._fold_pause, self._fold_again = min(2 * self._fold_pause, LONGEST_FOLD), now + self._fold_pause
        log.info("%s: %.0f %% of the rows have changed; folding", delta, 100 * self.current.changed_share)
        clear_leftovers(self._path, f"*{FOLDED}")
        output = delta.with_name(f"{delta.name}{FOLDED}")
        # A bundle with the name `output` does not serve, so it is damaged or contains another version. Use a longer
        # name.
        if output.exists():
            output = delta.with_name(f"{delta.name}-{short(self.current.version)}{FOLDED}")
        command = ["nice", sys.executable, "-m", "app.cli.fold", "--end-with-parent", str(delta), str(output)]
        self._folding = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
