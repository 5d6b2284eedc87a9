"""Find the memory limits and cores of this process, defer its signals, control how it ends, and start other processes.

The embedding tables call `require_memory` before they grow, because the system kills a process that takes more memory
than its limits allow.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from common.packages import project_environment
from common.signals import SIGNALS

CGROUP_ROOT, PROC = Path("/sys/fs/cgroup"), Path("/proc")
# Files of a cgroup's folder, in version 2 and version 1 of cgroups: limit and use of memory, and the quota of CPU time.
MEMORY_FILES = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
CPU_FILES = "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"
PR_SET_PDEATHSIG = 1  # Constant of Linux's prctl.h.
# A memory limit of this many bytes or more counts as no limit. cgroup version 1 writes "no limit" as a number near
# 2**63.
UNLIMITED = 2**60


def started_by_mpi() -> bool:
    """Return True if mpirun has started this process."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ


@dataclass(frozen=True)
class MemoryLimit:
    """A limit on memory that applies to this process, and the memory in use that counts against the limit, both in
    bytes.
    """

    name: str
    limit: int
    used: int
    counts_reserved: bool = False  # True if `used` includes pages that were allocated but never written.

    @property
    def free(self) -> int:
        """Number of bytes that can still be taken before the memory in use reaches the limit, never below 0."""
        return max(self.limit - self.used, 0)


def require_memory(num_bytes: int, purpose: str, reserved_bytes: int = 0) -> None:
    """Raise MemoryError if taking `num_bytes` more bytes would bring this process above one of its memory limits.

    `purpose` begins the message, which also names the tightest limit. `reserved_bytes` is memory that this process has
    allocated but not written yet. Most limits count it as free, so it is subtracted from what is free.
    """
    free = {limit: max(limit.free - (0 if limit.counts_reserved else reserved_bytes), 0) for limit in memory_limits()}
    tightest = min(free, key=lambda limit: free[limit])
    if num_bytes > free[tightest]:
        raise MemoryError(
            f"{purpose} needs {_mib(num_bytes)} more; {tightest.name} is {_mib(tightest.limit)}, of which "
            f"{_mib(free[tightest])} are free; raise that limit, or take fewer or smaller rows: prepare.min_count, "
            "model.embedding_dim, tables.dtype=bfloat16"
        )


def available_memory() -> MemoryLimit:
    """Return the memory limit that leaves the least memory to this process, with the process's own memory subtracted
    from `used`.

    So its attribute `free` is the memory that the process may hold in all, what it holds now included. A limit that
    also counts allocated memory that was never written (`counts_reserved`) is left out.
    """
    own = int((PROC / "self/statm").read_text().split()[1]) * resource.getpagesize()
    limits = [replace(limit, used=limit.used - own) for limit in memory_limits() if not limit.counts_reserved]
    return min(limits, key=lambda limit: limit.free)


def private_memory() -> int:
    """Return the memory in bytes that this process has now, without pages of files and memory that it shares."""
    _, resident, shared, *_ = map(int, (PROC / "self/statm").read_text().split())
    return (resident - shared) * resource.getpagesize()


