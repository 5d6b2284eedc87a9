"""Manage the checkpoints of a folder: find the complete and the best ones, remove old ones, and replace deltas by full
checkpoints.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from app.checkpoint.manifest import Manifest, read_manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import PARTIAL, write_checkpoint
from app.config.config import CheckpointOptions
from app.evaluation.metrics import as_score
from common.arrays.disk import Progress, no_progress
from common.files import sync_folder
from common.packages import python_command

# Type of a function that takes a checkpoint's folder and returns the manifest in it, such as `read_manifest`.
Read = Callable[[Path], Manifest]


def step_folders(folder: Path) -> list[Path]:
    """Return the paths in `folder` that have the name of a checkpoint, such as step-00001000, by ascending step. The
    checkpoints may be damaged or incomplete.
    """
    folders = (path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name))
    return sorted(folders, key=lambda path: int(path.name.removeprefix("step-")))


def open_if_whole(path: Path, read: Read = read_manifest) -> Checkpoint | str:
    """Open the checkpoint at `path`. If that is impossible, return the reason as a text.

    The reason is that the manifest of this checkpoint, or of one that it needs, is missing or cannot be used.
    """
    try:
        return Checkpoint.open(path, read)
    except (FileNotFoundError, ValueError) as error:
        return str(error)


def whole_checkpoints(folder: Path, read: Read = read_manifest) -> list[Checkpoint]:
    """Return the checkpoints in `folder` that can be opened, oldest first."""
    opened = (open_if_whole(path, read) for path in step_folders(folder))
    return [checkpoint for checkpoint in opened if isinstance(checkpoint, Checkpoint)]


def open_named(path: Path) -> Checkpoint:
    """Open and return the checkpoint at a path that a user has given.

    Raise FileNotFoundError if the path has no checkpoint; the message lists the checkpoints in folders nearby. Raise
    ValueError if the checkpoint is damaged, or is a delta whose parent is missing.
    """
    try:
        return Checkpoint.open(path)
    except FileNotFoundError as error:
        nearby = (path, path / "checkpoints", path.parent)
        names = ", ".join(str(each.path) for folder in nearby for each in whole_checkpoints(folder))
        raise FileNotFoundError(f"{error}; whole ones nearby: {names or f'none; {_train_first()}'}") from error


def _train_first() -> str:
    return f"train first: {python_command('app train --dataset PREPARED')}"


def best_or_newest(folder: Path, metric: str) -> Checkpoint:
    """Return the checkpoint in `folder` with the best `metric` on the split valid, or the newest if none was evaluated.

    If no checkpoint can be opened, raise FileNotFoundError, which says what is wrong with the newest one.
    """
    whole = whole_checkpoints(folder)
    if whole:
        return [*best_first(whole, metric), whole[-1]][0]
    reasons = [f"{path.name}: {open_if_whole(path)}" for path in step_folders(folder)[-1:]]
    raise FileNotFoundError(f"no whole checkpoint in {folder}; {'; '.join([*reasons, _train_first()])}")


def best_first(checkpoints: list[Checkpoint], metric: str) -> list[Checkpoint]:
    """Return the checkpoints that were evaluated on the split valid, the one with the best `metric` first.

    `checkpoints` are in the order of steps. If values are equal, the newer checkpoint comes first. Only checkpoints
    that were evaluated on the same rows and groups as the newest one (`SelectionState.basis`) are included, because
    other values cannot be compared.
    """
    basis = checkpoints[-1].manifest.selection.get("basis") if checkpoints else None
    evaluated = [
        checkpoint
        for checkpoint in checkpoints
        if metric in checkpoint.manifest.metrics and checkpoint.manifest.selection.get("basis") == basis
    ]
    return sorted(evaluated, key=lambda c: (as_score(metric, c.manifest.metrics[metric]), c.path), reverse=True)


def to_keep(whole: list[Checkpoint], options: CheckpointOptions, metric: str) -> list[Checkpoint]:
    """Select from the complete checkpoints `whole` those that the settings `options` keep, and return them, oldest
    first.

    The settings `keep_last` and `keep_best` are the numbers of the newest and of the best checkpoints to keep. If
    `keep_last` is 0, all checkpoints are kept.
    """
    newest = whole[-options.keep_last :] if options.keep_last else whole
    paths = {checkpoint.path for checkpoint in [*newest, *best_first(whole, metric)[: options.keep_best]]}
    return [checkpoint for checkpoint in whole if checkpoint.path in paths]


def remove_old(folder: Path, options: CheckpointOptions, metric: str, read: Read = read_manifest) -> None:
    """Delete the checkpoints of `folder` that the settings do not keep, unless a kept delta (checkpoint with changed
    rows only) needs them.
    """
    whole = whole_checkpoints(folder, read)
    needed = {member.path for checkpoint in to_keep(whole, options, metric) for member in checkpoint.chain}
    # Remove newer checkpoints first, so that no delta, which holds only changes, ever remains without an older
    # checkpoint that it needs.
    for checkpoint in reversed(whole):
        if checkpoint.path not in needed:
            # Rename the folder first: if the process is killed while files are deleted, the rest must not look like a
            # checkpoint.
            removed = checkpoint.path.rename(checkpoint.path.with_suffix(PARTIAL))
            sync_folder(folder)
            shutil.rmtree(removed)


def compact(checkpoint: Checkpoint, num_shards: int, progress: Progress = no_progress) -> Path:
    """Replace a delta on disk by a full checkpoint of the same state, and return its path.

    A full checkpoint is left as it is. Newer deltas that build on this checkpoint (name it as their parent) stay valid,
    because its id does not change. The caller must hold the lock of the folder. All files are verified first, so that
    no damage is copied, and the errors of `Checkpoint.verify` are passed on. If the process is killed meanwhile, the
    folder has either the delta or the full checkpoint.
    """
    checkpoint.verify(progress)
    if not checkpoint.older:
        return checkpoint.path
    return rewrite(checkpoint, checkpoint.path.parent, num_shards, progress)


def rewrite(checkpoint: Checkpoint, folder: Path, num_shards: int, progress: Progress = no_progress) -> Path:
    """Write the state of a verified checkpoint as a full checkpoint into `folder`, and return its path.

    Rows are copied in blocks, so that memory use is bounded.
    """
    manifest = replace(checkpoint.manifest, parent=None, shards={}, files={})
    return write_checkpoint(folder, checkpoint.state(), manifest, num_shards, progress)
