"""Open checkpoints: a full one, or a delta together with the older checkpoints that it needs.

A chain is a full checkpoint followed by deltas, each of which has the checkpoint before it as its parent. Several
checkpoints of the chain may contain the same row. Its newest version is valid, unless a later delta lists the row as
removed.
"""

from __future__ import annotations

import math
import mmap
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from app.checkpoint.manifest import (
    Manifest,
    ParentRecord,
    UnusableCheckpointError,
    read_manifest,
    use_an_older,
    what_and_advice,
)
from app.checkpoint.write import (
    DENSE,
    EXPIRED,
    EXPIRED_IDS,
    EXPIRY,
    LAST_TOUCHED,
    MOMENT,
    ROW_IDS,
    ModelState,
    shard_name,
    step_name,
)
from app.tables.checks import check_bounds, check_row_ids, check_table
from app.tables.interface import Indices, PlaceRows, RowArray, TablesSpec
from app.tables.optimizers import LAST_STEP, MEAN, MEAN_STEP
from common.arrays.disk import ArrayReader, Progress, no_progress, read_arrays_once, read_checked
from common.arrays.format import ArrayEntry, arrays_in, dtype_of, map_arrays, map_file, read_entries
from common.files import DamagedFileError, FileRecord, check_size
from data_prep.prepared.data_files import union

# Release 1.0.0 could split the tower (the dense layers of the deep part) over ranks, and each rank then saved slices of
# its arrays in a file of its own. The program in examples/tower_over_ranks still does so. The name of a slice has its
# bounds in the whole array and the shape of that array: `tower.matrix_0[0:104, 0:32] of [208, 32]`. A name without
# bounds belongs to a whole array.
SLICE_FILE = re.compile(r"dense-(\d+)-of-(\d+)\.safetensors")
SLICE_NAME = re.compile(r"(.+)\[((?:\d+:\d+, )*\d+:\d+)\] of \[((?:\d+, )*\d+)\]")

PIECE_BYTES = 4 << 20  # Rows are passed to the tables in blocks of at most this many bytes per array.


