"""Write the folder, the tables and the manifest of a bundle. The folder appears under its final name only when it is
complete.

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
    SERVED_VERSION,
    VECTOR_VERSION,
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
    count_ones,
)
from common.arrays.disk import ArraySource, column_of, write_arrays
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

WRITTEN_ROWS = 1 << 16  # Number of table rows that are held in memory at a time while a bundle is written.
# Name of the folder in which a bundle is first written. It lies beside the bundle's final folder, whose name takes the
# place of {}.
WORK = ".{}.partial"


def version_of(model: dict[str, Any], rows: dict[str, Any], expired: bool = False) -> int:
    """Return the lowest format version that can express a bundle. `model` and `rows` are the manifest's descriptions of
    the model and of the tables. `expired` says if the bundle is a delta that lists expired values.
    """
    if "serve_as" in model:
        return SERVED_VERSION
    if "vectors" in model:
        return VECTOR_VERSION
    if "initial_dtype" in rows:
        return BFLOAT16_VERSION
    return EXPIRED_VERSION if expired else FORMAT_VERSION


@contextmanager
def new_bundle(output: Path, overwrite: bool) -> Iterator[Path]:
    """Yield an empty folder to write a bundle into. At the end of the `with` block it is renamed to `output`, and a
    bundle that was there is removed.

    Raise FileExistsError if `output` exists and is not a bundle, or exists and `overwrite` is not set. Raise
    FolderInUse (a ValueError) if another process is writing this bundle.
    """
    # Write the new bundle in a folder two levels below the folder of the bundles. Services look for manifests only one
    # level below that folder, so they do not see an unfinished bundle.
    work = output.with_name(WORK.format(output.name))
    partial, replaced = work / "new", work / "replaced"
    with lock_folder(work):
        try:
            # Replacing a bundle takes two renames. If an earlier process was killed between these two renames, put the
            # old bundle back.
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
    """Return True if a process is now writing a bundle into `folder`. Only bundles whose final names match the glob
    pattern `names` count.
    """
    return any(is_locked(work) for work in folder.glob(WORK.format(names)))


def clear_leftovers(folder: Path, names: str) -> None:
    """Remove unfinished bundles in `folder` whose final names match the glob pattern `names` and whose writing
    processes were killed.
    """
    for work in folder.glob(WORK.format(names)):
        # Ignore a folder that is in use, or that cannot be removed because it belongs to another user.
        with suppress(FolderInUse, OSError), lock_folder(work):
            # The folder "replaced" holds an old bundle. If the writing process was killed between its two renames, no
            # other copy of the old bundle exists, so keep it.
            if not (work / "replaced").exists():
                shutil.rmtree(work)


def _check_output(output: Path, overwrite: bool) -> None:
    if output.exists() and (not (output / MANIFEST).is_file() or FORMAT not in (output / MANIFEST).read_text()):
        raise FileExistsError(f"{output} is there and is no bundle; give another output")
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} is there; replace it with --overwrite or give another output")


def write_manifest(folder: Path, manifest: BundleManifest) -> None:
    """Write manifest.json into `folder`: `manifest` with the size and checksum of every file in `folder`, and with an
    id, which is a checksum of the content.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        str(path.relative_to(folder)): FileRecord(size_bytes=path.stat().st_size, checksum=checksum(path))
        for path in paths
    }
    content = asdict(manifest) | {"files": files}
    content["id"] = checksum_of(content)
    write_whole(folder / MANIFEST, json.dumps({**content, "checksum": checksum_of(content)}, indent=1) + "\n")


def numbered(manifest: BundleManifest, beside: Path) -> BundleManifest:
    """Return a copy of a manifest with a new serial number, which is higher than the serial number of any bundle in the
    folder `beside`.

    The number is the time in milliseconds since 1970, so that bundles exported on different machines can be ordered as
    well. If the clock is behind the highest number in the folder, the new number is the highest number plus one.
    """
    serials = [other.serial for other in read_manifests(beside).values()]
    serial = max(time.time_ns() // 1_000_000, 1 + max(serials, default=0))
    return replace(manifest, serial=serial, whole_serial=manifest.whole_serial if manifest.parent else serial)


# Function that takes the name of an array in the file TABLES and ids [n]. It returns the array's entries for these ids,
# in the dtype in which the file stores the array.
ReadStored = Callable[[str, np.ndarray], np.ndarray]


def write_rows(
    folder: Path, spec: BundleTablesSpec, row_ids: np.ndarray, stored: ReadStored, deleted: np.ndarray = NO_IDS
) -> None:
    """Write tables.safetensors and checksums.safetensors into `folder`.

    The files hold the embedding rows of the ascending ids `row_ids` [T]. The function `stored` reads these rows, and
    its errors pass through. For a delta (a bundle with changed rows only), `deleted` holds the ids whose rows the delta
    removes.
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
    """Yield the array `name` of tables.safetensors in consecutive parts, each of which consists of whole blocks. Append
    the checksums of its blocks to `checksums[name]`.
    """
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
    """Yield consecutive parts of an array along its first axis. Each part has at most `most` entries."""
    for start in range(0, len(array), most):
        yield array[start : start + most]


def _index(row_ids: np.ndarray, num_ids: int) -> np.ndarray:
    """Return the array `index`, uint64 [G, 2], of tables that have rows for `row_ids`: a bit mask for each group of 64
    ids, and the number of rows before the group.
    """
    present = np.zeros(-(-num_ids // 64) * 64, np.bool_)
    present[row_ids] = True
    bits = np.packbits(present, bitorder="little").view(np.uint64)
    counts = count_ones(bits).astype(np.uint64)
    return np.stack([bits, np.cumsum(counts) - counts], axis=1)


def _block_checksums(array: np.ndarray, rows: int) -> list[int]:
    return [xxhash.xxh3_64_intdigest(array[start : start + rows].data) for start in range(0, len(array), rows)]


def chain_row_ids(chain: Sequence[BundleTables]) -> np.ndarray:
    """Return the ascending ids that have a row in a chain (a bundle's tables followed by those of its deltas) and whose
    row was not deleted later.
    """
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
    """Return a function that reads arrays of a chain (a bundle's tables followed by those of its deltas) without
    converting their dtype. It returns each id's newest entry. Every id passed to it must have a row.
    """

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
    """Merge a delta (a bundle with changed rows only) and the bundles that it needs into one whole bundle `output`,
    which gives the same scores. Return the manifest of `output`.

    Rows are copied without converting their dtype, WRITTEN_ROWS at a time. Raise ValueError if a file is damaged.
    """
    chain = read_chain(Path(delta))
    newest = chain[-1][1]
    newest = replace(newest, format_version=version_of(newest.model, newest.rows))
    # Enter `new_bundle` before checking all files, which takes long, because `new_bundle` fails at once if the output
    # cannot be written.
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
