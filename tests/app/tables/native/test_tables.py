"""Promises of the native tables alone: the same bits everywhere, memory by touched rows, errors of their own."""

import _ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from app.tables.interface import DEEP, RowGradients, UniqueIds
from app.tables.native import tables as native_module
from app.tables.native.library import LIBRARY
from common.process import MemoryLimit
from tests.app.tables.tables_of_spec import load_state, native_tables, reference_tables
from tests.programs import run_python

pytestmark = pytest.mark.usefixtures("native_library")


def test_more_touched_rows_than_slots_are_refused_before_anything_is_written(make_spec, monkeypatch):
    tables = native_tables(make_spec(vocabulary_size=400))
    tables.touch(np.arange(10))
    monkeypatch.setattr(native_module, "MAX_TOUCHED", 12)
    tables.touch(np.arange(12))
    with pytest.raises(MemoryError, match="one process keeps 12 touched rows at most"):
        tables.touch(np.arange(13))
    assert tables.state()[DEEP].row_ids.tolist() == list(range(12))


def test_an_unknown_instruction_set_is_refused(make_spec, monkeypatch):
    monkeypatch.setenv("HOST_TABLES_ISA", "mmx")
    with pytest.raises(ValueError, match="HOST_TABLES_ISA=mmx is none of"):
        native_tables(make_spec())


def test_touching_all_rows_goes_through_every_form_of_map_and_several_slabs(
    make_spec, random_gradients, assert_same_state
):
    """At D 1000 a slab holds 4,096 slots; a vocabulary of 6,000 starts as a hash and ends as an array."""
    spec, rng = make_spec(vocabulary_size=6_000, embedding_dim=1000, num_fields=1), np.random.default_rng(0)
    tables, reference = native_tables(spec, num_threads=2), reference_tables(spec)
    for ids in np.split(rng.permutation(6_000), [3, 600, 1500, 4000]):
        gradients = random_gradients(spec, ids.size, rng)
        for t in (tables, reference):
            t.update(t.unique(ids[:, None]), gradients)
    assert_same_state(tables, reference)


def test_row_ids_beyond_32_bits(make_spec, random_gradients, assert_same_state):
    spec, rng = make_spec(vocabulary_size=2**40, embedding_dim=4), np.random.default_rng(0)
    tables, resumed = native_tables(spec), native_tables(spec)
    ids = rng.integers(0, 2**40, (500, 3))
    ids[:, 2] = ids[:, 1] + 2**32 * (ids[:, 1] < 2**39)  # the same low half, another row
    tables.update(tables.unique(ids), random_gradients(spec, 500, rng))
    np.testing.assert_array_equal(tables.state()[DEEP].row_ids, np.unique(ids))
    load_state(resumed, tables.state(), tables.step)
    assert_same_state(resumed, tables)
    unique = tables.unique(ids)
    np.testing.assert_array_equal(unique.values[unique.inverse], ids.reshape(-1))


def test_the_rows_of_a_lookup_outlive_the_next_one(make_spec):
    tables = native_tables(make_spec())
    first = tables.lookup(tables.unique(np.zeros((4, 3), np.int32)))
    copy = first.deep.copy()
    second = tables.lookup(tables.unique(np.ones((4, 3), np.int32)))
    np.testing.assert_array_equal(first.deep, copy)
    assert not np.array_equal(first.deep, second.deep)


def test_unique_may_run_beside_updates_and_itself(make_spec, random_ids, random_gradients):
    spec, rng = make_spec(vocabulary_size=5000), np.random.default_rng(0)
    tables = native_tables(spec, num_threads=2)
    batches = [random_ids(spec, 2000, rng) for _ in range(30)]
    gradients = random_gradients(spec, 2000, rng)
    with ThreadPoolExecutor(2) as pool:
        for ids, unique in zip(batches, pool.map(tables.unique, batches), strict=True):
            np.testing.assert_array_equal(unique.values[unique.inverse], ids.reshape(-1))
            tables.update(unique, gradients)


def test_another_backend_s_unique_ids_are_refused(make_spec):
    tables = native_tables(make_spec())
    with pytest.raises(TypeError, match="their own unique"):
        tables.lookup(UniqueIds((1, 3), np.array([0]), np.zeros(3, np.int64)))


def test_memory_is_bounded_by_the_touched_rows(make_spec):
    """4 B · V + 1.1 × touched × bytes per row, as resident memory; ids scattered over the vocabulary."""
    vocabulary_size, embedding_dim, batch = 4_000_000, 16, 1000
    spec = make_spec(vocabulary_size=vocabulary_size, embedding_dim=embedding_dim, num_fields=1)
    rows = np.random.default_rng(0).permutation(vocabulary_size)[:400_000]
    gradients = RowGradients(np.ones((batch, embedding_dim), np.float32), np.ones(batch, np.float32))
    warm = native_tables(spec)
    warm.update(warm.unique(rows[:batch, None]), gradients)  # threads, buffers and libraries are there
    before = psutil.Process().memory_info().rss
    tables = native_tables(spec)
    for ids in rows.reshape(-1, batch, 1):
        tables.update(tables.unique(ids), gradients)
    used = psutil.Process().memory_info().rss - before
    row_bytes = 3 * (embedding_dim + 1) * 4
    assert rows.size * row_bytes <= used <= 4 * vocabulary_size + 1.1 * rows.size * row_bytes


