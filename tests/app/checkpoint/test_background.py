"""Checkpoints written in a thread, beside updates and under write errors."""

import contextlib
import errno
import importlib.util
import itertools
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from app.checkpoint.background import CheckpointWriter, Throttle
from app.checkpoint.manifest import Manifest, read_manifest
from app.checkpoint.read import Checkpoint
from app.config.optimizers import FtrlOptions, LazyAdamOptions
from app.config.run import CheckpointOptions
from app.tables.interface import RowGradients, TablesSpec
from app.tables.native.library import LIBRARY
from tests.app.tables.tables_of_spec import native_tables, reference_tables
from tests.checkpoints import load

SPEC = TablesSpec(200, 4, ("C1", "C2"), 7, 0.01, 1e-3, FtrlOptions(), LazyAdamOptions())


def make_native():
    if not LIBRARY.is_available() and "CI" not in os.environ:
        pytest.skip("the native tables are not built")
    return native_tables(SPEC, 2)


BACKENDS = {"reference": lambda: reference_tables(SPEC), "native": make_native}


def train(tables, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, SPEC.vocabulary_size, (10, 2), np.int32)
    gradients = RowGradients(rng.standard_normal((10, 8), np.float32), rng.standard_normal(10, np.float32))
    tables.update(tables.unique(ids), gradients)


def begin(writer, tables, step, throttled=False):
    """Start to write the tables as they are."""
    parent = writer.parent_for(step)
    dense = {"wide.bias": np.full(1, step, np.float32)}
    manifest = Manifest(step, 1, step, {}, "", {"vocabulary_size": SPEC.vocabulary_size}, {}, parent=parent)
    return writer.start(dense, tables.snapshot(changed_only=parent is not None), manifest, throttled)


def assert_holds(path, state):
    found = load(path)[1].tables
    for table, saved in state.items():
        np.testing.assert_array_equal(found[table].row_ids, saved.row_ids)
        for name, array in saved.arrays.items():
            np.testing.assert_array_equal(found[table].arrays[name].view(np.int32), array.view(np.int32))


@pytest.fixture
def writers():
    with contextlib.ExitStack() as open_ones:

        def make(folder, **options):
            writer = CheckpointWriter(folder, CheckpointOptions(**{"keep_last": 0, "delta": True, **options}), "auc")
            open_ones.callback(writer.close)
            return writer

        yield make


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_written_is_what_was_there_when_it_began(backend, writers, tmp_path, monkeypatch):
    """The first write to the disk waits until three updates were made."""
    tables, writer, updated, write = BACKENDS[backend](), writers(tmp_path), threading.Event(), os.pwrite

    def write_late(*words):
        assert updated.wait(10)
        return write(*words)

    monkeypatch.setattr(os, "pwrite", write_late)
    train(tables, seed=0)
    for step in (1, 2, 3, 4):
        before = tables.state()
        updated.clear()
        writing = begin(writer, tables, step, throttled=True)
        for seed in range(3):
            train(tables, 10 * step + seed)
        assert not writing.is_done()
        updated.set()
        assert_holds(writing.result().path, before)
    assert read_manifest(tmp_path / "step-00000004").parent["step"] == 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_after_a_write_error_at_any_call_the_next_delta_has_all_that_changed(backend, code, writers, tmp_path):
    faults = faults_of_the_disk()
    for number in itertools.count():
        tables, folder = BACKENDS[backend](), tmp_path / str(number)
        writer = writers(folder)
        train(tables, seed=0)
        first = begin(writer, tables, 1).result().path
        state = tables.state()
        train(tables, seed=1)
        with faults.disk_error(number, code) as broken, contextlib.suppress(OSError):
            begin(writer, tables, 2).result()
        train(tables, seed=2)
        after = begin(writer, tables, 3).result()
        assert after.manifest.parent["step"] in (1, 2)
        assert_holds(after.path, tables.state())
        assert_holds(first, state)
        if not broken:
            break
    assert number > 15


def faults_of_the_disk():
    """The fault layer of the tests of saving."""
    path = Path(__file__).with_name("test_checkpoint_faults.py")
    spec = importlib.util.spec_from_file_location("checkpoint_faults", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_full_ones_and_deltas_take_turns(writers, tmp_path):
    tables, writer = reference_tables(SPEC), writers(tmp_path, full_every=3)
    kinds = []
    for step in range(1, 8):
        train(tables, step)
        kinds.append(begin(writer, tables, step).result().manifest.parent is None)
    assert kinds == [True, False, False, True, False, False, True]
    resumed = writers(tmp_path, full_every=3)
    resumed.go_on_from(Checkpoint.open(tmp_path / "step-00000005"))
    assert resumed.parent_for(6)["step"] == 5
    assert resumed.parent_for(5) is None  # a checkpoint cannot go on from the one that it replaces
    resumed.go_on_from(Checkpoint.open(tmp_path / "step-00000006"))
    assert resumed.parent_for(7) is None


def test_what_lost_its_parent_is_followed_by_a_full_one(writers, tmp_path):
    tables, writer = reference_tables(SPEC), writers(tmp_path)
    train(tables, 1)
    path = begin(writer, tables, 1).result().path
    path.rename(path.with_name("away"))
    assert writer.parent_for(2) is None


def test_compaction_keeps_the_chain_short(writers, tmp_path):
    tables, writer = reference_tables(SPEC), writers(tmp_path, keep_last=2, keep_best=0, full_every=2, compact=True)
    for step in range(1, 10):
        train(tables, step)
        begin(writer, tables, step).result()
        assert_holds(tmp_path / f"step-{step:08d}", tables.state())
        assert len(list(tmp_path.iterdir())) <= 4


class Hurried:
    """Notes how long it is waited for."""

    def __init__(self):
        self.waits, self.set = [], False

    def is_set(self):
        return self.set

    def wait(self, seconds):
        self.waits.append(seconds)


def test_the_throttle_sleeps_three_times_what_was_worked(monkeypatch):
    times = iter([10.0, 10.2, 10.3, 10.3, 10.4, 10.5])
    monkeypatch.setattr("app.checkpoint.background.time.thread_time", lambda: next(times))
    hurried = Hurried()
    throttle = Throttle(0.25, hurried)
    throttle(1)  # nothing is known yet
    throttle(1)
    assert hurried.waits == pytest.approx([0.6])
    throttle(1)
    assert hurried.waits == pytest.approx([0.6, 0.0])
    hurried.set = True
    throttle(1)
    assert len(hurried.waits) == 2
