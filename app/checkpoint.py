"""Checkpoints that are whole or not there.

    <folder>/step-00001000/   dense.safetensors                     model and dense optimizers
                              <table>-<shard>-of-<shards>.safetensors   row_ids, rows, optimizer state
                              manifest.json                         step, epoch, config, files with checksums

Files are written into `step-00001000.partial`, synced, and renamed; what has no manifest is ignored. A shard holds
touched rows only: all others are their initial value, a function of the seed in the manifest.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from app.tables.interface import TableState

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
PARTIAL = ".partial"
DENSE = "dense.safetensors"
ROW_IDS = "row_ids"


@dataclass(frozen=True)
class CheckpointOptions:
    """`dir` empty is `checkpoints` in the run folder; `every_steps` 0 saves at each epoch's end only.

    The newest `keep_last` and the best one stay; 0 keeps all.
    """

    dir: str = ""
    every_steps: int = 0
    keep_last: int = 3

    def __post_init__(self) -> None:
        if self.every_steps < 0 or self.keep_last < 0:
            raise ValueError(
                f"checkpoint.every_steps and keep_last must be 0 or more, found {self.every_steps} and {self.keep_last}"
            )


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself.

    `step` counts from the start of the run, `epoch_step` from the start of `epoch` (1, 2, …): the next batch
    is number `epoch_step` (0, 1, …) of that epoch. `metrics` are those of `valid`, where it was evaluated then.
    `data` identifies the prepared folder, `dataset` says where it was. `shards` by table, and `files` by name with
    size and checksum, are filled in by `save`.
    """

    step: int
    epoch: int
    epoch_step: int
    config: dict[str, Any]
    dataset: str
    data: dict[str, Any]
    metrics: dict[str, float]
    shards: dict[str, int] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step taken: at an epoch's end `epoch` is the next one already."""
        return self.epoch if self.epoch_step else self.epoch - 1


@dataclass(frozen=True)
class ModelState:
    """All that a run has to keep: `dense` arrays by name, and the touched rows of each table."""

    dense: dict[str, np.ndarray]
    tables: dict[str, TableState]


def save(folder: Path, state: ModelState, manifest: Manifest) -> Path:
    """Write one checkpoint below `folder` and return its path; whole, or (on any error) not there at all."""
    final = folder / f"step-{manifest.step:08d}"
    partial = folder / f"{final.name}{PARTIAL}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        save_file(state.dense, partial / DENSE)
        for table, rows in state.tables.items():
            save_file({ROW_IDS: rows.row_ids, **rows.arrays}, partial / shard_name(table, 0, 1))
        files = {path.name: _sync_and_describe(path) for path in sorted(partial.iterdir())}
        whole = replace(manifest, shards=dict.fromkeys(state.tables, 1), files=files)
        _write_synced(partial / MANIFEST, json.dumps(asdict(whole), indent=1))
        _sync_folder(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync_folder(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def read_manifest(checkpoint: Path) -> Manifest:
    """The manifest of one checkpoint.

    Raises FileNotFoundError where there is none, ValueError where it is damaged or of another version.
    """
    path = checkpoint / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{checkpoint} is no whole checkpoint: it has no {MANIFEST}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format_version"]
        if version == FORMAT_VERSION:
            return Manifest(**content)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); {_use_an_older(checkpoint)}") from error
    raise ValueError(f"{path} has format version {version}, this program reads {FORMAT_VERSION}")


def load(checkpoint: Path) -> tuple[Manifest, ModelState]:
    """One checkpoint with every file's checksum verified.

    Raises ValueError naming the file that is missing or differs, with what was found and expected.
    """
    manifest = read_manifest(checkpoint)
    for name, expected in manifest.files.items():
        _verify(checkpoint / name, expected)
    tables = {}
    for table, shards in manifest.shards.items():
        parts = [_load_arrays(checkpoint / shard_name(table, shard, shards)) for shard in range(shards)]
        tables[table] = _join_shards(parts)
    return manifest, ModelState(_load_arrays(checkpoint / DENSE), tables)


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints below `folder` that have a readable manifest, oldest step first."""
    whole = []
    for path in folder.glob("step-*"):
        if path.suffix == PARTIAL:  # of a run that was killed while it saved
            continue
        try:
            whole.append((read_manifest(path).step, path))
        except (FileNotFoundError, ValueError):
            continue
    return [path for _, path in sorted(whole)]


def best_or_newest(folder: Path) -> Path:
    """The checkpoint with the highest AUC on `valid`; the newest where none was evaluated.

    Raises FileNotFoundError where there is no whole checkpoint.
    """
    whole = whole_checkpoints(folder)
    if not whole:
        raise FileNotFoundError(f"no whole checkpoint in {folder}; train first: make train")
    return best_of(whole) or whole[-1]


def best_of(checkpoints: list[Path]) -> Path | None:
    """The one with the highest AUC on `valid`, if any was evaluated."""
    scored = [(metrics["auc"], path) for path in checkpoints if "auc" in (metrics := read_manifest(path).metrics)]
    return max(scored)[1] if scored else None


def remove_old(folder: Path, keep_last: int) -> None:
    """Delete all but the newest `keep_last` checkpoints and the best one; 0 keeps all."""
    whole = whole_checkpoints(folder)
    if keep_last:
        best = best_of(whole)
        for path in whole[:-keep_last]:
            if path != best:
                shutil.rmtree(path)


def shard_name(table: str, shard: int, shards: int) -> str:
    """The file of one shard of one table."""
    return f"{table}-{shard}-of-{shards}.safetensors"


def checksum(path: Path) -> str:
    """xxh3 (64 bits) of a file, as "xxh3:" and 16 hex digits."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return f"xxh3:{digest.hexdigest()}"


def _verify(path: Path, expected: dict[str, Any]) -> None:
    if not path.is_file():
        raise ValueError(f"checkpoint file {path} is missing; {_use_an_older(path.parent)}")
    if path.stat().st_size != expected["size_bytes"]:
        raise ValueError(
            f"checkpoint file {path} has {path.stat().st_size} bytes, expected {expected['size_bytes']}; "
            f"{_use_an_older(path.parent)}"
        )
    found = checksum(path)
    if found != expected["checksum"]:
        raise ValueError(
            f"checkpoint file {path} is damaged: checksum {found}, expected {expected['checksum']}; "
            f"{_use_an_older(path.parent)}"
        )


def _use_an_older(checkpoint: Path) -> str:
    return f"remove {checkpoint}, and the one before it is used"


def _load_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def _join_shards(parts: list[dict[str, np.ndarray]]) -> TableState:
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    row_ids = joined.pop(ROW_IDS)
    order = np.argsort(row_ids, kind="stable")
    return TableState(row_ids[order], {name: array[order] for name, array in joined.items()})


def _sync_and_describe(path: Path) -> dict[str, Any]:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    return {"size_bytes": path.stat().st_size, "checksum": checksum(path)}


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
