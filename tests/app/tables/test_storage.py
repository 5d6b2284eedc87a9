"""Tables whose rows lie in a scratch file: the bits of memory, errors that name the disk, and nothing left over.

test_state_machine.py takes such tables through every order of steps, snapshots, loads and warm starts.
"""

import contextlib
import dataclasses
import errno
import gc
import logging
import mmap
import subprocess

import numpy as np
import psutil
import pytest

from app.__main__ import main
from app.config.optimizer_settings import AdamOptions, LazyAdamOptions
from app.distributed.process_group import ONE_PROCESS
from app.tables.interface import RowGradients
from app.tables.native import storage
from app.tables.native.storage import AUTO, MEMORY
from app.training.auto import memory
from app.training.auto.memory import with_storage
from common.files import NoRoomError
from common.process import MemoryLimit
from tests.app.tables.tables_of_spec import assert_equal_states, native_tables
from tests.programs import run_python


@pytest.fixture
def make_wide_spec(make_spec, tmp_path):
    """Tables of 30,000 ids of about 800 bytes in a file: a slab has 32,768 slots, 25 MiB."""
    return lambda folder=tmp_path, **options: dataclasses.replace(make_spec(30_000, 64, **options), storage=folder)


@pytest.fixture
def stored_in(make_wide_spec, tiny_config, tiny_schema):
    """Return a function of `tables.storage`, backend and run folder that returns where the rows are kept."""

    def place(setting, backend="native", folder=None):
        config = tiny_config(f"tables.storage={setting}")
        return with_storage(make_wide_spec(None), config, tiny_schema, backend, ONE_PROCESS, folder).storage

    return place


