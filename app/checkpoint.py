"""Checkpoints that are whole or not there.

    <folder>/step-00001000/   dense.safetensors                     model and dense optimizers
                              <table>-<shard>-of-<shards>.safetensors   row_ids, rows, optimizer state
                              manifest.json                         step, epoch, config, files with checksums

Files are written into `step-00001000.partial`, synced, and renamed; what has no manifest is ignored. A shard holds
touched rows only: all others are their initial value, a function of the seed in the manifest. Row r is in shard
r mod shards.
"""

from __future__ import annotations

import functools
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from app.array_file import read_arrays, write_arrays
from app.disk import FileRecord, Progress, checksum, ignore, sync_folder
from app.manifest import Manifest, read_manifest, use_an_older, write_manifest
from app.metrics import merit
from app.tables.interface import TableState

log = logging.getLogger(__name__)

PARTIAL = ".partial"
REPLACED = ".replaced"
DENSE = "dense.safetensors"
ROW_IDS = "row_ids"


@dataclass(frozen=True)
class CheckpointOptions:
    """`dir` empty is `checkpoints` in the run folder.

    Saved at each epoch's end, every `every_steps` steps and after `every_minutes` minutes (0 is never), and where an
    evaluation within an epoch is the best so far. The newest `keep_last` and the `keep_best` best by `eval.metric`
    on `valid` stay; `keep_last` 0 keeps all. `integrated` writes one file a table, else `shards` files a table.
    """

    dir: str = ""
    every_steps: int = 0
    every_minutes: float = 0.0
    keep_last: int = 3
    keep_best: int = 1
    integrated: bool = True
    shards: int = 1

    def __post_init__(self) -> None:
        for name in ("every_steps", "every_minutes", "keep_last", "keep_best"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"checkpoint.{name} must be 0 or more, and finite; found {getattr(self, name)}")
        if self.shards < 1:
            raise ValueError(f"checkpoint.shards must be 1 or more, found {self.shards}")
        if self.integrated and self.shards > 1:
            raise ValueError(f"checkpoint.shards={self.shards} needs checkpoint.integrated=false, which is true")


@dataclass(frozen=True)
class ModelState:
    """All that a run has to keep: `dense` arrays by name, and the touched rows of each table."""

    dense: dict[str, np.ndarray]
    tables: dict[str, TableState]


def step_name(step: int) -> str:
    """The folder of the checkpoint after `step` steps."""
    return f"step-{step:08d}"


