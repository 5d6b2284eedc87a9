"""Measure training, preparation and service under a CPU quota, with the threads and workers that the project chooses.

    python -m benchmarks.training.quota                          a quota of one core: about three minutes
    python -m benchmarks.training.quota --cores 0.5 --only train
    python -m benchmarks.training.quota --quick                  few steps: does everything work?

A cgroup limits the CPU time of all processes. Contenders are the default, and 1, 2 and 4 threads (of `train`) or
workers (of `prepare` and `serve`) that are given explicitly. They take turns, so that other load on the machine hits
all of them. The figures of a turn are the seconds of a training step, the seconds of the whole preparation, and, of
the service, the seconds of an answer: one over the answers per second that 16 connections get, each of which sends the
next request of one row as soon as it gets an answer. The sender is outside the cgroup.

The last line of a stage has the default over the best of the others: the median of the ratios of each round, in which
both took a turn, and their quartiles. The best one has the smallest median.

A quota needs root, or a cgroup of version 2 that this user may divide. Without one, nothing is measured.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.harness.cgroup import cpu_cgroup, join
from benchmarks.harness.commands import free_port, is_ready, run_command, running, wait_until, work_folder
from benchmarks.harness.paused_training import PausedTraining
from benchmarks.harness.timing import Timing, in_turns, new_parser, print_result, seconds_of
from benchmarks.scoring.__main__ import write_bundle
from benchmarks.serving.__main__ import Sender, one_row_bodies, random_model
from common.packages import PROJECT

CONFIG = PROJECT / "configs" / "auto.yaml"
DEFAULT, NUMBERS = "default", (1, 2, 4)
CONNECTIONS, LINES, LOG_EVERY_STEPS, BATCH_SIZE = 16, 6, 20, 500
Turns = dict[str, Callable[[], float]]


def contenders(option: str) -> dict[str, tuple[str, ...]]:
    """Return the additional arguments of each contender. `option` has a place for the number."""
    return {DEFAULT: (), **{str(number): tuple(option.format(number).split()) for number in NUMBERS}}


@contextmanager
def train(folder: Path, group: Path, _: Any) -> Iterator[Turns]:
    """Start a training for each contender, and yield functions that take steps and return the seconds of one."""
    settings = (
        f"train.log_every_steps={LOG_EVERY_STEPS}",
        f"train.batch_size={BATCH_SIZE}",
        "train.epochs=100",
        "eval.patience=0",
    )
    words = ("--config", str(CONFIG), "--dataset", str(folder / "prepared"), *settings)

    def seconds_of_step(training: PausedTraining) -> float:
        return float(np.mean(training.take(LINES)))

    with ExitStack() as open_trainings:
        turns: Turns = {}
        for name, more in contenders("device.threads={}").items():
            training = PausedTraining(
                *words, *more, folder=folder / f"train-{name}", batch_size=BATCH_SIZE, before=partial(join, group)
            )
            open_trainings.enter_context(closing(training))
            training.take(1)
            turns[name] = partial(seconds_of_step, training)
        yield turns


@contextmanager
def prepare(folder: Path, group: Path, _: Any) -> Iterator[Turns]:
    """Yield functions that prepare the log and return the seconds."""
    words = ("data_prep", "prepare", "log.txt", "again", "--overwrite", "--config", str(CONFIG))
    yield {
        name: partial(seconds_of, partial(run_command, *words, *more, folder=folder, before=partial(join, group)))
        for name, more in contenders("prepare.workers={}").items()
    }


@contextmanager
def serve(folder: Path, group: Path, options: Any) -> Iterator[Turns]:
    """Start a service for each contender, and yield functions that send requests and return the seconds of one."""
    write_bundle(folder / "bundle", folder / "prepared", *random_model(folder))
    bodies = one_row_bodies(folder)

    def seconds_of_answer(port: int) -> float:
        async def send() -> float:
            sender = Sender(port, bodies, "application/json")
            rate = await sender.closed(CONNECTIONS, options.seconds)
            sender.close()
            return rate

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return 1 / runner.run(send())

    with ExitStack() as services:
        turns: Turns = {}
        for name, more in contenders("--workers {}").items():
            port, log = free_port(), folder / f"serve-{name}.log"
            words = ("app.cli.serve", str(folder / "bundle"), "--name", "clicks", *more, "--port", str(port))
            process = services.enter_context(running(*words, folder=folder, log=log, before=partial(join, group)))
            wait_until(partial(is_ready, port), process, log)
            turns[name] = partial(seconds_of_answer, port)
        yield turns


STAGES = {"train": train, "prepare": prepare, "serve": serve}


def summarize(stage: str, found: dict[str, list[float]]) -> dict[str, Any]:
    """Print and return the figures of a stage: quartiles of each contender, and of the default over the best one."""
    timings = {name: Timing.of(seconds) for name, seconds in found.items()}
    best = min((name for name in timings if name != DEFAULT), key=lambda name: timings[name].median)
    ratios = Timing.of(np.divide(found[DEFAULT], found[best]).tolist())
    print(f"\n== {stage}")
    for name, timing in timings.items():
        rate = f"{1 / timing.median:8,.0f} requests/s" if stage == "serve" else ""
        print(f"{name:8} {timing} {rate}")
    print(f"default over the best ({best}): {ratios.median:.2f} [{ratios.lower:.2f} … {ratios.upper:.2f}]", flush=True)
    return {
        "seconds": {name: vars(timing) for name, timing in timings.items()},
        "best": best,
        "over_best": vars(ratios),
    }


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--cores", type=float, default=1.0, help="the quota (%(default)g)")
    parser.add_argument("--rows", type=int, default=150_000, help="of the synthetic log (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn of the service (%(default)g)")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--quick", action="store_true", help="20,000 rows, 1 round, turns of half a second")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds, options.seconds = 20_000, 1, 0.5
    load = os.getloadavg()[0]
    with work_folder(None) as folder, cpu_cgroup(options.cores) as group:
        if group is None:
            raise SystemExit(
                "error: this user cannot limit the CPU time of a process here; start this benchmark as root"
            )
        run_command("data_prep", "synthesize", "log.txt", "--rows", str(options.rows), folder=folder)
        run_command("data_prep", "prepare", "log.txt", "prepared", "--config", str(CONFIG), folder=folder)
        figures = {}
        for stage in options.only:
            with STAGES[stage](folder, group, options) as turns:
                # Of the service, the first requests are answered more slowly.
                found = in_turns(turns, options.rounds, warm_up=int(stage == "serve"))
            figures[stage] = summarize(stage, found)
    print_result(options, load_before=load, stages=figures)


if __name__ == "__main__":
    main()
