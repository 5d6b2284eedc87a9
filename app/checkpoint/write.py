"""Write checkpoints, each of which is either complete or does not exist.

    <folder>/step-00001000/   dense.safetensors                     model and dense optimizers
                              <table>-<shard>-of-<shards>.safetensors   row_ids, rows, optimizer state
                              expiry.safetensors                    only in online runs in which values expire
                              manifest.json                         step, epoch, config, files with checksums

Files are written into `step-00001000.partial`, synced, and the folder is renamed. A folder without a manifest is
ignored. Row r is in shard r mod shards. Only touched rows are stored: rows that were updated or loaded. All others have
their initial values, which are a function of the seed in the manifest. A delta contains the rows that changed since its
parent (`app/checkpoint/read.py` combines them).

In expiry.safetensors, a full checkpoint has `last_touched` [V] int64: the moment at which the row of each id was last
touched, or EXPIRED if the value of the id has expired. A delta has in `gone` [g] the ids, ascending, whose values
expired since its parent. Both have the `moment` [1] at which they were made. A moment is the number of log rows that
the model was trained on up to then, or a time in seconds.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from app.checkpoint.manifest import EXPIRY_VERSION, FORMAT_VERSION, Manifest, identify, write_manifest
from app.distributed.process_group import ONE_PROCESS, ProcessGroup, is_collective, on_all_ranks
from app.tables.interface import DEEP, WIDE, Indices, RowArray, TableSnapshot
from common.arrays.disk import ArraySource, Progress, RowSource, column_of, no_progress, write_arrays
from common.arrays.format import dtype_of, item_bytes
from common.files import FileRecord, replace_folder, room_for, sync_folder

PARTIAL = ".partial"

REPLACED = ".replaced"

LEFTOVER = re.compile(rf"step-\d+({re.escape(PARTIAL)}|{re.escape(REPLACED)})")

DENSE = "dense.safetensors"

ROW_IDS = "row_ids"

EXPIRY = "expiry.safetensors"
LAST_TOUCHED, MOMENT, EXPIRED_IDS = "last_touched", "moment", "gone"

EXPIRED = -1


@dataclass(frozen=True)
class ModelState:
    """The state of a run: dense arrays (all arrays outside the tables) by name, and the rows of each table that were
    updated or loaded (touched rows).

    In online runs, `expiry` has the arrays of the file expiry.safetensors, which say when rows were last updated and
    which have expired (lost their ids).
    """

    dense: dict[str, np.ndarray]
    tables: Mapping[str, TableSnapshot]
    expiry: Mapping[str, np.ndarray] = field(default_factory=dict)


@runtime_checkable
class ReadsInto(Protocol):
    """A `TableSnapshot` (a table's rows at one moment) that can also read rows into memory which the caller has
    allocated.
    """

    def read_into(self, name: str, indices: Indices, out: np.ndarray) -> None:
        """Write the state array `name` (weights or optimizer state) of the rows `row_ids[indices]` into `out` [n,
        width], an aligned array in C order.
        """
        ...


def step_name(step: int) -> str:
    """Return the name of the folder of the checkpoint after `step` steps, such as step-00001000."""
    return f"step-{step:08d}"


def shard_name(table: str, shard: int, shards: int) -> str:
    """Return the name of file number `shard` of the `shards` files that hold a table's rows, such as
    deep-0-of-4.safetensors.
    """
    return f"{table}-{shard}-of-{shards}.safetensors"


def write_checkpoint(
    folder: Path,
    state: ModelState,
    manifest: Manifest,
    num_shards: int = 1,
    progress: Progress = no_progress,
    group: ProcessGroup = ONE_PROCESS,
) -> Path:
    """Write one checkpoint into `folder` and return its path. After any error `folder` has no new checkpoint.

    The caller holds the lock of `folder`. A single process writes `num_shards` files per table. With a `group` of
    several processes, all ranks call this function together. `state.tables` are then the rows that this rank owns, and
    servers write the rows that they own. Rank 0 writes `state.dense`.

    If one rank raises an OSError, ValueError or MemoryError, all ranks raise it. A rank that raises another error must
    end the job, because the other ranks wait for it.
    """
    final = folder / step_name(manifest.step)
    partial = final.with_suffix(PARTIAL)

    @room_for(final, then="")
    def begin() -> None:
        clear_leftovers(folder)
        partial.mkdir(parents=True)

    @room_for(final, then="")
    def write_own() -> dict[str, FileRecord]:
        records = {}
        if group.rank == 0:
            columns = {key: column_of(array) for key, array in state.dense.items()}
            records[DENSE] = write_arrays(partial / DENSE, columns, progress)
        if state.expiry:
            records[EXPIRY] = write_arrays(partial / EXPIRY, {k: column_of(each) for k, each in state.expiry.items()})
        if group.sharded:
            return records | write_shards(partial, state.tables, group.rank, group.num_owners)
        for table, rows in state.tables.items():
            for shard in range(num_shards):
                name = shard_name(table, shard, num_shards)
                records[name] = write_arrays(partial / name, shard_columns(rows, shard, num_shards), progress)
        return records

    @room_for(final, then="")
    def finish() -> None:
        files = {name: record for records in of_ranks for name, record in records.items()}
        shards = dict.fromkeys(state.tables, num_shards)
        if group.sharded:
            shards = dict.fromkeys((WIDE, DEEP), group.num_owners)
        version = EXPIRY_VERSION if EXPIRY in files else FORMAT_VERSION
        write_manifest(partial, identify(replace(manifest, shards=shards, files=files, format_version=version)))
        sync_folder(partial)
        replaced = final.with_suffix(REPLACED)
        replace_folder(partial, final, replaced)
        shutil.rmtree(replaced, ignore_errors=True)

    try:
        group.on_rank0(begin)
        records = on_all_ranks(group, write_own)
        of_ranks = [*group.rpc("write_shards", partial, manifest.parent is not None), *group.gather(records)]
        group.on_rank0(finish)
    except BaseException as error:
        if group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        if is_collective(error):
            group.rpc("release", False)
        raise
    group.rpc("release", True)
    return final


def write_shards(
    partial: Path, tables: Mapping[str, TableSnapshot], owner: int, num_owners: int
) -> dict[str, FileRecord]:
    """Write the rows that this process owns into the folder `partial`, one file for each table, and sync the files.

    The process is number `owner` of the `num_owners` processes that own rows. `tables` has only rows that it owns, and
    is empty if it owns none. Return the sizes and checksums of the files (`FileRecord`) by name.
    """
    names = {table: shard_name(table, owner, num_owners) for table in tables}
    return {name: write_arrays(partial / name, shard_columns(tables[table], 0, 1)) for table, name in names.items()}


def shard_columns(rows: TableSnapshot, shard: int, num_shards: int) -> dict[str, ArraySource]:
    """Return the row ids, weights and optimizer state to write into file number `shard` of a table's files, by array
    name.
    """
    indices: Indices = slice(None) if num_shards == 1 else np.flatnonzero(rows.row_ids % num_shards == shard)
    row_ids = rows.row_ids[indices]

    def column_of_rows(name: str, array: RowArray) -> ArraySource:
        def read(piece: slice, out: np.ndarray) -> None:
            places = piece if isinstance(indices, slice) else indices[piece]
            values = out.view(dtype_of(array.dtype)).reshape(-1, array.width)
            if isinstance(rows, ReadsInto) and values.flags.aligned:
                rows.read_into(name, places, values)
            else:
                values[:] = rows.read(name, places)

        of_rows = RowSource(row_ids.size, array.width * item_bytes(array.dtype), read)
        return ArraySource(array.dtype, (row_ids.size, array.width), lambda: [of_rows])

    return {ROW_IDS: column_of(row_ids)} | {name: column_of_rows(name, array) for name, array in rows.layout.items()}


def clear_leftovers(folder: Path) -> None:
    """Remove the unfinished checkpoints that interrupted saves have left in `folder`.

    If a save was interrupted while it replaced a complete checkpoint, the complete checkpoint gets its name back. Only
    the process that holds the lock of `folder` may call this function, because the unfinished checkpoint of a running
    save would be removed, too.
    """
    leftovers = [path for path in folder.glob("step-*") if LEFTOVER.fullmatch(path.name)]
    for path in leftovers:
        if path.suffix == REPLACED and not path.with_suffix("").exists():
            path.rename(path.with_suffix(""))
        else:
            shutil.rmtree(path)
