"""Checkpoints read: a full one alone, or with the deltas that follow it, every byte compared with its checksum.

A chain is a full checkpoint and deltas, each the parent of the next. Of a row that several of them have, the newest
counts.

Letters: T rows, n rows of one read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.checkpoint.array_file import ArrayReader, Place, read_arrays_once, read_places
from app.checkpoint.disk import DamagedFileError, Progress, check_size, checksum_is, ignore
from app.checkpoint.manifest import Manifest, read_manifest, use_an_older
from app.checkpoint.slices import dense_files, join
from app.checkpoint.write import ROW_IDS, ModelState, shard_name, step_name
from app.tables.checks import check_bounds, check_row_ids, check_table
from app.tables.interface import Places, RowArray, TablesSpec, TableState, WriteRows
from app.tables.optimizers import LAST_STEP

PIECE_BYTES = 2 << 20  # of one array, given to the tables at once


@dataclass(frozen=True)
class Link:
    """One checkpoint of a chain."""

    path: Path
    manifest: Manifest

    def table_files(self, table: str) -> list[str]:
        """The names of a table's files."""
        shards = self.manifest.shards[table]
        if not 1 <= shards <= len(self.manifest.files):
            raise ValueError(
                f"{self.path} has {len(self.manifest.files)} files, of which {shards} are the {table} table's"
            )
        return [shard_name(table, shard, shards) for shard in range(shards)]


def chain_of(path: Path) -> list[Link]:
    """What the checkpoint at `path` is made of: a full one first, `path` itself last.

    Raises as `read_manifest`, and ValueError where a parent is not there, or is another one than it was.
    """
    chain = [Link(path, read_manifest(path))]
    while (parent := chain[0].manifest.parent) is not None:
        parent_path = path.with_name(step_name(parent["step"]))
        try:
            manifest = read_manifest(parent_path)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(
                f"{chain[0].path} holds changes since {parent_path.name}, which cannot be used: {error}"
            ) from error
        if manifest.id != parent["id"] or manifest.step >= chain[0].manifest.step:
            raise ValueError(
                f"{chain[0].path} holds changes since {parent_path.name} with id {parent['id']}, but that one has id "
                f"{manifest.id}: it was written anew; {use_an_older(chain[0].path)}"
            )
        chain.insert(0, Link(parent_path, manifest))
    return chain


def chain_files(chain: list[Link]) -> Iterator[tuple[Link, str]]:
    """The files that the last checkpoint of a chain needs: all tables, and its own dense arrays."""
    for link in chain:
        for name in link.manifest.files:
            if link is chain[-1] or not dense_files([name]):
                yield link, name


def chain_bytes(chain: list[Link]) -> int:
    """The size of those files."""
    return sum(link.manifest.files[name]["size_bytes"] for link, name in chain_files(chain))


def verify(checkpoint: Path, progress: Progress = ignore) -> Manifest:
    """The manifest of a checkpoint whose files, and those of its chain, have the size and checksum that they should.

    Raises as `chain_of`, and DamagedCheckpointError naming the file that is missing or differs, with what was found
    and expected.
    """
    chain = chain_of(checkpoint)
    for link, name in chain_files(chain):
        try:
            checksum_is(link.path / name, link.manifest.files[name], progress)
        except DamagedFileError as error:
            raise _damaged(link, name, error) from error
    return chain[-1].manifest


class DamagedCheckpointError(ValueError):
    """A checkpoint with a file that is missing, or is not what the manifest says; a launch notes in `checkpoint` which
    one it was to go on from."""

    checkpoint: Path | None = None


def check_sizes(checkpoint: Path) -> Manifest:
    """As `verify`, but for what only reading the files would show."""
    chain = chain_of(checkpoint)
    for link, name in chain_files(chain):
        try:
            check_size(link.path / name, link.manifest.files[name])
        except DamagedFileError as error:
            raise _damaged(link, name, error) from error
    return chain[-1].manifest


def _damaged(link: Link, name: str, error: DamagedFileError) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"checkpoint file {link.path / name} {error}; {use_an_older(link.path)}")


def read_once(
    checkpoint: Path, spec: TablesSpec, write: WriteRows, progress: Progress = ignore
) -> tuple[Manifest, dict[str, np.ndarray]]:
    """Give all rows of a checkpoint to `write`, and return the manifest and the dense arrays; each byte is read once.

    Raises as `verify`, and ValueError where a table does not fit `spec`: what was written is to be thrown away then.
    """
    chain = chain_of(checkpoint)
    dense: list[tuple[str, np.ndarray]] = []

    def read_dense(reader: ArrayReader) -> None:
        dense.extend((name, reader.next_array(place)) for name, place in reader.places.items())

    for link in chain:
        for table in link.manifest.shards:
            for name in link.table_files(table):
                use = _RowsTo(table, spec, write)
                _read_file_once(link, name, use, progress)
    for name in dense_files(chain[-1].manifest.files):
        _read_file_once(chain[-1], name, read_dense, progress)
    return chain[-1].manifest, join(dense)


