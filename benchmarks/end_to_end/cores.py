"""Measure each stage on one core and on all cores of this machine, and estimate it on 8, 16 and 64 cores.

    python -m benchmarks.end_to_end.cores                    2 million synthetic rows: about ten minutes on two cores
    python -m benchmarks.end_to_end.cores --rows 400000 --only prepare train

The stages are the commands of the README with `configs/auto.yaml`, each a process whose cores are limited as by
taskset: prepare, train for two epochs, evaluate, export and predict.

- `alone` are the seconds, with all cores, in which the processes of a stage used less than ALONE cores. Starting
  Python, imports, and sections on one thread are among them.
- The serial share s comes from Amdahl's law, T(n) = T(1) · (s + (1 - s) / n), solved for the two measured times.
- The estimates follow the same law. They are upper bounds: memory, shared caches and disks do not grow with the cores.
  The last lines give the speed of a memory copy on one core and on all. A machine on which it does not grow further
  cannot be faster in stages whose time is that of memory.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from benchmarks.harness.commands import run_command, work_folder
from benchmarks.harness.timing import in_turns, new_parser, print_result, seconds_of
from benchmarks.training.kernels import MemoryCopy
from common.packages import PROJECT
from data_prep.sources.synthetic import synthesize

CONFIG = ("--config", str(PROJECT / "configs" / "auto.yaml"))
STAGES = {
    "prepare": ("data_prep", "prepare", "log.txt", "prepared", "--overwrite", *CONFIG),
    "train": ("app", "train", "--dataset", "prepared", *CONFIG, "train.epochs=2"),
    "evaluate": ("app", "evaluate"),
    "export": ("app", "export", "device_0", "bundle", "--overwrite"),
    "predict": ("app", "predict", "bundle", "log.txt", "scores.parquet", "--overwrite"),
}
ESTIMATED = (8, 16, 64)
ALONE, SAMPLE_SECONDS = 1.2, 0.1
COPIED_BYTES = 2**28


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Let this process, and the processes that it starts, use only `count` of its cores in the `with` block."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def used_seconds() -> float:
    """Return the processor time so far of all processes below this one, including children that have ended."""
    seconds = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # It has ended.
            seconds += sum(child.cpu_times()[:4])
    return seconds


def seconds_alone(call: Callable[[], object]) -> float:
    """Call a function that starts processes, and return the seconds in which they used less than ALONE cores."""
    alone, over = 0.0, threading.Event()

    def sample() -> None:
        nonlocal alone
        then, used_then = time.perf_counter(), used_seconds()
        while not over.wait(SAMPLE_SECONDS):
            now, used = time.perf_counter(), used_seconds()
            alone += (now - then) * (used - used_then < ALONE * (now - then))
            then, used_then = now, used

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        call()
    finally:
        over.set()
        sampler.join()
    return alone


def run(stage: str, cores: int, folder: Path) -> tuple[float, float]:
    """Run a stage on some cores. Return its seconds, and the seconds in which it used less than ALONE of them."""
    if stage == "train":
        shutil.rmtree(folder / "device_0", ignore_errors=True)
    alone: list[float] = []
    with on_cores(cores):
        seconds = seconds_of(lambda: alone.append(seconds_alone(lambda: run_command(*STAGES[stage], folder=folder))))
    return seconds, alone[0]


def serial_share(one: float, many: float, cores: int) -> float:
    """Return the share s of Amdahl's law, given the times on one core and on several. It is 0 if all is parallel."""
    return float(np.clip((many / one - 1 / cores) / (1 - 1 / cores), 0, 1))


def speedup(share: float, cores: int) -> float:
    """Return how many times as fast a stage with this serial share is on several cores as on one."""
    return 1 / (share + (1 - share) / cores)


def copy_speed(cores: int) -> float:
    """Return the bytes per second that are read and written while memory is copied: the best of five copies."""
    with on_cores(cores):
        copy = MemoryCopy(COPIED_BYTES, cores)
        return COPIED_BYTES / min(seconds_of(copy) for _ in range(5))


def main() -> None:
    parser = new_parser(__doc__, has_work=True)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", choices=tuple(STAGES), default=list(STAGES), help="a stage needs those before"
    )
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        raise SystemExit("error: this process may use one core only, so there is nothing to compare")
    figures = {}
    with work_folder(options.work) as work:
        if not (work / "log.txt").is_file():
            synthesize(work / "log.txt", options.rows, seed=1)
        titles = "".join(f"{f'{count} cores':>10}" for count in ESTIMATED)
        print(f"{'':10}{'1 core':>10}{f'{cores} cores':>10}{'speed-up':>10}{'alone':>8}{'serial':>8}{titles}")
        for stage in options.only:
            turns = {str(count): partial(run, stage, count, work) for count in (1, cores)}
            results = in_turns(turns, options.rounds)
            one, many = (float(np.median([seconds for seconds, _ in results[str(count)]])) for count in (1, cores))
            alone = float(np.median([each for _, each in results[str(cores)]]))
            share = serial_share(one, many, cores)
            estimates = {count: speedup(share, count) for count in ESTIMATED}
            figures[stage] = {"one": one, "many": many, "alone": alone, "serial_share": share, "estimates": estimates}
            line = f"{stage:10}{one:8.1f} s{many:8.1f} s{one / many:10.2f}{alone:6.1f} s{share:8.0%}"
            print(line + "".join(f"{each:8.1f} x" for each in estimates.values()), flush=True)
    speeds = {count: copy_speed(count) for count in (1, cores)}
    for count, speed in speeds.items():
        print(f"memory copy on {count} core{'s' * (count > 1)}: {speed / 1e9:.1f} GB/s")
    print_result(options, figures=figures, copy_bytes_per_second=speeds)


if __name__ == "__main__":
    main()