def test_load_state_gives_the_memory_back(make_spec):
    tables = native_tables(make_spec(vocabulary_size=100_000, embedding_dim=80, num_fields=1))
    tables.touch(np.arange(100_000))
    before = psutil.Process().memory_info().rss
    load_state(tables, {}, step=0)
    assert before - psutil.Process().memory_info().rss > 0.9 * 100_000 * 3 * 80 * 4


def test_no_room_for_the_new_rows_changes_nothing(
    make_spec, run_steps, random_gradients, assert_same_state, monkeypatch
):
    spec = make_spec(vocabulary_size=10_000, embedding_dim=1000, num_fields=1)
    tables, same = native_tables(spec), native_tables(spec)
    for t in (tables, same):
        run_steps(t)
    monkeypatch.setattr("common.process.memory_limits", lambda: [MemoryLimit("the test's limit", 2**30, 2**30)])
    gradients = random_gradients(spec, 9_000, np.random.default_rng(0))
    with pytest.raises(
        MemoryError, match=r"new rows beside .* 12,012 bytes each, needs .* the test's limit is 1,024 MiB"
    ):
        tables.update(tables.unique(np.arange(9_000)[:, None]), gradients)
    assert_same_state(tables, same)


def test_an_address_space_limit_is_an_error_not_a_kill():
    """In a process of its own, as the limit cannot be taken back."""
    program = """
import resource, numpy as np
from app.tables.fields import TableField
from app.tables.interface import TablesSpec
from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from tests.app.tables.tables_of_spec import native_tables
spec = TablesSpec(10**7, 1000, (TableField("C1"),), 0, 0.01, 0.0, FtrlOptions(), LazyAdamOptions())
tables = native_tables(spec, num_threads=1)
tables.touch(np.arange(10))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
try:
    tables.touch(np.arange(10**6))
except MemoryError as error:
    print(error, tables.state()["deep"].row_ids.size)
"""
    result = run_python("-c", program, cwd=Path(native_module.__file__).parents[3])
    assert "the address space (RLIMIT_AS) is" in result.stdout
    assert "storing 999,990 new rows beside 10 touched ones" in result.stdout
    assert result.stdout.split()[-1] == "10"


@pytest.mark.parametrize(
    "change",
    [np.asfortranarray, lambda gradient: gradient[:, ::-1], lambda gradient: gradient[1:], np.float64],
    ids=["columns side by side", "backwards", "too few", "float64"],
)
def test_a_kernel_is_given_no_array_of_another_layout(make_spec, random_ids, random_gradients, change):
    spec = make_spec(vocabulary_size=400)
    tables = native_tables(spec)
    rng = np.random.default_rng(1)
    unique, gradients = tables.unique(random_ids(spec, 8, rng)), random_gradients(spec, 8, rng, 0.3)
    slots, tables.step = tables.touch(unique.values), 1
    with pytest.raises(TypeError, match=r"needs float32 .* in C order, found"):
        tables.update_deep(unique, slots, change(gradients.deep), 1.0)
    with pytest.raises(TypeError, match=r"needs int32 \[\d+\] in C order, found"):
        tables.update_wide(unique, slots[1:], gradients.wide, 1.0)
    with pytest.raises(TypeError, match=r"needs int64 \[4\] in C order, found int64 \[4\], \(16,\) bytes apart"):
        tables.touch(np.arange(8)[::2])
    with (
        pytest.raises(TypeError, match=r"needs float32 \[4, 5\] in C order, found float64"),
        tables.loading(1) as place,
    ):
        place(DEEP, np.arange(4))("rows", np.zeros((4, 5)))
    assert tables.state()[DEEP].row_ids.size == 0  # what was loaded in part is gone


def test_a_missing_library_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOST_TABLES_LIBRARY", str(tmp_path / "libhost_tables.so"))
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    assert not LIBRARY.is_available()
    with pytest.raises(FileNotFoundError, match=r"libhost_tables.so is missing; run `make native`"):
        LIBRARY.load()


def test_a_broken_library_says_how_to_build_it(monkeypatch, tmp_path):
    (tmp_path / "libhost_tables.so").write_text("not a library")
    monkeypatch.setenv("HOST_TABLES_LIBRARY", str(tmp_path / "libhost_tables.so"))
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    with pytest.raises(OSError, match=r"cannot be loaded: .*; run `make native`"):
        LIBRARY.load()


@pytest.mark.parametrize("name", ["libhost_tables.so", "build/libhost_tables.so"])
def test_a_relative_path_is_of_the_working_folder(monkeypatch, tmp_path, name):
    monkeypatch.delenv("HOST_TABLES_LIBRARY", raising=False)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(LIBRARY.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOST_TABLES_LIBRARY", name)
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    assert LIBRARY.load()
    assert LIBRARY.path == tmp_path / name


def test_a_library_of_another_version_says_how_to_build_it(monkeypatch):
    monkeypatch.setenv("HOST_TABLES_LIBRARY", _ctypes.__file__)
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    with pytest.raises(OSError, match=r"cannot be loaded: .*undefined symbol: host_tables_.*; run `make native`"):
        LIBRARY.load()


def test_loading_the_library_leaves_the_environment_as_it_was(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    LIBRARY.load()
    assert "OMP_WAIT_POLICY" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    LIBRARY.load()
    assert os.environ["OMP_WAIT_POLICY"] == "active"
