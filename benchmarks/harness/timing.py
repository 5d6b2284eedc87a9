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

from app.model import native_tower
from app.run.folder import processor_name
from app.tables.native import library as host_tables
from data_prep.kernels import native

Result = TypeVar("Result")

# Pause between contenders. Thread pools spin for a while after their work, on the cores that the next contender needs.
SETTLE_SECONDS = 0.02
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
    """Call each contender once in each round. Return the results of each contender by name, one for each round.

    Each round starts with another contender. Results of the first `warm_up` rounds are dropped.
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
    """Call each contender once in each round, and return the seconds that each took.

    `clock` is the wall clock by default.
    """
    timed = {name: partial(seconds_of, function, clock) for name, function in contenders.items()}
    return {name: Timing.of(seconds) for name, seconds in in_turns(timed, rounds, warm_up).items()}


def seconds_of(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Call a function and return the seconds that it took by `clock`, which is the wall clock by default."""
    start = clock()
    function()
    return clock() - start


@dataclass
class Taken:
    """What some processes took: seconds by the wall clock, seconds of all processors, and the peak of their memory.

    The memory is the sum of the Pss of all processes.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mib: float = 0.0


@contextmanager
def metered() -> Iterator[Taken]:
    """Measure all processes that are started in the `with` block, and the processes that these start.

    The object that is yielded has the peak memory so far already inside the block.
    """
    taken, over = Taken(), threading.Event()

    def sample() -> None:
        pause = SAMPLE_SECONDS
        while not over.wait(pause):
            start = time.perf_counter()
            taken.peak_mib = max(taken.peak_mib, _pss_mib_of_children())
            # Reading the Pss of gigabytes takes time too.
            pause = max(SAMPLE_SECONDS, 10 * (time.perf_counter() - start))

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
    """Return the processor time (user and system) of all child processes that this process has waited for.

    The time of their own children is included.
    """
    times = os.times()
    return times.children_user + times.children_system


def _pss_mib_of_children() -> float:
    """Return the memory of all processes below this one in MiB, as the sum of their Pss: shared pages count once."""
    pss = 0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            pss += child.memory_full_info().pss
    return pss / 2**20


def peak_memory_mib(pid: int | str = "self") -> float:
    """Return the peak resident memory of a process so far, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def machine() -> dict[str, str | int]:
    """Return a description of this machine and of the commit, on which all figures depend.

    Raise OSError if a native part is not built, or is older than its sources: the slower parts would be measured.
    """
    for library in (native.LIBRARY, host_tables.LIBRARY, native_tower.LIBRARY):
        library.load()
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "commit": _commit(),
    }


def new_parser(doc: str | None, has_work: bool = False) -> argparse.ArgumentParser:
    """Return the argument parser of a benchmark.

    Its help is `doc`, and its only option is --work, if `has_work` is True.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if has_work:
        parser.add_argument("--work", type=Path, help="logs, prepared folders and figures; default: a new one, removed")
    return parser


def print_result(options: argparse.Namespace, **figures: Any) -> None:
    """Print the last line of a benchmark as JSON: the machine, the arguments except paths, and the figures."""
    arguments = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    print(json.dumps({"machine": machine(), "arguments": arguments, **figures}))


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"
