"""A checkpoint that all owners of rows write at once, a shard each; rank 0 adds dense arrays and manifest, last."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.array_file import column_of, write_arrays
from app.checkpoint import (
    DENSE,
    PARTIAL,
    ModelState,
    clear_leftovers,
    put_in_place,
    shard_columns,
    shard_name,
    step_name,
)
from app.dense_slices import slice_file
from app.disk import FileRecord
from app.manifest import Manifest, identify, write_manifest
from app.process_group import CARRIED, MpiGroup, first_error, is_together
from app.tables.interface import DEEP, WIDE, TableSnapshot
from common.files import sync_folder


def save(folder: Path, state: ModelState, manifest: Manifest, group: MpiGroup, sliced: bool = False) -> Path:
    """Write one checkpoint below `folder` and return its path; whole, or (on an error of any rank) not there at all.

    `state.tables` are the rows that this rank owns; those of servers are written by them. `sliced`: so is
    `state.dense` what this rank writes of the dense arrays. Raises OSError, ValueError or MemoryError on all ranks. Any
    other error is one rank's alone, and is to end the job: the others wait for it.
    """
    final = folder / step_name(manifest.step)
    partial = final.with_suffix(PARTIAL)

    def begin() -> None:
        clear_leftovers(folder)
        partial.mkdir(parents=True)

    def finish() -> None:
        files = {name: record for records in written for name, record in records.items()}
        if not sliced:
            files[DENSE] = write_dense(partial / DENSE, state.dense)
        shards = dict.fromkeys((WIDE, DEEP), group.num_owners)
        write_manifest(partial, identify(replace(manifest, shards=shards, files=files)))
        sync_folder(partial)
        put_in_place(partial, final)

    try:
        group.first(begin)
        written = _write_all_shards(partial, state, manifest.parent is not None, group, sliced)
        group.first(finish)
    except BaseException as error:
        if group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        if is_together(error):
            group.call_servers("release", False)
        raise
    group.call_servers("release", True)
    return final


def _write_all_shards(
    partial: Path, state: ModelState, changed_only: bool, group: MpiGroup, sliced: bool
) -> list[dict[str, FileRecord]]:
    """The files of all owners; raises the first one's error on all ranks."""
    records: dict[str, FileRecord] = {}
    error: Exception | None = None
    try:
        records = write_shards(partial, state.tables, group.rank, group.num_owners)
        if sliced:
            name = slice_file(group.rank, group.size)
            records[name] = write_dense(partial / name, state.dense)
    except CARRIED as raised:
        error = raised
    error = first_error(group, error)
    if error is not None:
        raise error
    return [*group.call_servers("write_shards", partial, changed_only), *group.gather(records)]


def write_dense(path: Path, arrays: Mapping[str, np.ndarray]) -> FileRecord:
    """Write and sync a file of dense arrays."""
    return write_arrays(path, {name: column_of(array) for name, array in arrays.items()})


def write_shards(
    partial: Path, tables: Mapping[str, TableSnapshot], owner: int, num_owners: int
) -> dict[str, FileRecord]:
    """Write and sync one owner's files, which hold `tables`: none, where it owns nothing."""
    names = {table: shard_name(table, owner, num_owners) for table in tables}
    return {name: write_arrays(partial / name, shard_columns(tables[table], 0, 1)) for table, name in names.items()}
