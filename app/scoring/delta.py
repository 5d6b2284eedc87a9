"""Fold a delta and the bundles that it needs into a whole bundle."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from app.scoring.bundle_folder import MANIFEST, Manifest, check_files, read_chain, version_of
from app.scoring.bundle_tables import CHECKSUMS, TABLES, BundleTables, BundleTablesSpec
from app.scoring.bundle_writer import chain_row_ids, chain_stored, new_bundle, write_manifest, write_rows
from data_prep.encoding.encoder import EXPIRED_FILE, LOOKUP_FILE
from data_prep.encoding.prepared_vocabulary import merge_lookups


def fold(delta: str | Path, output: str | Path, overwrite: bool = False) -> Manifest:
    """Write a whole bundle that scores as `delta` and the bundles that it needs, and return its manifest.

    Rows are copied as they are stored, a piece at a time. Raises ValueError if a file is damaged.
    """
    chain = read_chain(Path(delta))
    newest = dataclasses.replace(chain[-1][1], format_version=version_of(chain[-1][1].rows))
    with new_bundle(Path(output), overwrite) as folder:  # before all is read: it may not be possible
        for link in chain:
            check_files(*link, every_byte=True)
        tables = [BundleTables(path, BundleTablesSpec(**manifest.rows)) for path, manifest in chain]
        row_ids = chain_row_ids(tables)
        spec = dataclasses.replace(tables[-1].spec, num_rows=len(row_ids), num_deleted=0)
        own = shutil.ignore_patterns(TABLES, CHECKSUMS, LOOKUP_FILE, EXPIRED_FILE, MANIFEST)
        shutil.copytree(delta, folder, ignore=own, dirs_exist_ok=True)
        write_rows(folder, spec, row_ids, chain_stored(tables))
        vocabulary = merge_lookups([(path, manifest.vocabulary) for path, manifest in chain], folder)
        whole = dataclasses.replace(newest, vocabulary=vocabulary, rows=spec.as_json())
        write_manifest(folder, dataclasses.replace(whole, parent=None, folded=newest.version, id=""))
    return whole