@pytest.fixture
def make_disk(tmp_path):
    """Make an ext4 file system of so many MiB whose blocks are in the given folder, and mount it."""
    mounted = []

    def make(num_mib, name="disk", folder=tmp_path):
        image, disk = folder / f"{name}.img", tmp_path / name
        disk.mkdir()
        with image.open("wb") as file:
            file.truncate(num_mib << 20)
        try:
            subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, capture_output=True)
            subprocess.run(["mount", "-o", "loop", image, disk], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a file system of its own needs root and loop devices: {error}")
        mounted.append(disk)
        return disk

    yield make
    for disk in reversed(mounted):
        gc.collect()  # closes files there that a failed test still holds
        subprocess.run(["umount", "--lazy", disk], check=True)


def take_steps(tables, count, batch=200, seed=0, num_ids=30_000):
    rng, spec = np.random.default_rng(seed), tables.spec
    for _ in range(count):
        ids = (rng.random((batch, len(spec.fields))) ** 4 * num_ids).astype(np.int32)
        unique = tables.unique(ids)
        tables.read_ahead(unique, will_change=True)
        tables.lookup(unique)
        deep = rng.standard_normal((batch, len(spec.fields) * spec.embedding_dim), np.float32)
        tables.update(unique, RowGradients(deep, rng.standard_normal(batch, np.float32)))


SETTINGS = [
    ("deep_optimizer.name=adam", "train.ema_decay=0.9", "checkpoint.delta=true", "checkpoint.every_steps=5"),
    ("tables.dtype=bfloat16", "model.deep_fields=[C1,C2]", "checkpoint.background=false", "checkpoint.shards=2"),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["adam with means", "bfloat16 in parts"])
def test_runs_in_memory_and_file_write_equal_bytes(
    own_handlers, project, tiny_dataset, tmp_path, monkeypatch, settings
):
    """The second epoch resumes the first, with the rows in the other place."""
    monkeypatch.chdir(tmp_path)
    places = {"memory": (MEMORY, MEMORY), "file": (tmp_path, tmp_path), "both": (tmp_path, MEMORY)}
    files = {}
    for name, storages in places.items():
        for epochs, place in enumerate(storages, start=1):
            words = (*settings, f"train.epochs={epochs}", f"tables.storage={place}")
            config = project / "configs" / "tiny.yaml"
            assert main(["train", "--config", str(config), "--dataset", str(tiny_dataset), "--name", name, *words]) == 0
        assert main(["export", name, f"{name}-bundle"]) == 0
        kept = [*(tmp_path / name / "checkpoints").rglob("*"), *(tmp_path / f"{name}-bundle").rglob("*")]
        files[name] = {
            (path.parent.name.removeprefix(name), path.name): path.read_bytes()
            for path in kept
            if path.suffix in (".safetensors", ".onnx")
        }
    assert len(files["memory"]) > 8
    for other in ("file", "both"):
        assert files[other].keys() == files["memory"].keys()
        assert [key for key, content in files[other].items() if content != files["memory"][key]] == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tables-")]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [LazyAdamOptions(), AdamOptions()], ids=lambda options: options.name)
def test_bits_are_equal_for_any_number_of_pages(native_library, make_wide_spec, make_spec, monkeypatch, optimizer):
    """300 steps on a table of 23 MiB, of which four pages, 1 MiB, a third or everything may stay in memory."""
    in_memory = native_tables(make_spec(30_000, 64, deep=optimizer), 2)
    take_steps(in_memory, 300)
    for most in (4 * mmap.PAGESIZE, 1 << 20, 8 << 20, 1 << 30):
        monkeypatch.setattr(storage.ScratchFile, "most_resident", lambda _, most=most: most)
        tables = native_tables(make_wide_spec(deep=optimizer), 2)
        take_steps(tables, 300)
        assert_equal_states(tables.state(), in_memory.state())


def test_neighbouring_ids_share_slots_until_a_row_is_removed(native_library, make_wide_spec, make_spec):
    """Slots of untouched ids of a group are free for any row once the group has lost a row."""
    tables = native_tables(make_wide_spec(), 2)
    slots = tables.touch(np.array([5, 20_000, 6]))
    assert slots[2] == slots[0] + 1
    assert tables._handle.call("num_slots") % 2 == 0
    before = tables._handle.call("num_slots")
    tables.remove(np.array([5]))
    assert len({*tables.touch(np.arange(7, 20)).tolist(), *slots[1:].tolist()}) == 15
    assert tables._handle.call("num_slots") == before
    in_memory = native_tables(make_spec(30_000, 64), 2)
    in_memory.touch(np.array([6, *range(7, 20), 20_000]))
    assert_equal_states(tables.state(), in_memory.state())


def test_pages_of_new_rows_are_read_ahead(native_library, make_wide_spec, monkeypatch):
    """One id in each group of 128 ids has a row, and the pages of the groups are no longer in memory."""
    tables, first_ids = native_tables(make_wide_spec(), 2), np.arange(0, 29_900, 128)
    tables.touch(first_ids)
    for most_bytes in (0, 0, 0, 1 << 30):
        monkeypatch.setattr(storage.ScratchFile, "most_resident", lambda _, most=most_bytes: most)
        before = psutil.Process().memory_info().shared
        tables._handle.read_ahead(first_ids[:1] if most_bytes == 0 else first_ids + 100, will_change=True)
    assert psutil.Process().memory_info().shared - before > 150 * mmap.PAGESIZE


def test_reading_ahead_leaves_no_threads(native_library, make_wide_spec):
    """More threads of OpenMP than cores would slow down the other parallel regions of the process."""
    tables = native_tables(make_wide_spec(), 2)
    take_steps(tables, 2)
    before = psutil.Process().num_threads()
    tables._handle.read_ahead(np.arange(100), will_change=True)
    assert psutil.Process().num_threads() == before


def test_full_disk_is_an_error_before_any_row_changes(native_library, make_spec, make_disk):
    """A slab takes 49 MiB, so the disk has room for one."""
    disk = make_disk(96)
    tables = native_tables(dataclasses.replace(make_spec(200_000, 64), storage=disk), 2)
    tables.touch(np.arange(60_000))
    take_steps(tables, 2, num_ids=60_000)
    state = tables.state()
    with pytest.raises(NoRoomError, match=rf"need up to 149 MiB in {disk}, .* MiB are free\); make room"):
        tables.touch(np.arange(50_000, 200_000))
    assert_equal_states(tables.state(), state)
    take_steps(tables, 1, num_ids=60_000)
    del tables
    assert [path.name for path in disk.iterdir()] == ["lost+found"]


READ_LOST_PAGES = """
import os, sys
import numpy as np
from pathlib import Path
from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.tables.fields import TableField
from app.tables.interface import TablesSpec
from app.tables.native.tables import NativeTables
options = FtrlOptions(), LazyAdamOptions()
spec = TablesSpec(30_000, 64, (TableField("a"),), 1, 0.01, 0.0, *options, storage=Path(sys.argv[1]))
tables = NativeTables(spec, {"wide": lambda step: 0.1, "deep": lambda step: 0.1}, 1)
tables.touch(np.arange(30_000))
os.truncate(tables._handle._file.descriptor, 0)  # what lay there cannot be read any more
tables.state()
"""


def test_page_that_cannot_be_read_ends_with_a_message(native_library, tmp_path):
    done = run_python("-c", READ_LOST_PAGES, tmp_path, status=5)
    assert done.stderr.startswith(f"error: the disk of {tmp_path} lost rows of the tables")
    assert "resumes from the last checkpoint" in done.stderr


def test_page_that_cannot_be_written_is_an_error(native_library, make_wide_spec, make_disk):
    """The blocks of the inner disk are in a file for which the outer disk has no room."""
    inner = make_disk(200, "inner", make_disk(32, "outer"))
    tables = native_tables(make_wide_spec(inner), 2)
    tables.touch(np.arange(30_000))
    with pytest.raises(OSError, match=f"the disk of {inner} lost rows of the tables") as raised:
        for seed in range(20):
            take_steps(tables, 1, 2000, seed)
            subprocess.run(["sync", "-f", inner], check=False)
    assert raised.value.errno in (errno.EIO, errno.ENOSPC)
    del tables


@pytest.mark.parametrize(
    ("mounted", "message"),
    [
        ("tmpfs tmpfs", "is on tmpfs, which is itself in memory"),
        ("nfs4 server:/home", "is on nfs4, a network file system"),
        ("fuse.sshfs host:", "is on fuse.sshfs, a network file system"),
    ],
)
def test_folder_in_memory_or_network_is_refused(
    make_wide_spec, stored_in, tmp_path, monkeypatch, caplog, mounted, message
):
    line = f"29 1 0:26 / {tmp_path} rw,relatime shared:1 - {mounted} rw\n"
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(f"27 1 254:0 / / rw - ext4 /dev/vda rw\n{line}")
    monkeypatch.setattr(storage, "PROC", tmp_path)
    with pytest.raises(ValueError, match=message):
        native_tables(make_wide_spec(), 1)
    monkeypatch.setattr(memory, "shortage", lambda *_: "too large")
    assert stored_in(AUTO, folder=tmp_path) is None
    assert message in caplog.text


def test_auto_takes_a_file_only_if_memory_is_short(stored_in, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    for shortage, expected in (("", None), ("the rows need 5 MiB", tmp_path)):
        monkeypatch.setattr(memory, "shortage", lambda *_, text=shortage: text)
        assert stored_in(AUTO, folder=tmp_path) == expected
    assert f"the rows need 5 MiB: the rows are kept in a file in {tmp_path} (tables.storage)" in caplog.text
    assert stored_in(AUTO) is None
    assert stored_in(MEMORY, folder=tmp_path) is None
    assert stored_in(AUTO, "reference", tmp_path) is None
    assert stored_in(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(("limit", "most"), [(0, 855), (1000, 769), (600, 427), (90, 0)])
def test_resident_pages_respect_the_limit_of_a_process(make_wide_spec, monkeypatch, limit, most):
    """The machine leaves 2,000 MiB to two owners of rows, of which this one has taken 100 beside its file."""
    free = MemoryLimit("a test's memory", 2000 << 20, 0)
    monkeypatch.setattr(storage, "memory_limits", lambda: [free])
    monkeypatch.setattr(storage, "private_memory", lambda: 100 << 20)
    spec = dataclasses.replace(make_wide_spec(), id_stride=2, memory_limit=limit << 20)
    with contextlib.closing(storage.ScratchFile(spec.storage, spec)) as file:
        assert file.most_resident() >> 20 == most


def test_missing_folder_and_other_backend_are_refused(
    own_handlers, project, tiny_dataset, tmp_path, monkeypatch, caplog
):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--config", str(project / "configs/tiny.yaml"), "--dataset", str(tiny_dataset)]
    assert main([*words, "tables.storage=memry"]) == 2
    assert "tables.storage=memry is no folder" in caplog.text
    assert main([*words, f"tables.storage={tmp_path}", "tables.backend=reference"]) == 2
    assert "is for tables.backend=native, the backend is reference" in caplog.text
    assert not (tmp_path / "device_0").exists()
