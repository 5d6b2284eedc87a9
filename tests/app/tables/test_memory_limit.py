import os
import resource

import numpy as np
import pytest

from app.tables.backends import planned_bytes
from app.tables.interface import WIDE
from common import process as memory_limit
from common.arrays.pages import HUGE_PAGE
from common.process import MemoryLimit, available_memory, cpu_quota, memory_limits, num_cores, require_memory
from tests.app.tables.tables_of_spec import native_tables


@pytest.fixture
def fake_system(tmp_path, monkeypatch):
    """A machine of 8 GiB, 6 of them available, with no cgroup and no limit on the address space."""
    monkeypatch.setattr(memory_limit, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory_limit, "CGROUP_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {8 * 2**20} kB\nMemAvailable: {6 * 2**20} kB\n")
    (tmp_path / "proc/self/cgroup").write_text("")
    (tmp_path / "proc/self/statm").write_text("1024 1 1 1 1 1 1\n")
    return tmp_path


def write_files(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_dot_", ".")).write_text(str(text))


def test_the_machine_s_memory_is_a_limit(fake_system):
    assert memory_limits() == [MemoryLimit("the machine's memory", 8 * 2**30, 2 * 2**30)]


def test_the_address_space_is_a_limit_if_it_is_set(fake_system, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**30, 2**30))
    used = 1024 * resource.getpagesize()
    assert memory_limits()[1] == MemoryLimit("the address space (RLIMIT_AS)", 2**30, used, counts_reserved=True)


def test_a_cgroup_above_the_process_s_own_counts_and_file_cache_does_not(fake_system):
    (fake_system / "proc/self/cgroup").write_text("0::/pod/container\n")
    pod = fake_system / "cgroup/pod"
    write_files(
        pod, memory_dot_max=2**30, memory_dot_current=2**29, memory_dot_stat="anon 5\ninactive_file 5\nactive_file 7\n"
    )
    write_files(pod / "container", memory_dot_max="max")
    assert memory_limits()[1] == MemoryLimit(f"the memory limit of cgroup {pod}", 2**30, 2**29 - 12)


def test_cgroups_of_version_1(fake_system):
    (fake_system / "proc/self/cgroup").write_text("5:cpu,cpuacct:/\n4:memory:/job\n")
    memory = fake_system / "cgroup/memory"
    write_files(
        memory / "job",
        memory_dot_limit_in_bytes=2**30,
        memory_dot_usage_in_bytes=2**29,
        memory_dot_stat="total_inactive_file 512\n",
    )
    write_files(memory, memory_dot_limit_in_bytes=2**63 - 4096)  # no limit
    assert memory_limits()[1:] == [MemoryLimit(f"the memory limit of cgroup {memory / 'job'}", 2**30, 2**29 - 512)]


@pytest.mark.parametrize(
    ("quotas", "cores"),
    [
        ({"": "max 100000"}, 64),
        ({"pod": "250000 100000", "pod/app": "max 100000"}, 3),  # rounded up
        ({"pod": "400000 100000", "pod/app": "150000 50000"}, 3),  # the smallest on the way
        ({"pod/app": "1000 100000"}, 1),
        ({"pod/app": "9900000 100000"}, 64),  # more than the affinity mask has
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_cores_follow_the_smallest_cpu_quota(fake_system, monkeypatch, quotas, cores, version):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    line, root = ("0::", "cgroup") if version == 2 else ("3:cpu,cpuacct:", "cgroup/cpu")
    (fake_system / "proc/self/cgroup").write_text(f"{line}/pod/app\n5:memory:/\n")
    for group, quota in quotas.items():
        files = {"cpu_dot_max": quota}
        if version == 1:
            names = "cpu_dot_cfs_quota_us", "cpu_dot_cfs_period_us"
            files = dict(zip(names, quota.replace("max", "-1").split(), strict=True))
        write_files(fake_system / root / group, **files)
    assert num_cores() == cores
    assert ("cores)" in cpu_quota()[1]) == (quotas != {"": "max 100000"})


def test_the_tightest_limit_is_named_with_all_sizes(fake_system):
    require_memory(6 * 2**30, "storing rows")
    with pytest.raises(
        MemoryError, match="storing rows needs 6,145 MiB more; the machine's memory is 8,192 MiB, of which 6,144 MiB"
    ):
        require_memory(6 * 2**30 + 2**20, "storing rows")


def test_available_memory_includes_what_the_process_has_taken(fake_system):
    (fake_system / "proc/self/statm").write_text(f"1024 {2**20 // resource.getpagesize()} 1 1 1 1 1\n")
    assert available_memory() == MemoryLimit("the machine's memory", 8 * 2**30, 2 * 2**30 - 2**20)
    assert available_memory().free == 6 * 2**30 + 2**20


def test_what_was_reserved_is_not_free(fake_system, monkeypatch):
    require_memory(2**30, "storing rows", reserved_bytes=5 * 2**30)
    with pytest.raises(MemoryError, match="the machine's memory is 8,192 MiB, of which 512 MiB are free"):
        require_memory(2**30, "storing rows", reserved_bytes=11 * 2**29)
    with pytest.raises(MemoryError, match="of which 0 MiB are free"):
        require_memory(1, "storing rows", reserved_bytes=7 * 2**30)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**30, 2**30))
    require_memory(2**29, "storing rows", reserved_bytes=5 * 2**30)  # the address space has them in it already
    with pytest.raises(MemoryError, match="RLIMIT_AS"):
        require_memory(2**30, "storing rows", reserved_bytes=0)