class DamagedCheckpointError(UnusableCheckpointError):
    """A file of a checkpoint is missing or differs from the size or checksum in the manifest."""

    # Path of the checkpoint that a training was to resume from. `Launch` sets it when it handles the error.
    checkpoint: Path | None = None


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: a full one, or a delta, which holds only the rows that changed since an older one. Create
    it with `Checkpoint.open`.

    The manifests of the checkpoint and of all checkpoints that it needs have been read, and fit together. The other
    files are read by the methods.
    """

    path: Path
    manifest: Manifest
    # The older checkpoints whose rows a delta needs: a full one, then the deltas up to this one. Empty if this
    # checkpoint is a full one.
    older: tuple[Checkpoint, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def open(cls, path: Path, read: Callable[[Path], Manifest] = read_manifest) -> Checkpoint:
        """Open the checkpoint at `path`, with the checkpoints that it needs. Only their manifests are read, each once.

        `read` returns the manifest in a checkpoint's folder, and its errors are passed on. Raise ValueError if the
        parent of a delta (the checkpoint that it builds on) is missing, or was replaced by another checkpoint.
        """
        newest_first = [(path, read(path))]
        while (parent := newest_first[-1][1].parent) is not None:
            child, manifest = newest_first[-1]
            parent_path = path.with_name(step_name(parent["step"]))
            newest_first.append((parent_path, _read_parent(child, manifest, parent_path, parent, read)))
        chain: tuple[Checkpoint, ...] = ()
        for member_path, manifest in reversed(newest_first):
            chain = (*chain, cls(member_path, manifest, chain))
        return chain[-1]

    @property
    def chain(self) -> tuple[Checkpoint, ...]:
        """The checkpoints from which the rows of this one are read: a full one first, then deltas (changed rows only),
        this one last.
        """
        return (*self.older, self)

    @property
    def num_bytes(self) -> int:
        return sum(record["size_bytes"] for _, record in self.files())

    def files(self) -> Iterator[tuple[Path, FileRecord]]:
        """Yield path and record of each file that makes up the state.

        These are all files of this checkpoint and, of the older checkpoints that it needs, all files but those with
        dense arrays (the arrays outside the tables).
        """
        for member in self.chain:
            for name, record in member.manifest.files.items():
                if member is self or not dense_files([name]):
                    yield member.path / name, record

    def table_files(self, table: str) -> list[Path]:
        """Return the paths of a table's files in this checkpoint alone, without the checkpoints that it needs."""
        shards, num_files = self.manifest.shards[table], len(self.manifest.files)
        if not 1 <= shards <= num_files:
            raise ValueError(f"{self.path} has {num_files} files, of which {shards} are the {table} table's")
        return [self.path / shard_name(table, shard, shards) for shard in range(shards)]

    def is_kept(self) -> bool:
        """Return True if the folder `path` still holds this checkpoint, and False if the checkpoint was removed,
        replaced or rewritten since it was opened.
        """
        try:
            return read_manifest(self.path) == self.manifest
        except (FileNotFoundError, ValueError):
            return False

    def verify(self, progress: Progress = no_progress, sizes_only: bool = False) -> None:
        """Compare the files that make up the state with their records in the manifests.

        Raise DamagedCheckpointError if a file is missing or has another checksum. With `sizes_only`, no file is read:
        raise if a file is missing or has another size.
        """
        for path, record in self.files():
            with _naming_damage(path):
                if sizes_only:
                    check_size(path, record)
                else:
                    with read_checked(path, record, progress):
                        pass

    def read_once(self, spec: TablesSpec, place: PlaceRows, wanted: TablesSpec | None = None) -> dict[str, np.ndarray]:
        """Copy the checkpoint's table rows into tables, and return the dense arrays (weights outside the tables) by
        name.

        `place` is called with a table's name and row ids. It marks these rows of the table in memory as present, and
        returns the function with which their arrays are then written (`PlaceRows`). `wanted` describes the tables if
        they have fewer state arrays than the checkpoint, which `spec` describes. The other arrays of the checkpoint are
        then left out.

        Each file is read once, and verified meanwhile. Raise DamagedCheckpointError if a file is missing or damaged,
        and ValueError if a table's rows do not fit the tables that `spec` describes. After an error, the rows written
        so far are invalid.
        """
        expired, wanted = self.expired_later(), wanted or spec
        for member in self.chain:
            for table in member.manifest.shards:
                for path in member.table_files(table):
                    write_rows = partial(_write_rows, table, spec, wanted, place, expired[member.path])
                    member._read_file(path.name, write_rows)
        return join(array for name in dense_files(self.manifest.files) for array in self._arrays(name).items())

    def state(self) -> ModelState:
        """Return the training state that this checkpoint has saved. Its table rows are only read from the files when
        used.

        The files are not verified: call `verify` first.
        """
        paths = [self.path / name for name in dense_files(self.manifest.files)]
        dense = [(name, np.array(array)) for path in paths for name, array in map_arrays(path).items()]
        tables = {table: FileTable(self, table) for table in self.manifest.shards}
        touched = self.last_touched()
        return ModelState(join(dense), tables, {} if touched is None else {LAST_TOUCHED: touched})

    def expiry(self) -> dict[str, np.ndarray]:
        """Return the arrays, by name, of this checkpoint's file expiry.safetensors, or {} if it has no such file.

        The arrays say when rows were last updated, and which rows have expired (lost their ids). Raise
        DamagedCheckpointError if the file is damaged.
        """
        arrays = self._arrays(EXPIRY) if EXPIRY in self.manifest.files else {}
        if EXPIRED_IDS in arrays:
            with _naming_file(self.path / EXPIRY):
                check_row_ids(arrays[EXPIRED_IDS], "expired", self.manifest.data["vocabulary_size"])
        return arrays

    def _arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return all arrays of one file of this checkpoint, by name. The file is verified while it is read."""
        arrays: dict[str, np.ndarray] = {}

        def read(reader: ArrayReader) -> None:
            arrays.update((key, reader.next_array(entry)) for key, entry in reader.entries.items())

        self._read_file(name, read)
        return arrays

    def _read_file(self, name: str, use: Callable[[ArrayReader], None]) -> None:
        with _naming_damage(self.path / name):
            read_arrays_once(self.path / name, self.manifest.files[name], use)

    def expired_later(self) -> dict[Path, np.ndarray]:
        """Return for each checkpoint of the chain (a full one and its deltas) the ids of the rows that a later
        checkpoint lists as removed, by the checkpoint's path.
        """
        later, expired = np.zeros(0, np.int64), {}
        for member in reversed(self.chain):
            expired[member.path] = later
            later = union(later, member.expiry().get(EXPIRED_IDS, later))
        return expired

    def last_touched(self) -> np.ndarray | None:
        """Return the moment at which the table row of each id was last updated, int64 [V], or EXPIRED if the
        categorical value with this id has expired (lost the id). A moment is the number of log rows that the model was
        trained on up to then, or a time in seconds (`app/online/expiry.py`).

        Return None if a checkpoint of the chain does not record such moments.
        """
        first, *deltas = self.chain
        touched = first.expiry().get(LAST_TOUCHED)
        for member in deltas:
            arrays = member.expiry()
            if touched is None or MOMENT not in arrays:
                return None
            moment, num_new = arrays[MOMENT], member.manifest.data["vocabulary_size"] - touched.size
            touched = np.concatenate([touched, np.full(num_new, moment)])
            # Rows that were last updated before moments were recorded have the moment 0. They now get the moment at
            # which this checkpoint, a delta, was written.
            touched[touched == 0] = moment
            for table in member.manifest.shards:
                for path in member.table_files(table):
                    touched[map_arrays(path)[ROW_IDS]] = moment
            touched[arrays[EXPIRED_IDS]] = EXPIRED
        return touched


def scoring_arrays(dense: dict[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    """Return the dense arrays (weights outside the tables) with which a checkpoint scores, by name.

    `dense` are the arrays that the checkpoint stores. If it also stores running means of the weights (train.ema_decay),
    they replace the weights. At `step` 0, before the first step, the weights stay, because there are no means yet.
    """
    prefix = f"{MEAN}."
    means = {name.removeprefix(prefix): array for name, array in dense.items() if name.startswith(prefix)}
    return dense | means if step else dense


def _read_parent(
    child: Path, manifest: Manifest, path: Path, expected: ParentRecord, read: Callable[[Path], Manifest]
) -> Manifest:
    """Return the manifest of the checkpoint at `path`, which must be the parent of the delta at `child`.

    `manifest` is the delta's own manifest, and `expected` the parent that it names. Raise UnusableCheckpointError if
    `path` has another checkpoint or none.
    """
    try:
        parent = read(path)
    except (ValueError, FileNotFoundError) as error:
        what, advice = what_and_advice(error)
        what = f"{child} holds changes since {path.name}, which cannot be used: {what}"
        raise UnusableCheckpointError(what, advice) from error
    if parent.id != expected["id"] or parent.step >= manifest.step:
        raise UnusableCheckpointError(
            f"{child} holds changes since {path.name} with id {expected['id']}, but that one has id {parent.id}: it "
            "was written anew",
            use_an_older(child),
        )
    return parent


@contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except DamagedFileError as error:
        raise DamagedCheckpointError(f"checkpoint file {path} {error}", use_an_older(path.parent)) from error


@contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    try:
        yield
    except DamagedFileError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _write_rows(
    table: str, spec: TablesSpec, wanted: TablesSpec, place: PlaceRows, expired: np.ndarray, reader: ArrayReader
) -> None:
    """Write the rows of one file of `table` into tables. `Checkpoint.read_once` explains `spec`, `wanted` and `place`.

    The rows of the ids `expired`, which later checkpoints of the chain list as removed, are left out.
    """
    layout = row_layout(reader.path, reader.entries)
    with _naming_file(reader.path):
        row_ids = reader.next_array(reader.entries[ROW_IDS])
        check_table(table, row_ids, layout, spec)
        counts = ~np.isin(row_ids, expired) if expired.size else None
        write = place(table, row_ids if counts is None else row_ids[counts])
        kept = wanted.layout(table)
        for name in layout:
            start = num_written = 0
            for values in reader.next_rows(reader.entries[name], PIECE_BYTES):
                if name not in kept:
                    continue
                counted = values if counts is None else values[counts[start : start + len(values)]]
                write(name, counted, num_written)
                start, num_written = start + len(values), num_written + len(counted)


def row_layout(path: Path, entries: dict[str, ArrayEntry]) -> dict[str, RowArray]:
    """Return dtype and width of each state array (rows or optimizer state) in a table's file, by name. `entries`
    describes the arrays in the file `path`.

    Raise ValueError, naming file and array, unless the row ids come first and every other array has one row per id.
    """
    first, *names = entries or [""]
    if first != ROW_IDS or entries[first].dtype != "int64" or len(entries[first].shape) != 1:
        raise ValueError(f"{path} is of no table: it begins with array {first!r}, expected {ROW_IDS}, int64 [rows]")
    (num_rows,) = entries[first].shape
    for name in names:
        shape = entries[name].shape
        if len(shape) != 2 or shape[0] != num_rows or shape[1] == 0:
            raise ValueError(f"{path}: array {name!r} has shape {list(shape)}, expected [{num_rows}, width]")
    return {name: RowArray(entries[name].dtype, entries[name].shape[1]) for name in names}


class FileTable:
    """The rows of one table in a checkpoint, with the interface `TableSnapshot`. They are the touched rows: those that
    were updated or loaded.

    The files of the checkpoint and, for a delta, of the older checkpoints that it needs, are mapped into memory, and
    only the pages of one call of `read` stay there. The files must have been verified.
    """

    def __init__(self, checkpoint: Checkpoint, table: str) -> None:
        """Map the files of `table` in `checkpoint` and in the older checkpoints that it needs, and find the row ids.

        Raise ValueError, naming the file, if row ids or arrays in it cannot belong to this table.
        """
        self._table = table
        self._files: list[_TableFile] = []
        row_ids, expired = [], checkpoint.expired_later()
        for member in checkpoint.chain:
            for path in member.table_files(table):
                file = _TableFile(path, member.manifest.step)
                first = self._files[0] if self._files else file
                if file.layout != first.layout:
                    raise ValueError(
                        f"{path} has arrays {file.layout}, and {first.path} has {first.layout}; expected the same"
                    )
                with _naming_file(path):
                    check_row_ids(file.arrays[ROW_IDS], table, checkpoint.manifest.data["vocabulary_size"])
                self._files.append(file)
                ids, removed = file.arrays[ROW_IDS], expired[member.path]
                row_ids.append(ids[~np.isin(ids, removed)] if removed.size else ids)
        self.layout = self._files[0].layout
        self.row_ids = row_ids[0] if len(row_ids) == 1 else union(*row_ids)

    def read(self, name: str, indices: Indices) -> np.ndarray:
        row_ids, array = self.row_ids[indices], self.layout[name]
        values = np.empty((row_ids.size, array.width), dtype_of(array.dtype))
        # Several files may have a version of the same row. The newest is valid, so search newer checkpoints first.
        missing = np.arange(row_ids.size)
        for file in reversed(self._files):
            ids, wanted = file.arrays[ROW_IDS], row_ids[missing]
            places = np.searchsorted(ids, wanted)
            is_there = np.searchsorted(ids, wanted, side="right") > places
            of_file, missing = missing[is_there], missing[~is_there]
            values[of_file] = file.arrays[name][places[is_there]]
            # LAST_STEP and MEAN_STEP hold the step at which each row or its running mean was last updated. Other code
            # uses the steps as indices, so raise an error for a step that is negative or after the checkpoint's step.
            if name in (LAST_STEP, MEAN_STEP):
                with _naming_file(file.path):
                    check_bounds(self._table, name, row_ids[of_file], values[of_file], file.step)
            file.content.madvise(mmap.MADV_DONTNEED)
        return values


class _TableFile:
    """One file of a table: its arrays by name, mapped into memory, and the number of the step that it was saved at."""

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step
        entries, self.content = read_entries(path), map_file(path)
        self.layout, self.arrays = row_layout(path, entries), arrays_in(self.content, entries)


def dense_files(names: Iterable[str]) -> list[str]:
    """Select, from the names of a checkpoint's files, the files with dense arrays (weights outside the tables). Return
    their names.
    """
    return [name for name in names if name == DENSE or SLICE_FILE.fullmatch(name)]


def join(arrays: Iterable[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Join arrays that ranks have saved in slices, and return whole arrays by name. `arrays` has a pair (name, values)
    for each whole array and slice.

    Raise ValueError if the slices of an array do not cover it exactly once.
    """
    whole: dict[str, np.ndarray] = {}
    slices: dict[str, list[tuple[str, str, np.ndarray]]] = {}
    for name, values in arrays:
        match = SLICE_NAME.fullmatch(name)
        if match is None:
            whole[name] = values
        else:
            key, places, lengths = match.groups()
            slices.setdefault(key, []).append((places, lengths, values))
    return whole | {name: _join_slices(name, parts) for name, parts in slices.items()}


