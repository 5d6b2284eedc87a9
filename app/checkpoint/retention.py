"""The checkpoints of one folder: find the whole ones and the best, remove old ones, make deltas full."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from app.checkpoint.disk import Progress, no_progress
from app.checkpoint.manifest import Manifest, read_manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import PARTIAL, write_checkpoint
from app.config.run_settings import CheckpointOptions
from app.evaluation.metrics import as_score
from common.files import sync_folder

Read = Callable[[Path], Manifest]  # gives the manifest of a checkpoint's folder


def step_folders(folder: Path) -> list[Path]:
    """Return what lies below `folder` under a checkpoint's name, whole or not, oldest step first."""
    folders = (path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name))
    return sorted(folders, key=lambda path: int(path.name.removeprefix("step-")))


def open_if_whole(path: Path, read: Read = read_manifest) -> Checkpoint | str:
    """Return the checkpoint at `path`, or why its manifest or one that it needs cannot be used."""
    try:
        return Checkpoint.open(path, read)
    except (FileNotFoundError, ValueError) as error:
        return str(error)


def whole_checkpoints(folder: Path, read: Read = read_manifest) -> list[Checkpoint]:
    """Return the checkpoints below `folder` whose manifest and parents' manifests can be read, oldest first."""
    opened = (open_if_whole(path, read) for path in step_folders(folder))
    return [checkpoint for checkpoint in opened if isinstance(checkpoint, Checkpoint)]


def open_named(path: Path) -> Checkpoint:
    """Open the checkpoint that a user names. Raises as `Checkpoint.open`, with the ones nearby if it is not there."""
    try:
        return Checkpoint.open(path)
    except FileNotFoundError as error:
        nearby = (path, path / "checkpoints", path.parent)
        names = ", ".join(str(each.path) for folder in nearby for each in whole_checkpoints(folder))
        raise FileNotFoundError(f"{error}; whole ones nearby: {names or 'none; train first: make train'}") from error


def best_or_newest(folder: Path, metric: str) -> Checkpoint:
    """Return the checkpoint with the best `metric` on `valid`, or the newest if none was evaluated.

    Raises FileNotFoundError, with the fault of the newest, if there is no whole checkpoint.
    """
    whole = whole_checkpoints(folder)
    if whole:
        return [*best_first(whole, metric), whole[-1]][0]
    reasons = [f"{path.name}: {open_if_whole(path)}" for path in step_folders(folder)[-1:]]
    raise FileNotFoundError(f"no whole checkpoint in {folder}; {'; '.join([*reasons, 'train first: make train'])}")


def best_first(checkpoints: list[Checkpoint], metric: str) -> list[Checkpoint]:
    """Return those that were evaluated on `valid`, the best `metric` first. Of equal ones the newer comes first.

    Only values of the newest one's basis (`SelectionState`) are compared: of the same rows and groups.
    """
    basis = checkpoints[-1].manifest.selection.get("basis") if checkpoints else None
    evaluated = [
        checkpoint
        for checkpoint in checkpoints
        if metric in checkpoint.manifest.metrics and checkpoint.manifest.selection.get("basis") == basis
    ]
    return sorted(evaluated, key=lambda c: (as_score(metric, c.manifest.metrics[metric]), c.path), reverse=True)


def to_keep(whole: list[Checkpoint], options: CheckpointOptions, metric: str) -> list[Checkpoint]:
    """Return the newest `keep_last` and the best `keep_best` of all, oldest first. `keep_last` 0 wants all."""
    newest = whole[-options.keep_last :] if options.keep_last else whole
    paths = {checkpoint.path for checkpoint in [*newest, *best_first(whole, metric)[: options.keep_best]]}
    return [checkpoint for checkpoint in whole if checkpoint.path in paths]


def remove_old(folder: Path, options: CheckpointOptions, metric: str, read: Read = read_manifest) -> None:
    """Delete all checkpoints but those to keep, and those that a delta to keep needs."""
    whole = whole_checkpoints(folder, read)
    needed = {member.path for checkpoint in to_keep(whole, options, metric) for member in checkpoint.chain}
    for checkpoint in reversed(whole):  # a delta before what it needs
        if checkpoint.path not in needed:
            # Renamed first: what a kill or a power cut leaves of it is no checkpoint.
            removed = checkpoint.path.rename(checkpoint.path.with_suffix(PARTIAL))
            sync_folder(folder)
            shutil.rmtree(removed)


def delta_to_compact(
    folder: Path, options: CheckpointOptions, metric: str, read: Read = read_manifest
) -> Checkpoint | None:
    """Return the oldest delta to keep, if `full_every` other checkpoints are kept only because it needs them."""
    remaining = to_keep(whole_checkpoints(folder, read), options, metric)
    paths = {checkpoint.path for checkpoint in remaining}
    for checkpoint in remaining:
        if checkpoint.older:
            burden = [member for member in checkpoint.older if member.path not in paths]
            return checkpoint if len(burden) >= options.full_every else None
    return None


def compact(checkpoint: Checkpoint, num_shards: int, progress: Progress = no_progress) -> Path:
    """Turn a delta into a full checkpoint, in its place. Deltas whose parent it is stay valid. A full one stays.

    The caller holds the lock of its folder. Raises as `Checkpoint.verify`, so damage is not copied. A kill leaves the
    one or the other.
    """
    checkpoint.verify(progress)
    if not checkpoint.older:
        return checkpoint.path
    return rewrite(checkpoint, checkpoint.path.parent, num_shards, progress)


def rewrite(checkpoint: Checkpoint, folder: Path, num_shards: int, progress: Progress = no_progress) -> Path:
    """Write the state of a verified checkpoint as a full one below `folder`, through bounded memory."""
    manifest = replace(checkpoint.manifest, parent=None, shards={}, files={})
    return write_checkpoint(folder, checkpoint.state(), manifest, num_shards, progress)