def _read_file_once(link: Link, name: str, use: object, progress: Progress) -> None:
    assert callable(use)
    try:
        read_arrays_once(link.path / name, link.manifest.files[name], use, progress)
    except DamagedFileError as error:
        raise _damaged(link, name, error) from error


@dataclass(frozen=True)
class _RowsTo:
    """Gives the rows of one shard to `write`."""

    table: str
    spec: TablesSpec
    write: WriteRows

    def __call__(self, reader: ArrayReader) -> None:
        layout = row_layout(reader.path, reader.places)
        with _named(reader.path):
            self._read(reader, layout)

    def _read(self, reader: ArrayReader, layout: dict[str, RowArray]) -> None:
        row_ids = reader.next_array(reader.places[ROW_IDS])
        check_table(self.table, row_ids, layout, self.spec)
        for name in layout:
            start = 0
            for values in reader.next_rows(reader.places[name], PIECE_BYTES):
                self.write(self.table, name, row_ids[start : start + len(values)], values)
                start += len(values)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in a ValueError."""
    try:
        yield
    except DamagedFileError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def row_layout(path: Path, places: dict[str, Place]) -> dict[str, RowArray]:
    """The state arrays of a table's file, which come after the row ids.

    Raises ValueError, naming file and array, where ids do not come first or an array has not a row for each.
    """
    first, *names = places or [""]
    if first != ROW_IDS or places[first].dtype != "int64" or len(places[first].shape) != 1:
        raise ValueError(f"{path} is of no table: it begins with array {first!r}, expected {ROW_IDS}, int64 [rows]")
    (num_rows,) = places[first].shape
    for name in names:
        shape = places[name].shape
        if len(shape) != 2 or shape[0] != num_rows or shape[1] == 0:
            raise ValueError(f"{path}: array {name!r} has shape {list(shape)}, expected [{num_rows}, width]")
    return {name: RowArray(places[name].dtype, places[name].shape[1]) for name in names}


class FileTable:
    """A `TableSnapshot` of a table in a chain's files: the row ids are in memory, rows are read as they are asked for.

    The files are to be verified before.
    """

    def __init__(self, chain: list[Link], table: str) -> None:
        """Raise ValueError, naming the file, for row ids or arrays that belong to no such table."""
        self._table = table
        self._steps = {link.path / name: link.manifest.step for link in chain for name in link.table_files(table)}
        vocabulary_size = chain[-1].manifest.data["vocabulary_size"]
        self._files, layouts = [], []
        for path in self._steps:
            places = read_places(path)
            layouts.append(row_layout(path, places))
            if layouts[-1] != layouts[0]:
                first = next(iter(self._steps))
                raise ValueError(f"{path} has arrays {layouts[-1]}, and {first} has {layouts[0]}; expected the same")
            arrays = {name: _map(path, place) for name, place in places.items()}
            with _named(path):
                check_row_ids(arrays[ROW_IDS], table, vocabulary_size)
            self._files.append(arrays)
        self.layout = layouts[-1]
        ids = [np.array(arrays[ROW_IDS]) for arrays in self._files]
        self.row_ids, newest = _newest_of_each(np.concatenate(ids))
        sizes = [part.size for part in ids]
        starts = np.cumsum([0, *sizes])
        self._file = np.searchsorted(starts, newest, side="right") - 1
        self._place = newest - starts[self._file]

    def read(self, name: str, places: Places) -> np.ndarray:
        """See `TableSnapshot.read`."""
        files, rows = self._file[places], self._place[places]
        array = self.layout[name]
        values = np.empty((rows.size, array.width), array.dtype)
        for number in np.unique(files):
            chosen = files == number
            values[chosen] = self._files[number][name][rows[chosen]]
            if name == LAST_STEP:  # by which the steps that a row missed are looked up
                path = list(self._steps)[number]
                with _named(path):
                    check_bounds(self._table, name, self.row_ids[places][chosen], values[chosen], self._steps[path])
        return values


def _newest_of_each(row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids, ascending, and where each of them stands last."""
    distinct, from_the_end = np.unique(row_ids[::-1], return_index=True)
    return distinct, row_ids.size - 1 - from_the_end


def _map(path: Path, place: Place) -> np.ndarray:
    if place.num_bytes == 0:
        return np.empty(place.shape, place.dtype)
    return np.memmap(path, place.dtype, "r", place.start, place.shape)


def open_state(checkpoint: Path) -> ModelState:
    """The state of a checkpoint that was verified, its tables in their files."""
    chain = chain_of(checkpoint)
    last = chain[-1]
    paths = [last.path / name for name in dense_files(last.manifest.files)]
    dense = [(name, np.array(_map(path, place))) for path in paths for name, place in read_places(path).items()]
    return ModelState(join(dense), {table: FileTable(chain, table) for table in last.manifest.shards})


def load(checkpoint: Path, progress: Progress = ignore) -> tuple[Manifest, ModelState]:
    """One checkpoint, verified, in memory.

    Raises as `verify`.
    """
    manifest = verify(checkpoint, progress)
    state = open_state(checkpoint)
    tables = {
        table: TableState(rows.row_ids, {name: rows.read(name, slice(None)) for name in rows.layout})
        for table, rows in state.tables.items()
    }
    return manifest, ModelState(state.dense, tables)
