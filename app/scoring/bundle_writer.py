"""Write a new bundle: its folder, which appears whole or not at all, its tables, and last its manifest. `fold` makes
one of a delta and the bundles that it needs.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from app.checkpoint.array_writer import Column, column_of, write_arrays
from app.scoring.bundle_folder import (
    BFLOAT16_VERSION,
    EXPIRED_VERSION,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    Manifest,
    check_files,
    checksum_of,
    read_chain,
    read_manifests,
)
from app.scoring.bundle_tables import (
    ALIGNMENT,
    CHECKSUMS,
    DELETED,
    GROUPS_A_BLOCK,
    INDEX,
    NO_IDS,
    TABLES,
    BundleTables,
    BundleTablesSpec,
)
from common.files import (
    FileRecord,
    FolderInUse,
    checksum,
    is_locked,
    lock_folder,
    replace_folder,
    room_for,
    sync_folder,
    write_whole,
)
from data_prep.encoding.encoder import EXPIRED_FILE, LOOKUP_FILE
from data_prep.encoding.prepared_vocabulary import merge_lookups
from data_prep.prepared.expired import union

WRITTEN_ROWS = 1 << 16  # at a time
WORK = ".{}.partial"  # the folder beside a bundle that it is written in


def version_of(rows: dict[str, Any], expired: bool = False) -> int:
    """Return the format version of a bundle of these tables, which may name values as gone."""
    if "initial_dtype" in rows:
        return BFLOAT16_VERSION
    return EXPIRED_VERSION if expired else FORMAT_VERSION


@contextmanager
def new_bundle(output: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a folder that becomes `output` at the end of the block, in place of a bundle that may be there.

    Raises FileExistsError if `output` is there and is no bundle, or is not to be overwritten, and FolderInUse, a
    ValueError, while another process writes it.
    """
    # Two folders down, a manifest is seen by no service, of an earlier release neither.
    work = output.with_name(WORK.format(output.name))
    partial, replaced = work / "new", work / "replaced"
    with lock_folder(work):
        try:
            if replaced.exists() and not output.exists():  # a process was killed between two names
                replaced.rename(output)
            shutil.rmtree(partial, ignore_errors=True)
            _check_output(output, overwrite)
            partial.mkdir()
            with room_for(output):
                yield partial
                for path in [*partial.rglob("*"), partial]:
                    sync_folder(path)  # or file: a bundle that has its name is whole after a power cut, too
            replace_folder(partial, output, replaced)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def is_written(folder: Path, names: str) -> bool:
    """Return whether a process writes a bundle into `folder` under a name of this pattern."""
    return any(is_locked(work) for work in folder.glob(WORK.format(names)))


def clear_leftovers(folder: Path, names: str) -> None:
    """Remove what processes left that were killed as they wrote bundles of this pattern."""
    for work in folder.glob(WORK.format(names)):
        with suppress(FolderInUse, OSError), lock_folder(work):  # another user's stays
            if not (work / "replaced").exists():  # the only copy of a bundle, perhaps
                shutil.rmtree(work)


def _check_output(output: Path, overwrite: bool) -> None:
    if output.exists() and (not (output / MANIFEST).is_file() or FORMAT not in (output / MANIFEST).read_text()):
        raise FileExistsError(f"{output} is there and is no bundle; give another output")
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} is there; replace it with --overwrite or give another output")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Note every file of `folder` in the manifest and write that."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        str(path.relative_to(folder)): FileRecord(size_bytes=path.stat().st_size, checksum=checksum(path))
        for path in paths
    }
    content = asdict(manifest) | {"files": files}
    content["id"] = checksum_of(content)
    write_whole(folder / MANIFEST, json.dumps({**content, "checksum": checksum_of(content)}, indent=1) + "\n")


