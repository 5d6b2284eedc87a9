import dataclasses
import json

import numpy as np
import psutil
import pytest

from app.checkpoint.manifest import MANIFEST, read_manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import best_or_newest, remove_old, whole_checkpoints
from app.checkpoint.write import ModelState, write_checkpoint
from app.config.config import CheckpointOptions
from app.config.optimizer_settings import AdamOptions, FtrlOptions, LazyAdamOptions, SgdOptions
from app.tables.fields import TableField
from app.tables.interface import DEEP, STATE_ARRAYS, WIDE, TablesSpec, TableState
from tests.app.tables.tables_of_spec import reference_tables
from tests.checkpoints import plain_manifest


def make_state(seed=0):
    rng = np.random.default_rng(seed)
    row_ids = np.sort(rng.choice(1000, 40, replace=False)).astype(np.int64)
    tables = {
        table: TableState(row_ids, {name: rng.standard_normal((40, width), np.float32) for name in STATE_ARRAYS[table]})
        for table, width in ((WIDE, 1), (DEEP, 5))
    }
    dense = {"tower.matrix_0": rng.standard_normal((7, 3), np.float32), "adam.beta1_power": np.array(0.9, np.float32)}
    return ModelState(dense, tables)


@pytest.fixture
def saved(tmp_path):
    return write_checkpoint(tmp_path, make_state(), plain_manifest(3))


CRAFTED = [
    (DEEP, "last_step", -1, "deep last_step of row 7 is -1, expected 0 … 3, the steps taken"),
    (DEEP, "last_step", 4, "deep last_step of row 7 is 4, expected 0 … 3, the steps taken"),
    (DEEP, "second_moment", -1.0, r"deep second_moment of row 7 is -1\.0, expected 0 or more"),
    (WIDE, "accumulator", -1.0, r"wide accumulator of row 7 is -1\.0, expected 0 or more"),
    (WIDE, "rows", np.nan, "wide rows of row 7 is nan"),
]


@pytest.fixture
def crafted(tmp_path):
    """Save rows 0 … 9 of a table of ten with `adam` in two shards, with one array changed."""
    spec = TablesSpec(10, 2, (TableField("C1"),), 7, 0.01, 0.1, FtrlOptions(), AdamOptions())
    tables = reference_tables(spec)
    with tables.loading(step=3) as place:
        place(DEEP, np.arange(10))("last_step", np.full((10, 1), 2, np.int32))
    state = tables.state()

    def save(table, name, change):
        change(state[table].arrays[name])
        return spec, write_checkpoint(tmp_path, ModelState({}, state), plain_manifest(3, 10), num_shards=2)

    return save


@pytest.mark.parametrize(("table", "name", "bad", "message"), CRAFTED)
def test_a_row_that_no_run_can_have_is_named_with_its_file(crafted, table, name, bad, message):
    """Checksums do not help against who writes them."""
    spec, path = crafted(table, name, lambda values: values.__setitem__((7, -1), bad))
    tables = reference_tables(spec)
    message = f"{path / table}-1-of-2.safetensors: {message}"
    with pytest.raises(ValueError, match=message), tables.loading(step=3) as place:
        Checkpoint.open(path).read_once(spec, place)
    if name == "last_step":
        with pytest.raises(ValueError, match=message):
            Checkpoint.open(path).state().tables[table].read(name, slice(None))


@pytest.mark.parametrize(
    ("row_ids", "message"),
    [
        ([0, 10], "deep row_ids go from 0 to 10, outside 0 … 9"),
        ([-1, 5], "deep row_ids go from -1 to 5, outside 0 … 9"),
        ([5, 5], "deep row_ids must ascend without repetition"),
    ],
)
def test_row_ids_that_are_none_of_the_table_s_are_refused(tmp_path, row_ids, message):
    """Also when a table's files are read row by row."""
    state = ModelState({}, {DEEP: TableState(np.array(row_ids), {"rows": np.ones((2, 5), np.float32)})})
    path = write_checkpoint(tmp_path, state, plain_manifest(3, 10))
    with pytest.raises(ValueError, match=f"deep-0-of-1.safetensors: {message}"):
        Checkpoint.open(path).state()


def test_tables_for_scoring_load_no_optimizer_state(saved):
    spec = TablesSpec(1000, 5, (TableField("C1"),), 7, 0.01, 0.0, FtrlOptions(), LazyAdamOptions())
    scored = dataclasses.replace(spec, wide_optimizer=SgdOptions(), deep_optimizer=SgdOptions())
    tables, state = reference_tables(scored), make_state()
    for rows in state.tables.values():  # Make the state one that an optimizer can reach, and save it.
        for values in rows.arrays.values():
            np.abs(values, out=values)
    path = write_checkpoint(saved.parent, state, plain_manifest(4))
    with tables.loading(step=4) as place:
        Checkpoint.open(path).read_once(spec, place, scored)
    for table, loaded in tables.state().items():
        assert list(loaded.arrays) == ["rows"]
        np.testing.assert_array_equal(loaded.row_ids, state.tables[table].row_ids)
        np.testing.assert_array_equal(loaded.arrays["rows"], state.tables[table].arrays["rows"])


