"""The checkpoints of one folder: which are whole, which is the best, which stay, and which are made full."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from app.checkpoint.disk import Progress, ignore
from app.checkpoint.manifest import Manifest, read_manifest
from app.checkpoint.read import chain_of, open_state, verify
from app.checkpoint.write import PARTIAL, save
from app.config.run import CheckpointOptions
from app.evaluation.metrics import merit
from common.files import sync_folder


def step_folders(folder: Path) -> list[Path]:
    """What lies below `folder` under a checkpoint's name, whole or not, oldest step first."""
    named = (path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name))
    return sorted(named, key=lambda path: int(path.name.removeprefix("step-")))


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints below `folder` whose manifest, and those of all that they need, can be read; oldest first."""
    return [path for path in step_folders(folder) if why_not_whole(path) is None]


def why_not_whole(path: Path) -> str | None:
    """What is wrong with the manifests of a checkpoint, None if nothing is; files are not looked at."""
    try:
        chain_of(path)
    except (FileNotFoundError, ValueError) as error:
        return str(error)
    return None


def is_kept(path: Path, manifest: Manifest) -> bool:
    """Return whether the checkpoint with this manifest is still at `path`: not removed, and not compacted since."""
    try:
        return read_manifest(path) == manifest
    except (FileNotFoundError, ValueError):
        return False


def best_or_newest(folder: Path, metric: str) -> Path:
    """The checkpoint with the best `metric` on `valid`; the newest where none was evaluated.

    Raises FileNotFoundError where there is no whole checkpoint, with what is wrong with the newest.
    """
    whole = whole_checkpoints(folder)
    if whole:
        return [*best_first(whole, metric), whole[-1]][0]
    reasons = [f"{path.name}: {why_not_whole(path)}" for path in step_folders(folder)[-1:]]
    raise FileNotFoundError(f"no whole checkpoint in {folder}; {'; '.join([*reasons, 'train first: make train'])}")


def best_first(checkpoints: list[Path], metric: str) -> list[Path]:
    """Those that were evaluated on `valid`, the best `metric` first, the newer first where it is equal."""
    measured = [(read_manifest(path).metrics, path) for path in checkpoints]
    scored = [(merit(metric, metrics[metric]), path) for metrics, path in measured if metric in metrics]
    return [path for _, path in sorted(scored, reverse=True)]


def wanted(folder: Path, options: CheckpointOptions, metric: str) -> list[Path]:
    """The newest `keep_last` and the best `keep_best` checkpoints, oldest first; `keep_last` 0 wants all."""
    whole = whole_checkpoints(folder)
    newest = whole[-options.keep_last :] if options.keep_last else whole
    return sorted({*newest, *best_first(whole, metric)[: options.keep_best]})


def remove_old(folder: Path, options: CheckpointOptions, metric: str) -> None:
    """Delete the checkpoints that are not wanted, but those that a wanted delta needs."""
    needed = {link.path for path in wanted(folder, options, metric) for link in chain_of(path)}
    for path in reversed(whole_checkpoints(folder)):  # a delta before what it needs
        if path not in needed:
            # Renamed first: what a kill or a power cut leaves of it is no checkpoint.
            removed = path.rename(path.with_suffix(PARTIAL))
            sync_folder(folder)
            shutil.rmtree(removed)


def delta_to_compact(folder: Path, options: CheckpointOptions, metric: str) -> Path | None:
    """The oldest wanted delta, if `full_every` checkpoints are there for its sake alone."""
    kept = wanted(folder, options, metric)
    for path in kept:
        chain = chain_of(path)
        if len(chain) > 1:
            burden = [link.path for link in chain if link.path not in kept]
            return path if len(burden) >= options.full_every else None
    return None


def compact(path: Path, num_shards: int, progress: Progress = ignore) -> Path:
    """Make a delta a full checkpoint, in its place; those that go on from it still do. A full one stays as it is.

    The caller holds the lock of its folder. Raises as `verify`: damage is not copied. A kill leaves the one or the
    other.
    """
    manifest = verify(path, progress)
    if manifest.parent is None:
        return path
    return rewrite(path, path.parent, num_shards, progress)


def rewrite(path: Path, folder: Path, num_shards: int, progress: Progress = ignore) -> Path:
    """Write the state of a verified checkpoint as a full one below `folder`; rows go through bounded memory."""
    manifest = read_manifest(path)
    return save(folder, open_state(path), manifest.as_full(), num_shards, progress)