def _join_slices(name: str, slices: list[tuple[str, str, np.ndarray]]) -> np.ndarray:
    """Return the whole array `name`, joined from its slices. The tuple of a slice has its bounds in the array as text,
    the shape of the whole array as text, and its values.

    Raise ValueError if the slices do not cover the array exactly once.
    """
    lengths, dtype = slices[0][1], slices[0][2].dtype
    shape = tuple(int(length) for length in lengths.split(", "))
    count = sum(values.size for _, _, values in slices)
    if count != math.prod(shape):  # Check the number of values before allocating memory for the whole array.
        raise ValueError(f"the slices of {name} have {count} values, the whole has {math.prod(shape)}")
    whole, is_filled = np.empty(shape, dtype), np.zeros(shape, bool)
    for places, of, values in slices:
        bounds = [tuple(map(int, place.split(":"))) for place in places.split(", ")]
        fits = of == lengths and values.dtype == dtype and values.shape == tuple(end - start for start, end in bounds)
        if not fits or len(bounds) != len(shape) or any(map(operator.gt, (end for _, end in bounds), shape)):
            raise ValueError(
                f"the slice {name}[{places}] of [{of}] is {values.dtype} {list(values.shape)}; expected one of "
                f"{dtype} [{lengths}]"
            )
        block = tuple(slice(*bound) for bound in bounds)
        whole[block], is_filled[block] = values, True
    if not is_filled.all():
        raise ValueError(f"the slices of {name} overlap")
    return whole