def test_rows_read_in_pieces_do_not_stay_in_memory(tmp_path):
    row_ids, piece = np.arange(400_000), 4000
    arrays = {"rows": np.ones((row_ids.size, 32), np.float32)}
    state = ModelState({}, {DEEP: TableState(row_ids, arrays)})
    table = Checkpoint.open(write_checkpoint(tmp_path, state, plain_manifest(3, row_ids.size), 2)).state().tables[DEEP]
    before, most = psutil.Process().memory_info().shared, 0
    for start in range(0, row_ids.size, piece):
        assert table.read("rows", slice(start, start + piece)).sum() == piece * 32
        most = max(most, psutil.Process().memory_info().shared - before)
    assert most < arrays["rows"].nbytes / 8


def test_a_manifest_that_is_missing_damaged_or_newer(saved):
    path = saved / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    with pytest.raises(ValueError, match="has format version 99, this program reads 4 to 5; use the release"):
        read_manifest(saved)
    path.write_text(path.read_text()[:50])
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        read_manifest(saved)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"is no whole checkpoint: it has no manifest\.json"):
        read_manifest(saved)


def test_only_whole_checkpoints_count(tmp_path):
    """No manifest, a damaged one, one of a newer form, and what a kill left just before the renaming."""
    for step in (1, 20, 100):
        write_checkpoint(tmp_path, make_state(), plain_manifest(step))
    (write_checkpoint(tmp_path, make_state(), plain_manifest(200)) / MANIFEST).unlink()
    (write_checkpoint(tmp_path, make_state(), plain_manifest(201)) / MANIFEST).write_text("{")
    newer = write_checkpoint(tmp_path, make_state(), plain_manifest(202)) / MANIFEST
    newer.write_text(json.dumps({**json.loads(newer.read_text()), "format_version": 99}))
    unnamed = write_checkpoint(tmp_path, make_state(), plain_manifest(203))
    unnamed.rename(unnamed.with_name("step-00000203.partial"))
    assert [checkpoint.path.name for checkpoint in whole_checkpoints(tmp_path)] == [
        "step-00000001",
        "step-00000020",
        "step-00000100",
    ]
    assert best_or_newest(tmp_path, "auc").path.name == "step-00000100"


def scored_manifest(step, auc):
    return plain_manifest(step, metrics={} if auc is None else {"auc": auc, "log_loss": 0.5})


def save_steps(folder, aucs):
    for step, auc in enumerate(aucs, start=1):
        write_checkpoint(folder, make_state(), scored_manifest(step, auc))


def steps_in(folder):
    return [checkpoint.manifest.step for checkpoint in whole_checkpoints(folder)]


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"),
    [
        (0, 1, [1, 2, 3, 4, 5]),
        (1, 0, [5]),
        (1, 1, [2, 5]),
        (2, 1, [2, 4, 5]),
        (1, 3, [2, 3, 5]),
        (4, 1, [2, 3, 4, 5]),
        (9, 0, [1, 2, 3, 4, 5]),
    ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, keep_last, keep_best, kept):
    save_steps(tmp_path, [0.6, 0.8, 0.7, None, 0.75])
    remove_old(tmp_path, CheckpointOptions(keep_last=keep_last, keep_best=keep_best), "auc")
    assert steps_in(tmp_path) == kept


def test_values_of_another_basis_are_not_the_best(tmp_path):
    """After a resume with another split valid, an earlier 0.9 cannot be compared with the models since."""
    for step, (auc, rows) in enumerate([(0.9, "old"), (0.7, "new"), (0.8, "new"), (0.75, "new")], start=1):
        manifest = dataclasses.replace(scored_manifest(step, auc), selection={"basis": [rows]})
        write_checkpoint(tmp_path, make_state(), manifest)
    assert best_or_newest(tmp_path, "auc").manifest.step == 3
    remove_old(tmp_path, CheckpointOptions(keep_last=1, keep_best=1), "auc")
    assert steps_in(tmp_path) == [3, 4]


def test_the_best_is_taken_or_the_newest(tmp_path):
    save_steps(tmp_path / "scored", [0.6, 0.8, 0.7, None])
    assert best_or_newest(tmp_path / "scored", "auc").path.name == "step-00000002"
    save_steps(tmp_path / "not scored", [None, None])
    assert best_or_newest(tmp_path / "not scored", "auc").path.name == "step-00000002"
    with pytest.raises(FileNotFoundError, match=r"no whole checkpoint in .*nowhere; train first: .* app train "):
        best_or_newest(tmp_path / "nowhere", "auc")
