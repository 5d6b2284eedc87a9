"""Cgroups of version 1 or 2 that limit memory or CPU time of a benchmark's processes, and are removed at its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.commands import ENVIRONMENT

CGROUPS = Path("/sys/fs/cgroup")
# Names of the file with a limit, in version 1 and 2.
LIMITS = "memory.limit_in_bytes", "memory.max"
QUOTAS = "cpu.cfs_quota_us", "cpu.max"
PERIOD_US = 100_000  # The quota is the CPU time in this period, which is the default of both versions.


@contextmanager
def _new_cgroup(controller: str, files: tuple[str, ...]) -> Iterator[Path | None]:
    """Yield the folder of a new cgroup, and remove it after the `with` block, also if SIGTERM ends this process.

    Yield None if this user may make no such group, or if it has none of `files`.
    """
    group = (
        CGROUPS / controller if (CGROUPS / controller).is_dir() else CGROUPS
    ) / f"wide-deep-benchmark-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield group if any((group / name).exists() for name in files) else None
    finally:
        group.rmdir()
        signal.signal(signal.SIGTERM, before)


@contextmanager
def memory_cgroup() -> Iterator[Path | None]:
    """Yield the folder of a new cgroup for processes with limited memory, as `_new_cgroup` does."""
    with _new_cgroup("memory", LIMITS) as group:
        yield group


@contextmanager
def cpu_cgroup(cores: float) -> Iterator[Path | None]:
    """Yield the folder of a new cgroup whose processes together get the CPU time of `cores` cores, as `_new_cgroup`
    does.
    """
    with _new_cgroup("cpu", QUOTAS) as group:
        if group is not None:
            name = next(name for name in QUOTAS if (group / name).exists())
            quota = round(cores * PERIOD_US)
            (group / name).write_text(str(quota) if name == QUOTAS[0] else f"{quota} {PERIOD_US}")
        yield group


def set_limit(group: Path, num_bytes: int) -> None:
    """Limit the memory of the processes in a cgroup."""
    name = next(name for name in LIMITS if (group / name).exists())
    (group / name).write_text(str(num_bytes))


def join(group: Path) -> None:
    """Let this process join a cgroup."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def run_app(*words: str, folder: Path, group: Path | None = None) -> tuple[int, str]:
    """Run `python -m app` in `folder`, in a cgroup if `group` is given. Return its exit status, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "app", *words],
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=None if group is None else lambda: join(group),
    )
    return done.returncode, done.stdout
