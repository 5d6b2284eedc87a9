"""Measure time and memory. Contenders take turns, so that other load on the machine hits all of them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from app.model import layer_library
from app.run.folder import processor_name
from app.tables.native import library as host_tables
from data_prep.kernels import native

Result = TypeVar("Result")

SETTLE_SECONDS = 0.02  # thread pools spin for a while after their work, on the cores of whoever comes next
SAMPLE_SECONDS = 0.2


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender over the rounds: median and quartiles."""

    median: float
    lower: float
    upper: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Timing:
        lower, median, upper = np.quantile(seconds, [0.25, 0.5, 0.75])
        return Timing(float(median), float(lower), float(upper))

    def __str__(self) -> str:
        return f"{self.median * 1e3:8.2f} ms  [{self.lower * 1e3:.2f} … {self.upper * 1e3:.2f}]"


def in_turns(contenders: Mapping[str, Callable[[], Result]], rounds: int, warm_up: int = 0) -> dict[str, list[Result]]:
    """Call each contender once a round, starting with another one each round, and return what they return.

    Warm-up rounds do not count.
    """
    names = list(contenders)
    results: dict[str, list[Result]] = {name: [] for name in names}
    for turn in range(warm_up + rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(SETTLE_SECONDS)
            result = contenders[name]()
            if turn >= warm_up:
                results[name].append(result)
    return results


def side_by_side(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time contenders in turns, by the wall's clock or another."""
    timed = {name: partial(seconds_of, function, clock) for name, function in contenders.items()}
    return {name: Timing.of(seconds) for name, seconds in in_turns(timed, rounds, warm_up).items()}


def seconds_of(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Call a function and return its seconds by a clock, the wall's by default."""
    start = clock()
    function()
    return clock() - start


@dataclass
class Taken:
    """Seconds by the clock and of all processors, and the peak of the memory: the sum of the Pss of all processes."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mib: float = 0.0


@contextmanager
def metered() -> Iterator[Taken]:
    """Measure the processes that are started in the block, and theirs. The peak so far is known in the block too."""
    taken, over = Taken(), threading.Event()

    def sample() -> None:
        pause = SAMPLE_SECONDS
        while not over.wait(pause):
            start = time.perf_counter()
            taken.peak_mib = max(taken.peak_mib, _pss_mib_of_children())
            pause = max(SAMPLE_SECONDS, 10 * (time.perf_counter() - start))  # the Pss of gigabytes takes its time, too

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    start, before = time.perf_counter(), children_seconds()
    try:
        yield taken
    finally:
        taken.seconds = time.perf_counter() - start
        taken.cpu_seconds = children_seconds() - before
        over.set()
        sampler.join()


def children_seconds() -> float:
    """Return the user and system time of the processes that this one has started and waited for, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system


def _pss_mib_of_children() -> float:
    """Return the Pss of all processes below this one: shared pages count once."""
    pss = 0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            pss += child.memory_full_info().pss
    return pss / 2**20


def peak_memory_mib(pid: int | str = "self") -> float:
    """Return the most that a process has had in memory so far."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def machine() -> dict[str, str | int]:
    """Return the machine and the commit, on which all figures depend.

    Raises OSError if a native part is not built, or older than its source: what stands in for it is slower.
    """
    for library in (native.LIBRARY, host_tables.LIBRARY, layer_library.LIBRARY):
        library.load()
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "commit": _commit(),
    }


def new_parser(doc: str | None, has_work: bool = False) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command, by its docstring, with --work alone or nothing."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if has_work:
        parser.add_argument("--work", type=Path, help="logs, prepared folders and figures; default: a new one, removed")
    return parser


def print_result(options: argparse.Namespace, **figures: Any) -> None:
    """Print the last line of a benchmark: the machine, its arguments but for folders, and its figures, as JSON."""
    arguments = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    print(json.dumps({"machine": machine(), "arguments": arguments, **figures}))


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"
