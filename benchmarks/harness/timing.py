"""Measure time and memory. Contenders take turns, so that other load on the machine hits all of them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SETTLE_SECONDS = 0.02  # thread pools spin for a while after their work, on the cores of whoever comes next


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender over the rounds: median and quartiles."""

    median: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.median * 1e3:8.2f} ms  [{self.lower * 1e3:.2f} … {self.upper * 1e3:.2f}]"


def side_by_side(contenders: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2) -> dict[str, Timing]:
    """Time each contender once a round, starting with another one each round. Warm-up rounds do not count."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm_up + rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(SETTLE_SECONDS)
            elapsed = seconds_of(contenders[name])
            if turn >= warm_up:
                seconds[name].append(elapsed)
    return {name: _summary(values) for name, values in seconds.items()}


def _summary(seconds: list[float]) -> Timing:
    lower, median, upper = np.quantile(seconds, [0.25, 0.5, 0.75])
    return Timing(float(median), float(lower), float(upper))


def seconds_of(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Call a function and return its seconds by a clock, the wall's by default."""
    start = clock()
    function()
    return clock() - start


def memory_mib(key: str) -> float:
    """Return this process's memory in MiB from /proc: VmRSS is the current, VmHWM the largest so far."""
    match = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert match
    return int(match[1]) / 1024


def machine() -> dict[str, str | int]:
    """Return the machine and the commit, on which all figures depend."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"
