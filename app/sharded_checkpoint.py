"""A checkpoint that all owners of rows write at once, a shard each; rank 0 adds dense arrays and manifest, last."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
from app.disk import FileRecord, sync_folder
from app.manifest import Manifest, identify, write_manifest
from app.process_group import ProcessGroup
from app.tables.interface import DEEP, WIDE, TableSnapshot


def save(folder: Path, state: ModelState, manifest: Manifest, group: ProcessGroup) -> Path:
    """Write one checkpoint below `folder` and return its path; whole, or (on an error of any rank) not there at all.

    `state.tables` are the rows that this rank owns. Raises OSError on all ranks.
    """
    final = folder / step_name(manifest.step)
    partial = final.with_suffix(PARTIAL)

    def begin() -> None:
        clear_leftovers(folder)
        partial.mkdir(parents=True)

    def finish() -> None:
        files = {name: record for records in written for name, record in records.items()}
        files[DENSE] = write_arrays(partial / DENSE, {name: column_of(array) for name, array in state.dense.items()})
        shards = dict.fromkeys((WIDE, DEEP), group.size)
        write_manifest(partial, identify(replace(manifest, shards=shards, files=files)))
        sync_folder(partial)
        put_in_place(partial, final)

    try:
        group.first(begin)
        written = _write_shards(partial, state.tables, group)
        group.first(finish)
    except OSError:
        if group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _write_shards(
    partial: Path, tables: Mapping[str, TableSnapshot], group: ProcessGroup
) -> list[dict[str, FileRecord]]:
    """Each rank's files, by rank; raises the first rank's OSError on all ranks."""
    records, error = {}, ""
    try:
        for table, rows in tables.items():
            name = shard_name(table, group.rank, group.size)
            records[name] = write_arrays(partial / name, shard_columns(rows, 0, 1))
    except (OSError, MemoryError) as raised:
        error = f"rank {group.rank}: {raised}"
    results = group.gather((records, error))
    errors = [error for _, error in results if error]
    if errors:
        raise OSError(errors[0])
    return [records for records, _ in results]