def save(folder: Path, state: ModelState, manifest: Manifest, num_shards: int = 1, progress: Progress = ignore) -> Path:
    """Write one checkpoint below `folder` and return its path; whole, or (on any error) not there at all."""
    final = folder / step_name(manifest.step)
    partial = folder / f"{final.name}{PARTIAL}"
    clear_leftovers(folder)
    partial.mkdir(parents=True)
    try:
        _write_files(partial, state, manifest, num_shards, progress)
        _put_in_place(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _write_files(partial: Path, state: ModelState, manifest: Manifest, num_shards: int, progress: Progress) -> None:
    """Write and sync all files of a checkpoint into the empty folder `partial`, the manifest last."""
    contents: dict[str, Callable[[], dict[str, np.ndarray]]] = {DENSE: lambda: state.dense}
    for table, rows in state.tables.items():
        for shard in range(num_shards):
            contents[shard_name(table, shard, num_shards)] = functools.partial(_shard_arrays, rows, shard, num_shards)
    files = {name: write_arrays(partial / name, arrays(), progress) for name, arrays in contents.items()}
    write_manifest(partial, replace(manifest, shards=dict.fromkeys(state.tables, num_shards), files=files))
    sync_folder(partial)


def clear_leftovers(folder: Path) -> None:
    """Remove what a killed save left; a checkpoint that was being replaced gets its name back."""
    for path in folder.glob(f"step-*{REPLACED}"):
        if not path.with_suffix("").exists():
            path.rename(path.with_suffix(""))
    for suffix in (PARTIAL, REPLACED):
        for path in folder.glob(f"step-*{suffix}"):
            shutil.rmtree(path)


def _put_in_place(partial: Path, final: Path) -> None:
    replaced = final.with_suffix(REPLACED)
    if final.exists():
        final.rename(replaced)
    try:
        partial.rename(final)
    except OSError:
        if replaced.exists():
            replaced.rename(final)
        raise
    sync_folder(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def load(checkpoint: Path, progress: Progress = ignore) -> tuple[Manifest, ModelState]:
    """One checkpoint with every file's checksum verified.

    Raises as `verify`.
    """
    manifest = verify(checkpoint, progress)
    tables = {}
    for table, shards in manifest.shards.items():
        parts = [read_arrays(checkpoint / shard_name(table, shard, shards)) for shard in range(shards)]
        tables[table] = _join_shards(parts)
    return manifest, ModelState(read_arrays(checkpoint / DENSE), tables)


def verify(checkpoint: Path, progress: Progress = ignore) -> Manifest:
    """The manifest of a checkpoint whose files all have the size and checksum that it says.

    Raises as `read_manifest`, and ValueError naming the file that is missing or differs, with what was found and
    expected.
    """
    manifest = read_manifest(checkpoint)
    for name, expected in manifest.files.items():
        _verify_file(checkpoint / name, expected, progress)
    return manifest


def step_folders(folder: Path) -> list[Path]:
    """What lies below `folder` under a checkpoint's name, whole or not, oldest step first."""
    named = (path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name))
    return sorted(named, key=lambda path: int(path.name.removeprefix("step-")))


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints below `folder` that have a readable manifest, oldest step first."""
    whole = []
    for path in step_folders(folder):
        try:
            read_manifest(path)
        except (FileNotFoundError, ValueError):
            continue
        whole.append(path)
    return whole


def best_or_newest(folder: Path, metric: str) -> Path:
    """The checkpoint with the best `metric` on `valid`; the newest where none was evaluated.

    Raises FileNotFoundError where there is no whole checkpoint.
    """
    whole = whole_checkpoints(folder)
    if not whole:
        raise FileNotFoundError(f"no whole checkpoint in {folder}; train first: make train")
    return [*best_first(whole, metric), whole[-1]][0]


def best_first(checkpoints: list[Path], metric: str) -> list[Path]:
    """Those that were evaluated on `valid`, the best `metric` first, the newer first where it is equal."""
    measured = [(read_manifest(path).metrics, path) for path in checkpoints]
    scored = [(merit(metric, metrics[metric]), path) for metrics, path in measured if metric in metrics]
    return [path for _, path in sorted(scored, reverse=True)]


def remove_old(folder: Path, keep_last: int, keep_best: int, metric: str) -> None:
    """Delete all but the newest `keep_last` and the best `keep_best` checkpoints; `keep_last` 0 keeps all."""
    whole = whole_checkpoints(folder)
    if keep_last:
        kept = best_first(whole, metric)[:keep_best]
        for path in whole[:-keep_last]:
            if path not in kept:
                # Renamed first: what a kill leaves of it is no checkpoint.
                shutil.rmtree(path.rename(path.with_suffix(PARTIAL)))


def shard_name(table: str, shard: int, shards: int) -> str:
    """The file of one shard of one table."""
    return f"{table}-{shard}-of-{shards}.safetensors"


def _verify_file(path: Path, expected: FileRecord, progress: Progress) -> None:
    if not path.is_file():
        raise ValueError(f"checkpoint file {path} is missing; {use_an_older(path.parent)}")
    if path.stat().st_size != expected["size_bytes"]:
        raise ValueError(
            f"checkpoint file {path} has {path.stat().st_size} bytes, expected {expected['size_bytes']}; "
            f"{use_an_older(path.parent)}"
        )
    found = checksum(path, progress)
    if found != expected["checksum"]:
        raise ValueError(
            f"checkpoint file {path} is damaged: checksum {found}, expected {expected['checksum']}; "
            f"{use_an_older(path.parent)}"
        )


def _shard_arrays(rows: TableState, shard: int, num_shards: int) -> dict[str, np.ndarray]:
    if num_shards == 1:
        return {ROW_IDS: rows.row_ids, **rows.arrays}
    chosen = rows.row_ids % num_shards == shard
    return {ROW_IDS: rows.row_ids[chosen], **{name: array[chosen] for name, array in rows.arrays.items()}}


def _join_shards(parts: list[dict[str, np.ndarray]]) -> TableState:
    if len(parts) == 1:
        return TableState(parts[0].pop(ROW_IDS), parts[0])
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    row_ids = joined.pop(ROW_IDS)
    order = np.argsort(row_ids, kind="stable")
    return TableState(row_ids[order], {name: array[order] for name, array in joined.items()})
