"""Measure how long table kernels take, for `train.profile=true`. Log lines look like `host kernel: EmbeddingLookup
costs 3066 us`.

The kernels of `stock` run inside MindSpore's graph and are timed by MindSpore's profiler. The other backends time their
own calls. Profiling slows a step, so it is limited to `PROFILED_STEPS` steps. Profiling starts with the second step,
because the first one compiles the graph.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from app.config.device import records_dropped
from app.run.logs import OP_TIMES, PROFILED_STEPS
from app.tables.interface import FTRL, LAZY_ADAM, LOOKUP
from app.training.step.step import TrainStep

log = logging.getLogger(__name__)

TIMES_FILE = "cpu_op_execute_timestamp_*.txt"


class KernelProfile:
    """Measures the times of kernels over a few steps, and writes them to `folder` with MindSpore's raw profile.

    MindSpore's profiler first writes to another folder, because version 2.10 refuses paths with spaces or with
    characters beyond ASCII.
    """

    def __init__(self, step: TrainStep, folder: Path) -> None:
        self._step = step
        self._folder = folder
        # Name and microseconds of each run of a kernel outside the graph.
        self._host_runs: list[tuple[str, float]] = []
        self._profiler: Any = None  # The profiler while it is running, otherwise None.
        self._made_in = Path()
        self._steps = 0

    def after_step(self) -> None:
        """Record the kernel times of the step that was just taken. Call this method after every step."""
        self._steps += 1
        if 1 < self._steps <= 1 + PROFILED_STEPS:
            for kernel, seconds in self._step.kernel_seconds().items():
                log_kernel_time(kernel, 1e6 * seconds)
                self._host_runs.append((kernel, 1e6 * seconds))
        if self._steps == 1:
            self._start()
        elif self._steps == 1 + PROFILED_STEPS:
            self.finish()

    def finish(self) -> None:
        """Stop the profiler and write its results, unless that has been done after `PROFILED_STEPS` steps.

        Call this method after the last step, because a run may have fewer steps than that.
        """
        if self._profiler is None:
            return
        with records_dropped(lambda record: True):
            self._profiler.stop()
        self._profiler = None
        runs = graph_op_times(self._made_in)
        for kernel, micros in runs:
            if kernel in (LOOKUP, FTRL, LAZY_ADAM):
                log_kernel_time(kernel, micros)
        (self._made_in / OP_TIMES).write_text(json.dumps(sum_by_op(runs, self._host_runs)), encoding="utf-8")
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.move(self._made_in, self._folder)

    def _start(self) -> None:
        from mindspore import profiler

        self._made_in = Path(tempfile.mkdtemp(prefix="profile-"))
        # Suppress a warning of the profiler, that it has no warm-up schedule.
        with records_dropped(lambda record: True):
            self._profiler = profiler.profile(
                activities=[profiler.ProfilerActivity.CPU],
                start_profile=False,
                on_trace_ready=profiler.tensorboard_trace_handler(str(self._made_in)),
            )
            self._profiler.start()


def sum_by_op(graph: list[tuple[str, float]], host: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Return the number of runs and total milliseconds of each operator, slowest first, as dicts for the results file.

    `graph` and `host` list (operator, microseconds) of every run inside and outside the graph.
    """
    times: dict[tuple[str, str], list[float]] = {}
    for where, runs in (("graph", graph), ("host", host)):
        for op, micros in runs:
            times.setdefault((op, where), []).append(micros / 1000)
    sums = [{"op": op, "where": where, "runs": len(ms), "ms": round(sum(ms), 3)} for (op, where), ms in times.items()]
    return sorted(sums, key=lambda each: -each["ms"])


def graph_op_times(folder: Path) -> list[tuple[str, float]]:
    """Read the profile that MindSpore has written to `folder`. Return (operator, microseconds) of every run, in order
    of time.
    """
    # Each line of the profiler's file is `scope/Kernel-op0;side;start_ns,milliseconds,… start_ns,milliseconds,…`.
    runs = []
    for path in folder.rglob(TIMES_FILE):
        for line in path.read_text(encoding="utf-8").splitlines():
            scope, _, times = line.split(";")
            kernel = scope.rsplit("/", 1)[-1].rsplit("-", 1)[0]
            fields = (time.split(",") for time in times.split())
            runs += [(int(start), kernel, 1000 * float(millis)) for start, millis, *_ in fields]
    return [(kernel, micros) for _, kernel, micros in sorted(runs)]


def log_kernel_time(kernel: str, micros: float) -> None:
    """Log the time of a kernel in microseconds, in the form of MindSpore's tutorial."""
    log.info("host kernel: %s costs %.0f us", kernel, micros)
