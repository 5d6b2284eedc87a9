import resource

import pytest

from app.tables import memory_limit
from app.tables.memory_limit import MemoryLimit, memory_limits, require_memory


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


def test_the_address_space_is_a_limit_where_it_is_set(fake_system, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**30, 2**30))
    assert memory_limits()[1] == MemoryLimit("the address space (RLIMIT_AS)", 2**30, 1024 * resource.getpagesize())


def test_a_cgroup_above_the_process_s_own_counts_and_file_cache_does_not(fake_system):
    (fake_system / "proc/self/cgroup").write_text("0::/pod/container\n")
    pod = fake_system / "cgroup/pod"
    write_files(pod, memory_dot_max=2**30, memory_dot_current=2**29, memory_dot_stat=f"anon 5\ninactive_file {2**28}\n")
    write_files(pod / "container", memory_dot_max="max")
    assert memory_limits()[1] == MemoryLimit(f"the memory limit of cgroup {pod}", 2**30, 2**28)


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


def test_the_tightest_limit_is_named_with_all_sizes(fake_system):
    require_memory(6 * 2**30, "storing rows")
    with pytest.raises(
        MemoryError, match="storing rows needs 6,145 MiB more; the machine's memory is 8,192 MiB, of which 6,144 MiB"
    ):
        require_memory(6 * 2**30 + 2**20, "storing rows")