@pytest.fixture
def free_memory(monkeypatch):
    """Pretend that the machine has so many bytes left, whatever is used of them."""

    def set_free(num_bytes):
        monkeypatch.setattr(memory_limit, "memory_limits", lambda: [MemoryLimit("a test's memory", num_bytes, 0)])

    return set_free


def test_pages_that_are_reserved_and_not_written_to_count_until_they_are(native_library, make_spec):
    """A slab has 65,536 slots of 780 bytes."""
    tables = native_tables(make_spec(vocabulary_size=10**6, embedding_dim=64), 1)
    tables.touch(np.arange(10))
    reserved = tables._handle.call("uncommitted_bytes")
    assert 45 * 2**20 < reserved < 50 * 2**20
    tables.touch(np.arange(50_000))  # about 39 MB
    assert reserved - tables._handle.call("uncommitted_bytes") > 35 * 2**20


@pytest.mark.parametrize(
    ("vocabulary_size", "num_rows"), [(1000, 1000), (3000, 10), (10**6, 50_000), (10**6, 7 * 10**5)]
)
def test_planned_bytes_are_those_that_tables_take(native_library, make_spec, vocabulary_size, num_rows):
    spec = make_spec(vocabulary_size=vocabulary_size, embedding_dim=20)
    rows, row_index = planned_bytes("native", spec, num_rows)
    tables = native_tables(spec, 1)
    mapped = tables._handle.call("growth_bytes", num_rows)
    tables.touch(np.random.default_rng(0).permutation(vocabulary_size)[:num_rows])
    taken = mapped - tables._handle.call("uncommitted_bytes")
    assert abs(rows + row_index - taken) <= 2 * HUGE_PAGE
    assert spec.row_bytes() * num_rows <= rows


def test_rows_loaded_array_by_array_are_refused_before_memory_runs_out(native_library, make_spec, free_memory):
    """The narrow table's rows come first: each takes a slot, and little of it is written to."""
    free_memory(200 * 2**20)
    tables = native_tables(make_spec(vocabulary_size=10**6, embedding_dim=64), 1)
    with pytest.raises(MemoryError, match="a test's memory is 200 MiB, of which"), tables.loading(1) as place:
        for start in range(0, 600_000, 50_000):
            place(WIDE, np.arange(start, start + 50_000))("rows", np.zeros((50_000, 1), np.float32))
    assert tables._handle.call("num_touched") == 0


def test_the_lists_of_a_snapshot_are_counted_and_nothing_changes_without_room(native_library, make_spec, free_memory):
    tables = native_tables(make_spec(vocabulary_size=10**6, embedding_dim=4), 1)
    tables._rows.before_change(tables.touch(np.arange(100_000)))
    free_memory(27 * 100_000)
    with pytest.raises(MemoryError, match="listing 100,000 touched rows for a checkpoint needs 3 MiB more"):
        tables.snapshot(changed_only=True)
    free_memory(2**30)
    assert tables.snapshot(changed_only=True).tables[WIDE].row_ids.size == 100_000
