"""Files of a checkpoint that are complete and do not make sense."""

import numpy as np
import pytest

from app.checkpoint.manifest import MANIFEST, read_manifest, write_manifest
from app.checkpoint.read import Checkpoint, DamagedCheckpointError, FileTable
from app.checkpoint.write import ModelState, write_checkpoint
from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.tables.fields import TableField
from app.tables.interface import DEEP, STATE_ARRAYS, WIDE, TablesSpec, TableState
from common.arrays.disk import column_of, write_arrays
from common.files import DamagedFileError
from tests.checkpoints import load, plain_manifest

SPEC = TablesSpec(100, 3, (TableField("C1"),), 7, 0.01, 1e-3, FtrlOptions(), LazyAdamOptions())


def arrays_of(table, width, **changes):
    arrays = {"row_ids": np.arange(2)}
    arrays |= {name: np.zeros((2, width), np.float32) for name in STATE_ARRAYS[table]}
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (arrays_of(DEEP, 3, row_ids=None), "deep-0-of-1.safetensors is of no table: it begins with array 'rows'"),
        (arrays_of(DEEP, 3, row_ids=np.arange(2.0)), "is of no table"),
        (arrays_of(DEEP, 3, rows=np.zeros((3, 3), "f4")), r"deep-0.*array 'rows' has shape \[3, 3\], expected \[2, w"),
        (arrays_of(DEEP, 3, rows=np.zeros((2, 0), "f4")), r"array 'rows' has shape \[2, 0\]"),
        (arrays_of(DEEP, 3, rows=np.zeros(2, "f4")), r"array 'rows' has shape \[2\]"),
        ({}, "is of no table"),
    ],
)
def test_a_table_s_file_that_is_whole_and_makes_no_sense(tmp_path, arrays, message):
    """Size and checksum are those of the manifest, as of a file that was made to deceive."""
    zeros = {
        table: TableState(np.arange(2), {name: np.zeros((2, width), np.float32) for name in STATE_ARRAYS[table]})
        for table, width in ((WIDE, 1), (DEEP, 3))
    }
    path = write_checkpoint(tmp_path, ModelState({}, zeros), plain_manifest(1, 9))
    manifest = read_manifest(path)
    name = "deep-0-of-1.safetensors"
    (path / name).unlink()
    manifest.files[name] = write_arrays(path / name, {n: column_of(array) for n, array in arrays.items()})
    (path / MANIFEST).unlink()
    write_manifest(path, manifest)
    for read in (load, lambda path: Checkpoint.open(path).read_once(SPEC, lambda *_: lambda *_: None)):
        with pytest.raises(ValueError, match=message) as caught:
            read(path)
        assert not isinstance(caught.value, DamagedCheckpointError | DamagedFileError)


def test_links_of_a_chain_with_other_arrays_are_refused(tmp_path):
    row = TableState(np.arange(1), {"rows": np.zeros((1, 3), np.float32)})
    wider = TableState(np.arange(1), {"rows": np.zeros((1, 4), np.float32)})
    first = write_checkpoint(tmp_path, ModelState({}, {DEEP: row}), plain_manifest(1, 9))
    parent = {"step": 1, "id": read_manifest(first).id}
    path = write_checkpoint(tmp_path, ModelState({}, {DEEP: wider}), plain_manifest(2, 9, parent=parent))
    with pytest.raises(ValueError, match=r"step-00000002/deep-0-of-1.* has arrays .*; expected the same"):
        Checkpoint.open(path).state()


@pytest.mark.parametrize("shards", [-1, 0, 10**12])
def test_a_number_of_files_that_are_not_there(tmp_path, shards):
    row = TableState(np.arange(1), {"rows": np.zeros((1, 3), np.float32)})
    path = write_checkpoint(tmp_path, ModelState({}, {DEEP: row}), plain_manifest(1, 9))
    manifest = read_manifest(path)
    manifest.shards[DEEP] = shards
    (path / MANIFEST).unlink()
    write_manifest(path, manifest)
    with pytest.raises(ValueError, match=f"has 2 files, of which {shards} are the deep table's"):
        FileTable(Checkpoint.open(path), DEEP)
