"""Deltas: the rows that differ from a parent's, and a chain folded into a whole bundle.

Letters: n ids.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from app.scoring.bundle_folder import MANIFEST, Manifest, check_files, new_bundle, read_chain, write_manifest
from app.scoring.bundle_tables import (
    CHECKSUMS,
    INDEX,
    TABLES,
    BundleTables,
    BundleTablesSpec,
    ReadStored,
    are_among,
    chain_row_ids,
    chain_stored,
    in_pieces,
    write_rows,
)
from app.scoring.predictor import Predictor
from data_prep.encoding.encoder import LOOKUP_FILE, merge_lookups
from data_prep.prepared.schema import Schema


def check_fits(parent: Predictor, schema: Schema, spec: BundleTablesSpec) -> None:
    """Raise ValueError where a model cannot be written as changes of `parent`."""
    there, names = parent.tables[0].spec, ("width", "dtype", "seed", "initial_scale")
    others = [f"{name} {getattr(spec, name)}, there {getattr(there, name)}" for name in names]
    others = [text for name, text in zip(names, others, strict=True) if getattr(spec, name) != getattr(there, name)]
    if others:
        raise ValueError(f"this model is no change of {parent.folder}: {'; '.join(others)}; export a whole bundle")
    known = [(field.name, field.oov_ids) for field in parent.schema.categorical]
    if known != [(field.name, field.oov_ids) for field in schema.categorical]:
        raise ValueError(f"this model has other columns than {parent.folder}; export a whole bundle")


def changed_rows(
    parent: Sequence[BundleTables], row_ids: np.ndarray, stored: ReadStored
) -> tuple[np.ndarray, np.ndarray]:
    """Return which of `row_ids`, ascending, have other rows than the parent's, and ids of its rows that are gone."""
    before, old = chain_row_ids(parent), chain_stored(parent)
    names = [name for name in parent[0].spec.layout() if not name.endswith("padding") and name != INDEX]
    changed = [np.zeros(0, np.int64)]
    for ids in in_pieces(row_ids):
        differs = ~are_among(before, ids)
        for name in names:
            new_bytes, old_bytes = (read(name, ids).reshape(len(ids), -1).view(np.uint8) for read in (stored, old))
            differs |= (new_bytes != old_bytes).any(axis=1)
        changed.append(ids[differs])
    return np.concatenate(changed), np.setdiff1d(before, row_ids, assume_unique=True)


def fold(delta: str | Path, output: str | Path, overwrite: bool = False) -> Manifest:
    """Write a whole bundle that scores as `delta` and the bundles that it needs; return its manifest.

    Rows are copied as they are stored, a piece at a time. Raises ValueError where a file is damaged.
    """
    chain = read_chain(Path(delta))
    newest = chain[-1][1]
    with new_bundle(Path(output), overwrite) as folder:  # before all is read: it may not be possible
        for link in chain:
            check_files(*link, every_byte=True)
        tables = [BundleTables(path, BundleTablesSpec(**manifest.rows)) for path, manifest in chain]
        row_ids = chain_row_ids(tables)
        spec = dataclasses.replace(tables[-1].spec, num_rows=len(row_ids), num_deleted=0)
        own = shutil.ignore_patterns(TABLES, CHECKSUMS, LOOKUP_FILE, MANIFEST)
        shutil.copytree(delta, folder, ignore=own, dirs_exist_ok=True)
        write_rows(folder, spec, row_ids, chain_stored(tables))
        vocabulary = merge_lookups([(path, manifest.vocabulary) for path, manifest in chain], folder)
        whole = dataclasses.replace(newest, vocabulary=vocabulary, rows=dataclasses.asdict(spec))
        write_manifest(folder, dataclasses.replace(whole, parent=None, folded=newest.version, id=""))
    return whole
