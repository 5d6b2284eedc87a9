"""The models that are served, one after another: found in a folder, checked, swapped, pinned, folded.

A folder holds whole bundles and deltas beside one another, and `statement` says which must serve. Each model is
immutable, so a swap is the assignment of `current`. Requests that began with the old one end with it.
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
    Chain,
    Manifest,
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
from app.serving.batching import join
from app.serving.forms.form import RowsToScore
from app.serving.options import ServerOptions
from app.serving.statement import Statement, choose
from data_prep.encoding.encoder import Chunk
from data_prep.options.log_format import LogFormat

log = logging.getLogger(__name__)

FOLD_SHARE = 0.1  # changed rows of the whole bundle's, beyond which a new one is written
FIRST_FOLD, LONGEST_FOLD = 60.0, 3600.0  # seconds before a fold that failed is tried again
RECENT_ROWS = 2000  # scored by a new model before it serves, so that the pages of frequent rows are in memory
RECENT_ROW_BYTES = 1 << 14  # A chunk with more a row is not kept: a row of a request may be as large as its body
FOLDED = "-folded"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a refused bundle is tried again, doubled each time


def _kind(chunk: RowsToScore) -> str:
    """Key of what can stand in one chunk."""
    return str(chunk.is_bare)


@dataclass
class _BundleState:
    """A bundle of the folder, for as long as the file of its manifest stays as it is."""

    stamp: tuple[int, ...]  # of that file
    since: float  # when it was seen first, or refused
    manifest: Manifest | None = None
    is_newer: bool = False  # than the current model, or pinned in its place
    reason: str = ""  # why it is refused
    pause: float = 0.0
    next_try: float = 0.0  # when it is tried again


class Generations:
    """The current model, and the folder it is from. A lock lets one thread at a time look, pin or roll back."""

    def __init__(self, options: ServerOptions, folds: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the bundle at `options.path`, or of a folder of bundles the one that must serve.

        One of the service's processes `folds`. Raises as `Predictor.open`.
        """
        self._path, self._num_threads, self._folds, self._clock = options.path, options.threads, folds, clock
        self._statement = Statement(options)
        self._is_folder = not (self._path / MANIFEST).is_file()
        self._lock = threading.Lock()
        self._bundles: dict[Path, _BundleState] = {}
        self._recent: deque[tuple[LogFormat, RowsToScore]] = deque()
        self._num_recent = 0  # rows of them
        self._folding: subprocess.Popen[bytes] | None = None
        self._fold_pause, self._fold_again = FIRST_FOLD, 0.0
        self.pinned: str | None = None
        self.error = ""  # why the folder or the statement cannot be read
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
        """Refresh. Whatever happens, what serves keeps serving. The log has each error once."""
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
        """Serve what must serve, as far as it can be opened and its golden rows score right.

        Raises ValueError or OSError if the statement or the folder cannot be read.
        """
        with self._lock:
            if self._is_folder:
                may_fold = self._may_fold()  # asked before the look, which finds what was written
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
        """Read the manifests that are new, were replaced or could not be read, and forget what is gone."""
        if not self._is_folder:
            raise ValueError(f"{self._path} is one bundle; serve a folder of bundles to choose among them")
        bundles = {}
        for path in bundles_in(self._path):
            stamp: tuple[int, ...] = ()
            try:
                state = (path / MANIFEST).stat()
                stamp = state.st_ctime_ns, state.st_mtime_ns, state.st_ino, state.st_size
            except (FileNotFoundError, NotADirectoryError):
                continue  # no bundle, or not yet
            except OSError:
                pass  # reading it gives the reason
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
        """Return the versions that may be opened: without those that were refused and are not to be tried yet."""
        now, bundles = self._clock(), self._bundles.items()
        usable = {path: bundle.manifest for path, bundle in bundles if with_refused or now >= bundle.next_try}
        return chains({path: manifest for path, manifest in usable.items() if manifest is not None})

    def _open(self, chain: Chain, current: Predictor | None = None) -> Predictor | None:
        """Open and check a chain with the tables that `current` has mapped. Refuse it and return None if it fails."""
        tables: tuple[BundleTables, ...] = ()
        if current is not None and [m.id for _, m in current.chain] == [m.id for _, m in chain[: len(current.chain)]]:
            tables = current.tables
        if not self._check_files(chain, len(tables)):
            return None
        try:
            predictor = self._checked(Predictor(chain, self._num_threads, tables))
        except Exception as error:  # damaged in whatever way: what serves keeps serving
            self._refuse(chain[-1][0], error)
            return None
        for folder, _ in chain:
            self._bundles[folder].reason, self._bundles[folder].pause = "", 0.0
        return predictor

    def _check_files(self, chain: Chain, num_mapped: int = 0) -> bool:
        """Return whether all files of a chain are there and whole. Refuse the first bundle of which one is not.

        The tables of the first `num_mapped` bundles are mapped already.
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
        log.info("%s serves, version %s", predictor.folder, short(predictor.version))

    def _refuse(self, path: Path, error: object) -> None:
        """Note why a bundle is not served, log each reason once, and try it again after a pause."""
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
        """Mark what is newer than the current model, or pinned. Forget faults of bundles that neither needs."""
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
                bundle.reason, bundle.pause = "", 0.0  # a pin or another copy kept it from being tried

    def _checked(self, predictor: Predictor) -> Predictor:
        """Score the golden rows, and the last requests' rows of this log for their pages. Raises ValueError."""
        predictor.check_golden()
        _ = predictor.example, held_out_rows(predictor)  # kept while its folder is there
        recent_rows = list(self._recent)
        formats = {id(log_format): log_format for log_format, _ in recent_rows}
        fit = {key for key, log_format in formats.items() if log_format == predictor.log_format}
        recent = [chunk for log_format, chunk in recent_rows if id(log_format) in fit]
        # Together: thousands of chunks of one row would hold up the thread that scores for seconds.
        for _, alike in groupby(sorted(recent, key=_kind), _kind):
            chunk = join(list(alike))
            if not np.isfinite(predictor.score_chunk(chunk).logits).all():
                raise ValueError(f"{predictor.folder} scores a row of the last requests as NaN or infinity")
        return predictor

    def keep_recent(self, log_format: LogFormat, chunk: RowsToScore) -> None:
        """Keep scored rows for the next model of the same log. The event loop's thread calls this."""
        is_large = isinstance(chunk, Chunk) and len(chunk.lines) > RECENT_ROW_BYTES * chunk.num_lines
        if self._is_folder and not is_large:
            self._recent.append((log_format, chunk))
            self._num_recent += chunk.num_lines
            while self._num_recent > RECENT_ROWS:
                self._num_recent -= self._recent.popleft()[1].num_lines

    def pin(self, version: str | None) -> None:
        """Serve `version` in all processes from now on, or with None the newest.

        Raises ValueError if it is not there or cannot be opened, or the statement cannot be written.
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
        """Pin the newest version that is older than the current one, which must be `version`, and can be served.

        Raises ValueError if there is none, `version` does not serve, or the statement cannot be written.
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
        """Pin and serve the newest of the wanted versions. If none can be opened, change nothing and return False."""
        for bundle in self._bundles.values():
            bundle.next_try = 0.0  # who asks does not wait
        while choices := [chain for version, chain in self._chains().items() if is_wanted(version, chain)]:
            if (predictor := self._open(max(choices, key=rank))) is not None:
                self._statement.write(short(predictor.version))
                if predictor.version != self.current.version:
                    self._swap(predictor)
                return True
        return False

    def status(self) -> dict[str, Any]:
        """Return what serves and since when, what is pinned, and what is newer and does not serve, or is damaged."""
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
        """Return the folder that the current model has now, or None if it is gone."""
        current, bundles = self.current, self._bundles.items()
        places = [path for path, bundle in bundles if bundle.manifest and bundle.manifest.version == current.version]
        return current.folder if current.folder in places or not self._is_folder else next(iter(places), None)

    def _may_fold(self) -> bool:
        """Return whether this process folds, and neither its last fold nor that of another service goes on."""
        if self._folding is not None:
            if (status := self._folding.poll()) is None:
                return False
            if status:
                log.warning("folding ended with status %d and is tried again later", status)
            self._folding = None
        with suppress(OSError):  # a fold of another user
            return self._folds and not is_written(self._path, f"*{FOLDED}")
        return False

    def _fold(self) -> None:
        """Write the chain as a whole bundle if it has grown, in a process of its own that ends with this one."""
        delta, now = self._place(), self._clock()
        if delta is None or self.current.changed_share <= FOLD_SHARE or now < self._fold_again:
            return
        self._fold_pause, self._fold_again = min(2 * self._fold_pause, LONGEST_FOLD), now + self._fold_pause
        log.info("%s: %.0f %% of the rows have changed; folding", delta, 100 * self.current.changed_share)
        clear_leftovers(self._path, f"*{FOLDED}")
        output = delta.with_name(f"{delta.name}{FOLDED}")
        if output.exists():  # damaged, or of what had this name before
            output = delta.with_name(f"{delta.name}-{short(self.current.version)}{FOLDED}")
        command = ["nice", sys.executable, "-m", "app.cli.fold", "--end-with-parent", str(delta), str(output)]
        self._folding = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
