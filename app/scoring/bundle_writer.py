"""Write a bundle: its folder, which appears under its name atomically, its tables, and last its manifest.

`fold` merges a delta and the bundles that it needs into one whole bundle.
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

from app.scoring.bundle_folder import (
    BFLOAT16_VERSION,
    EXPIRED_VERSION,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    BundleManifest,
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
from common.arrays.write import ArraySource, column_of, write_arrays
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
from data_prep.prepared.data_files import union

WRITTEN_ROWS = 1 << 16  # Number of rows that are written at once.
WORK = ".{}.partial"  # Name of the folder next to a bundle in which the bundle is written.


def version_of(rows: dict[str, Any], expired: bool = False) -> int:
    """Return the format version of a bundle. `rows` describes its tables, and `expired` says if it lists expired
    values.
    """
    if "initial_dtype" in rows:
        return BFLOAT16_VERSION
    return EXPIRED_VERSION if expired else FORMAT_VERSION


@contextmanager
def new_bundle(output: Path, overwrite: bool) -> Iterator[Path]:
    """Yield an empty folder. At the end of the block it becomes `output`, in place of an existing bundle.

    Raise FileExistsError if `output` exists and is not a bundle, or exists and `overwrite` is not set. Raise
    FolderInUse (a ValueError) if another process is writing this bundle.
    """
    # Write two folders deeper, where no service (of any version) looks for manifests.
    work = output.with_name(WORK.format(output.name))
    partial, replaced = work / "new", work / "replaced"
    with lock_folder(work):
        try:
            # A process was killed between the two renames that replace a bundle.
            if replaced.exists() and not output.exists():
                replaced.rename(output)
            shutil.rmtree(partial, ignore_errors=True)
            _check_output(output, overwrite)
            partial.mkdir()
            with room_for(output):
                yield partial
                for path in [*partial.rglob("*"), partial]:
                    # Sync every file and folder, so that a bundle under its final name is complete even after a power
                    # cut.
                    sync_folder(path)
            replace_folder(partial, output, replaced)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def is_written(folder: Path, names: str) -> bool:
    """Return True if a process is writing a bundle into `folder` under a name that matches the glob pattern `names`."""
    return any(is_locked(work) for work in folder.glob(WORK.format(names)))


def clear_leftovers(folder: Path, names: str) -> None:
    """Remove the unfinished bundles of killed processes in `folder` whose names match the glob pattern `names`."""
    for work in folder.glob(WORK.format(names)):
        # Another user's folders cannot be removed and stay.
        with suppress(FolderInUse, OSError), lock_folder(work):
            # The folder "replaced" may be the only copy of a bundle.
            if not (work / "replaced").exists():
                shutil.rmtree(work)


def _check_output(output: Path, overwrite: bool) -> None:
    if output.exists() and (not (output / MANIFEST).is_file() or FORMAT not in (output / MANIFEST).read_text()):
        raise FileExistsError(f"{output} is there and is no bundle; give another output")
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} is there; replace it with --overwrite or give another output")


def write_manifest(folder: Path, manifest: BundleManifest) -> None:
    """Add the size and checksum of every file in `folder` to the manifest, and write it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        str(path.relative_to(folder)): FileRecord(size_bytes=path.stat().st_size, checksum=checksum(path))
        for path in paths
    }
    content = asdict(manifest) | {"files": files}
    content["id"] = checksum_of(content)
    write_whole(folder / MANIFEST, json.dumps({**content, "checksum": checksum_of(content)}, indent=1) + "\n")


def numbered(manifest: BundleManifest, beside: Path) -> BundleManifest:
    """Return a new bundle's manifest with a serial number above those of the bundles in the folder `beside`.

    The number is the time in milliseconds, so that bundles exported on different machines can be ordered as well. It is
    raised if the clock was set back.
    """
    serials = [other.serial for other in read_manifests(beside).values()]
    serial = max(time.time_ns() // 1_000_000, 1 + max(serials, default=0))
    return replace(manifest, serial=serial, whole_serial=manifest.whole_serial if manifest.parent else serial)


# Function from an array's name and ids [n] to the values of these ids, in the form stored in the file.
ReadStored = Callable[[str, np.ndarray], np.ndarray]


def write_rows(
    folder: Path, spec: BundleTablesSpec, row_ids: np.ndarray, stored: ReadStored, deleted: np.ndarray = NO_IDS
) -> None:
    """Write the rows of the ascending ids `row_ids` [T], which `stored` returns. Raise the errors of `stored`.

    `deleted` are the ids that a delta removes.
    """
    checksums: dict[str, list[int]] = {}
    columns = {}
    for name, (dtype, shape) in spec.layout().items():
        if name == DELETED:
            columns[name] = ArraySource(dtype, shape, lambda: [deleted])
        else:
            columns[name] = ArraySource(dtype, shape, lambda name=name: _pieces(name, spec, row_ids, stored, checksums))  # type: ignore[misc]
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
    """Yield consecutive parts of an array, with at most `most` elements each."""
    for start in range(0, len(array), most):
        yield array[start : start + most]


def _index(row_ids: np.ndarray, num_ids: int) -> np.ndarray:
    """Return the index [G, 2] of the ascending ids `row_ids`."""
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
    """Return a function that reads the rows of a chain in their stored form. The ids passed to it must have a row."""

    def read(name: str, ids: np.ndarray) -> np.ndarray:
        dtype, shape = chain[0].spec.layout()[name]
        values = np.zeros((len(ids), *shape[1:]), dtype)
        for tables in chain:
            places, is_known = tables.find(ids)
            if is_known.any():
                values[is_known] = tables.stored(name, places[is_known])
        return values

    return read


def fold(delta: str | Path, output: str | Path, overwrite: bool = False) -> BundleManifest:
    """Write a whole bundle that scores like `delta` together with the bundles that it needs. Return its manifest.

    Rows are copied in their stored form, one piece at a time. Raise ValueError if a file is damaged.
    """
    chain = read_chain(Path(delta))
    newest = replace(chain[-1][1], format_version=version_of(chain[-1][1].rows))
    # Enter `new_bundle` before reading all files, because it fails at once if the output cannot be written.
    with new_bundle(Path(output), overwrite) as folder:
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
