"""This process and its program beside the system: what memory and cores it may take, when signals reach it, its end.

The tables ask before they grow, as the system kills a process that takes more memory than there is.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.signals import SIGNALS

CGROUP_ROOT, PROC = Path("/sys/fs/cgroup"), Path("/proc")
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h
UNLIMITED = 2**60  # cgroup 1 writes "no limit" as a number near 2**63


@dataclass(frozen=True)
class MemoryLimit:
    """A limit and the use under it, in bytes."""

    name: str
    limit: int
    used: int
    counts_reserved: bool = False  # also pages that were taken from the system and not written to yet

    @property
    def free(self) -> int:
        """Bytes that may still be taken, never below 0."""
        return max(self.limit - self.used, 0)


def require_memory(num_bytes: int, purpose: str, reserved_bytes: int = 0) -> None:
    """Raise MemoryError naming `purpose`, sizes and limit, unless `num_bytes` more fit under every known limit.

    `reserved_bytes` were taken from the system and not written to yet: it counts them as free, though they are not.
    """
    free = {limit: max(limit.free - (0 if limit.counts_reserved else reserved_bytes), 0) for limit in memory_limits()}
    tightest = min(free, key=lambda limit: free[limit])
    if num_bytes > free[tightest]:
        raise MemoryError(
            f"{purpose} needs {_mib(num_bytes)} more; {tightest.name} is {_mib(tightest.limit)}, of which "
            f"{_mib(free[tightest])} are free; raise that limit, or take fewer or smaller rows: prepare.min_count, "
            "model.embedding_dim, tables.dtype=bfloat16"
        )


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_limits() -> list[MemoryLimit]:
    """Return every limit that is set for this process. The machine's own memory always is one."""
    fields = dict(line.split(":") for line in (PROC / "meminfo").read_text().splitlines())
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limits = [MemoryLimit("the machine's memory", total, total - available)]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        used = int((PROC / "self/statm").read_text().split()[0]) * resource.getpagesize()
        limits.append(MemoryLimit("the address space (RLIMIT_AS)", address_space, used, counts_reserved=True))
    return [*limits, *_cgroups()]


def _cgroups() -> Iterator[MemoryLimit]:
    """Yield the limits of the process's memory cgroup and of all above it."""
    for line in (PROC / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", maxsplit=2)
        if controllers == "":
            root, limit_file, used_file = CGROUP_ROOT, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit_file, used_file = CGROUP_ROOT / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root) and (folder / limit_file).is_file():
                limit = (folder / limit_file).read_text().strip()
                if limit != "max" and int(limit) < UNLIMITED:
                    fields = dict(field.split() for field in (folder / "memory.stat").read_text().splitlines())
                    # Of the file cache: it counts as used, but is freed before anything is killed.
                    freed = int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
                    num_bytes = int((folder / used_file).read_text()) - freed
                    yield MemoryLimit(f"the memory limit of cgroup {folder}", int(limit), num_bytes)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"


@contextmanager
def held() -> Iterator[None]:
    """Defer signals to the end of the block. Threads that are started in it block them for good.

    Do nothing outside of the main thread, as no handler is called there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers: list[int] = []  # by threads that were started before, and do not block it
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
    """Let Ctrl-C raise KeyboardInterrupt again, after `die_quietly`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def die_with_parent(number: signal.Signals) -> None:
    """Have this process sent a signal when the thread that started it ends, however that ends. On Linux alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def checksum_of_sources(project: Path, packages: Iterable[str]) -> str:
    """Return a checksum of the packages' Python and C++: another release may make other bytes."""
    digest = hashlib.sha256()
    for path in sorted(path for package in packages for path in (project / package).rglob("*")):
        if path.suffix in (".py", ".cc", ".h"):
            digest.update(f"{path.relative_to(project)}\n".encode())
            digest.update(path.read_bytes())
    return f"sha256:{digest.hexdigest()[:16]}"