def numbered(manifest: Manifest, beside: Path) -> Manifest:
    """Return a new bundle's manifest with a serial number above those of the bundles in the folder `beside`.

    It is the time in milliseconds, so that bundles which are exported elsewhere have an order as well. A clock that was
    set back does not lower it.
    """
    serials = [other.serial for other in read_manifests(beside).values()]
    serial = max(time.time_ns() // 1_000_000, 1 + max(serials, default=0))
    return replace(manifest, serial=serial, whole_serial=manifest.whole_serial if manifest.parent else serial)


# Name of an array, ids [n] -> its values for their rows, as the file has them.
ReadStored = Callable[[str, np.ndarray], np.ndarray]


def write_rows(
    folder: Path, spec: BundleTablesSpec, row_ids: np.ndarray, stored: ReadStored, deleted: np.ndarray = NO_IDS
) -> None:
    """Write the rows of `row_ids` [T], ascending, as `stored` gives them. Raises as `stored`."""
    checksums: dict[str, list[int]] = {}
    columns = {}
    for name, (dtype, shape) in spec.layout().items():
        if name == DELETED:
            columns[name] = Column(dtype, shape, lambda: [deleted])
        else:
            columns[name] = Column(dtype, shape, lambda name=name: _pieces(name, spec, row_ids, stored, checksums))  # type: ignore[misc]
    write_arrays(folder / TABLES, columns, alignment=ALIGNMENT)
    arrays = {name: np.array(values, np.uint64).view(np.int64) for name, values in checksums.items()}
    write_arrays(folder / CHECKSUMS, {name: column_of(array) for name, array in arrays.items()})


def _pieces(
    name: str, spec: BundleTablesSpec, row_ids: np.ndarray, stored: ReadStored, checksums: dict[str, list[int]]
) -> Iterator[np.ndarray]:
    """Yield one array in pieces of whole blocks, and append the blocks' checksums to `checksums`."""
    if name.endswith(".padding"):
        yield np.zeros(spec.layout()[name][1], np.uint8)
        return
    block_checksums = checksums.setdefault(name, [])
    if name == INDEX:
        index = _index(row_ids, spec.num_ids)
        block_checksums += _block_checksums(index, GROUPS_A_BLOCK)
        yield index
        return
    for ids in in_pieces(row_ids, max(WRITTEN_ROWS, spec.rows_a_block)):
        piece = stored(name, ids)
        block_checksums += _block_checksums(piece, spec.rows_a_block)
        yield piece


def in_pieces(array: np.ndarray, most: int = WRITTEN_ROWS) -> Iterator[np.ndarray]:
    """Yield an array in parts of at most `most`."""
    for start in range(0, len(array), most):
        yield array[start : start + most]


def _index(row_ids: np.ndarray, num_ids: int) -> np.ndarray:
    """Return the index [G, 2] of ascending `row_ids`."""
    present = np.zeros(-(-num_ids // 64) * 64, np.bool_)
    present[row_ids] = True
    bits = np.packbits(present, bitorder="little").view(np.uint64)
    counts = np.bitwise_count(bits).astype(np.uint64)
    return np.stack([bits, np.cumsum(counts) - counts], axis=1)


def _block_checksums(array: np.ndarray, rows: int) -> list[int]:
    return [xxhash.xxh3_64_intdigest(array[start : start + rows].data) for start in range(0, len(array), rows)]


def chain_row_ids(chain: Sequence[BundleTables]) -> np.ndarray:
    """Return the ids that have a row in a chain, ascending."""
    ids = _row_ids(chain[0])
    for delta in chain[1:]:
        ids = np.setdiff1d(union(ids, _row_ids(delta)), delta.deleted, assume_unique=True)
    return ids


def _row_ids(tables: BundleTables) -> np.ndarray:
    row_ids = [NO_IDS]
    for start, groups in enumerate(in_pieces(tables.index()[:, 0])):
        bits = np.ascontiguousarray(groups).view(np.uint8)
        row_ids.append(np.flatnonzero(np.unpackbits(bits, bitorder="little")) + 64 * WRITTEN_ROWS * start)
    return np.concatenate(row_ids)


def chain_stored(chain: Sequence[BundleTables]) -> ReadStored:
    """Return a function to the rows of a chain as its files have them, for ids that have one."""

    def read(name: str, ids: np.ndarray) -> np.ndarray:
        dtype, shape = chain[0].spec.layout()[name]
        values = np.zeros((len(ids), *shape[1:]), dtype)
        for tables in chain:
            places, is_known = tables.find(ids)
            if is_known.any():
                values[is_known] = tables.stored(name, places[is_known])
        return values

    return read


def fold(delta: str | Path, output: str | Path, overwrite: bool = False) -> Manifest:
    """Write a whole bundle that scores as `delta` and the bundles that it needs, and return its manifest.

    Rows are copied as they are stored, a piece at a time. Raises ValueError if a file is damaged.
    """
    chain = read_chain(Path(delta))
    newest = replace(chain[-1][1], format_version=version_of(chain[-1][1].rows))
    with new_bundle(Path(output), overwrite) as folder:  # before all is read: it may not be possible
        for link in chain:
            check_files(*link, every_byte=True)
        tables = [BundleTables(path, BundleTablesSpec(**manifest.rows)) for path, manifest in chain]
        row_ids = chain_row_ids(tables)
        spec = replace(tables[-1].spec, num_rows=len(row_ids), num_deleted=0)
        own_files = shutil.ignore_patterns(TABLES, CHECKSUMS, LOOKUP_FILE, EXPIRED_FILE, MANIFEST)
        shutil.copytree(delta, folder, ignore=own_files, dirs_exist_ok=True)
        write_rows(folder, spec, row_ids, chain_stored(tables))
        vocabulary = merge_lookups([(path, manifest.vocabulary) for path, manifest in chain], folder)
        whole = replace(newest, vocabulary=vocabulary, rows=spec.as_json())
        write_manifest(folder, replace(whole, parent=None, folded=newest.version, id=""))
    return whole
