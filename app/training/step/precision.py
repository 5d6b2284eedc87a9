"""Choose `device.precision=auto`: the faster of float32 and bfloat16 for a tower on this processor.

The processor's feature flags do not tell which is faster: bfloat16 is up to 1.8 times as fast as float32, or half as
fast if a hypervisor hides AMX. So one training step of a tower with the configured widths is timed in both precisions
with the C++ kernels, and the result is cached for later runs. oneDNN reads some settings only once per process, and
these settings depend on the precision. So the timing runs in a process of its own, whose command is
`python -m app.training.step.precision ROWS INPUTS VECTORS WIDTHS THREADS`. MindSpore is not imported.

Shapes use B for rows, K for inputs from table rows and M for vector inputs.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.config.config import Config
from app.config.device import BFLOAT16_FLAGS, Precision, cpu_flags
from app.distributed.mpirun import CHOSEN_PRECISION
from app.model.native_tower import LIBRARY, TowerBatch, TowerPointers, TowerShape, check_status
from app.run.folder import processor_name
from app.tables.backends import fields_of_model, num_deep_inputs
from app.tables.checks import LARGEST_GRADIENT
from common.files import parse_json, write_whole
from common.native_library import output_address
from common.packages import PROJECT
from common.process import started_by_mpi
from data_prep.prepared.schema import Schema

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
# Maximum number of rows in the timed batch. More rows would take longer and change the ratio little.
MOST_ROWS = 1024
# Seconds for measuring both precisions together, and minimum number of steps in each.
SECONDS, LEAST_STEPS = 1.0, 5
# Minimum speedup by which bfloat16 is chosen. A smaller one does not justify its coarser rounding.
LEAST_GAIN = 1.05


def choose(config: Config, schema: Schema, num_ranks: int) -> tuple[Precision, str]:
    """Return the precision to train in, and a line for the log, or "" if there was no choice to make.

    If `config.device.precision` is not "auto", return it; the settings of a resumed run always name a precision. Ranks
    of an MPI job use the precision that the parent process chose before it started mpirun, or float32 if the user
    started mpirun without this program.
    """
    if config.device.precision != "auto":
        return config.device.precision, ""
    if config.device.target not in ("auto", "CPU"):
        return "float32", ""
    # Test only whether the library's file exists. Loading it would load OpenMP, which then reads environment variables
    # that depend on the precision.
    if not cpu_flags() & BFLOAT16_FLAGS or not LIBRARY.path.is_file():
        return "float32", ""
    if started_by_mpi():
        return ("bfloat16" if os.environ.get(CHOSEN_PRECISION) == "bfloat16" else "float32"), ""
    inputs = config.model.embedding_dim * num_deep_inputs(fields_of_model(schema, config.model))
    rows = min(-(-config.train.batch_size // num_ranks), MOST_ROWS)
    sizes = rows, inputs, schema.vector_inputs
    seconds = _seconds_of(*sizes, config.model.hidden_widths, config.device.num_threads)
    if not seconds:
        return "float32", "precision: float32; bfloat16 could not be timed (device.precision=auto)"
    gain = seconds["float32"] / seconds["bfloat16"]
    precision: Precision = "bfloat16" if gain >= LEAST_GAIN else "float32"
    line = f"precision: {precision}; bfloat16 is {gain:.2f} times as fast for this tower (device.precision=auto)"
    return precision, line


def _seconds_of(
    rows: int, inputs: int, vector_inputs: int, widths: tuple[int, ...], num_threads: int
) -> dict[str, float]:
    """Return a mapping from each precision to the CPU seconds that one step of a tower takes in this precision.

    The seconds come from the cache file of earlier launches, or are measured now. Return {} if the measurement fails.
    """
    words = [rows, inputs, vector_inputs, json.dumps(widths), num_threads]
    key = " ".join(map(str, [*words, processor_name(), *sorted(cpu_flags() & BFLOAT16_FLAGS)]))
    file = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wide_deep" / "tower_seconds.json"
    known: dict[str, dict[str, float]] = {}
    with suppress(OSError, ValueError, TypeError):
        known = dict(parse_json(file.read_text(encoding="utf-8")))
    if key not in known:
        # Idle OpenMP threads must sleep, as they do in a training. If they spun, the CPU time would count as work.
        threads = {"OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "passive"}
        environment = {**os.environ, **threads, "PYTHONPATH": str(PROJECT)}
        command = [sys.executable, "-P", "-m", __name__, *map(str, words)]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 (our own)
        if process.returncode:
            return {}
        known[key] = json.loads(process.stdout)
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(known, indent=1) + "\n")
    return known[key]


def measure(rows: int, inputs: int, vector_inputs: int, widths: tuple[int, ...], num_threads: int) -> dict[str, float]:
    """Return the median CPU seconds of a tower's forward and backward pass by precision. The precisions take turns.

    CPU time is used because on a busy machine elapsed time would depend on other processes, and the result is cached.
    """
    LIBRARY.load().dense_set_threads(num_threads)
    steps = {precision: _step_of(rows, inputs, vector_inputs, widths, precision) for precision in PRECISIONS}
    for step in steps.values():
        step()  # The first call of each step creates the library's kernels, which is not measured.
    times: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(times["float32"]) < LEAST_STEPS:
        for precision, step in steps.items():
            start = time.process_time()
            step()
            times[precision].append(time.process_time() - start)
    return {precision: float(np.median(seconds)) for precision, seconds in times.items()}


def _step_of(
    rows: int, inputs: int, vector_inputs: int, widths: tuple[int, ...], precision: Precision
) -> Callable[[], None]:
    """Return a function that runs one forward and backward pass of a tower on random values, with the given precision.

    The tower has `inputs` inputs from table rows, `vector_inputs` from vectors, the hidden `widths`, and no numeric
    fields. The batch has `rows` rows.
    """
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32)

    arrays = {"wide.bias": normal(1), "tower.vector_matrix": normal(vector_inputs, widths[0]) / np.float32(64)}
    for number, (before, width) in enumerate(itertools.pairwise((inputs, *widths, 1))):
        arrays[f"tower.matrix_{number}"] = normal(before, width) / np.float32(np.sqrt(before))
        if number < len(widths):
            arrays[f"tower.bias_{number}"] = normal(width)
    gradients = {name: np.empty_like(values) for name, values in arrays.items()}
    parameters, of_parameters, num_units = TowerPointers(arrays), TowerPointers(gradients), np.array(widths, np.int64)
    deep, wide, vectors = normal(rows, inputs), normal(rows), normal(rows, vector_inputs)
    labels, shares = np.zeros(rows, np.float32), np.ones(rows, np.float32)
    outputs = np.empty_like(deep), np.empty_like(wide), np.empty(3, np.float32)

    def step() -> None:
        options = int(precision == "bfloat16"), 1.0, 0.0, 0.0, float(LARGEST_GRADIENT), math.inf
        shape = TowerShape(rows, inputs, 0, vector_inputs, 0, len(widths), output_address(num_units), *options)
        batch = TowerBatch(*map(output_address, (deep, wide, vectors)), None, *map(output_address, (labels, shares)))
        pointers = ctypes.byref(shape), parameters.pointer, ctypes.byref(batch), of_parameters.pointer
        check_status(LIBRARY.load().tower_gradients(*pointers, None, None, *map(output_address, outputs)))

    return step


if __name__ == "__main__":
    num_rows, num_inputs, num_vector_inputs, widths_text, num_threads = sys.argv[1:]
    sizes = int(num_rows), int(num_inputs), int(num_vector_inputs)
    print(json.dumps(measure(*sizes, tuple(json.loads(widths_text)), int(num_threads))))