def peak_memory() -> int:
    """Return the largest resident memory in bytes that this process has had, shared libraries included."""
    fields = dict(line.split(":", maxsplit=1) for line in (PROC / "self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def num_cores() -> int:
    """Return the number of cores that this process may use, which is also its best number of threads.

    These are the cores in its affinity mask, or fewer if a cgroup limits its CPU time. A quota of 1.5 cores counts as
    two, because a single thread would leave a third of it unused.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, math.ceil(min(cores, cpu_quota()[0])))


def cpu_quota() -> tuple[float, str]:
    """Return the smallest CPU quota of this process's cgroups, in cores, and words for the log that name the cgroup.

    Containers limit their CPU time in this way. Without a quota, return infinity and no words.
    """
    smallest, reason = math.inf, ""
    for folder in _cgroups("cpu"):
        # Version 2 has one file with "QUOTA PERIOD", version 1 has two files. "max" and -1 stand for no quota.
        files = [folder / name for name in CPU_FILES if (folder / name).is_file()]
        words = [word for file in files for word in file.read_text().split()]
        if len(words) == 2 and words[0] not in ("max", "-1"):
            cores = int(words[0]) / int(words[1])
            if cores < smallest:
                smallest, reason = cores, f" (the CPU quota of cgroup {folder} is {cores:g} cores)"
    return smallest, reason


def memory_limits() -> list[MemoryLimit]:
    """Return all limits on the memory that this process may use. The machine's own memory is the first of them."""
    fields = dict(line.split(":") for line in (PROC / "meminfo").read_text().splitlines())
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limits = [MemoryLimit("the machine's memory", total, total - available)]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        used = int((PROC / "self/statm").read_text().split()[0]) * resource.getpagesize()
        limits.append(MemoryLimit("the address space (RLIMIT_AS)", address_space, used, counts_reserved=True))
    return [*limits, *_cgroup_memory()]


def _cgroups(controller: str) -> Iterator[Path]:
    """Yield the folder of the cgroup that this process belongs to for `controller` (such as memory or cpu), and the
    folders of all cgroups above it.

    With version 1 of cgroups each controller has a tree of its own. With version 2 there is a single tree.
    """
    file = PROC / "self/cgroup"
    for line in file.read_text().splitlines() if file.is_file() else ():
        _, controllers, path = line.split(":", maxsplit=2)
        if controllers == "" or controller in controllers.split(","):
            root = CGROUP_ROOT / controller if controllers else CGROUP_ROOT
            group = root / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _cgroup_memory() -> Iterator[MemoryLimit]:
    """Yield the memory limit and the memory in use of the cgroup that this process belongs to, and of all cgroups above
    it.
    """
    for folder in _cgroups("memory"):
        for limit_file, used_file in MEMORY_FILES:
            if (folder / limit_file).is_file():
                limit = (folder / limit_file).read_text().strip()
                if limit != "max" and int(limit) < UNLIMITED:
                    fields = dict(field.split() for field in (folder / "memory.stat").read_text().splitlines())
                    # Subtract the file cache: it counts as used memory, but the system frees it before it kills a
                    # process.
                    kinds = ("inactive_file", "active_file")
                    freed = sum(int(fields.get(f"total_{kind}", fields.get(kind, 0))) for kind in kinds)
                    num_bytes = int((folder / used_file).read_text()) - freed
                    yield MemoryLimit(f"the memory limit of cgroup {folder}", int(limit), num_bytes)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"


@contextmanager
def held() -> Iterator[None]:
    """Inside the `with` block, defer SIGTERM and SIGINT. A signal that arrives in the block is handled after it.

    Threads that are started in the block never receive these two signals. Outside of the main thread nothing is
    deferred, because Python calls signal handlers only in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # SIGINT signals to be handled after the block. They arrived at threads that were started earlier and do not block
    # SIGINT.
    numbers: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: numbers.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if numbers:
        signal.raise_signal(signal.SIGINT)


def raise_again() -> None:
    """Let Ctrl-C raise KeyboardInterrupt in this process again.

    This function undoes a call of `die_quietly` (common/signals.py), after which Ctrl-C ends the process without an
    exception.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def die_with_parent(number: signal.Signals) -> None:
    """Ask the system to send this process the signal `number` when the thread that started the process ends.

    The system also sends it if the parent process is killed. On other systems than Linux, do nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def checksum_of_sources(project: Path, packages: Iterable[str]) -> str:
    """Return a checksum of all Python and C++ sources in the given folders of `project`: `sha256:` and 16 hex digits.

    The checksum identifies the version of the program. It is stored with results that another version must not
    continue.
    """
    digest = hashlib.sha256()
    for path in sorted(path for package in packages for path in (project / package).rglob("*")):
        if path.suffix in (".py", ".cc", ".h"):
            digest.update(f"{path.relative_to(project)}\n".encode())
            digest.update(path.read_bytes())
    return f"sha256:{digest.hexdigest()[:16]}"


def run_module(module: str, *words: str) -> str:
    """Run `python -m MODULE WORDS` in another process, wait for its end, and return its standard output.

    If the process fails, raise ValueError with the last line of its standard error. The process runs in a session of
    its own, so Ctrl-C in the terminal does not reach it.
    """
    process = subprocess.run(  # noqa: S603 (this program)
        [sys.executable, "-P", "-m", module, *words],
        env=project_environment(),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if process.returncode:
        raise ValueError(process.stderr.strip().rpartition("\n")[2].removeprefix("error: "))
    return process.stdout
