"""Measure the constants of `app.training.step.first_layer`: what the sums over positions cost, in columns of products.

    python -m benchmarks.training.first_layer

Calls the first layer's kernels, forward and backward, with all fields distinct and with all fields direct, in turns.
With a share s of each field's positions distinct, distinct over direct takes s + SUMS_COST / D of the time. Beside it
the tables' part of a step, lookup and LazyAdam: of the rows of all positions, and of distinct rows alone.

Letters: B batch, C fields, D embedding width, H width of the layer, U distinct rows.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
from collections.abc import Callable

import numpy as np

from app.device import cpu_flags
from app.model.native_layer import BFLOAT16_FLAGS
from app.model.native_library import LIBRARY, distinct_rows
from app.tables.interface import TablesSpec
from app.tables.native.tables import NativeTables
from app.training.step.distinct import one_field
from benchmarks.harness.timing import machine, side_by_side
from benchmarks.harness.workload import NUM_BATCHES, field_starts, log_ids
from benchmarks.training.kernels import RATES, make_spec, random_gradients

BATCH, WIDTH, WIDTH_OUT, NUM_NUMERIC = 16_000, 80, 1024, 14


def call(name: str, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    """Call an operator of the library as MindSpore does."""
    arrays = [*inputs, *outputs]
    params = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    rows = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    shapes = (ctypes.c_void_p * len(arrays))(*(ctypes.addressof(row) for row in rows))
    assert getattr(LIBRARY.load(), name)(len(arrays), params, None, shapes, None, None, None) == 0


def layer(precision: str, ids: np.ndarray, is_distinct: int) -> Callable[[], None]:
    """Forward and backward of the layer for a batch, every field distinct or none."""
    rng, num_fields = np.random.default_rng(0), ids.shape[1]
    row_ids, index, starts = distinct_rows(ids)
    fields = np.concatenate([starts, np.full(num_fields, is_distinct, np.int32)])
    sizes = (len(row_ids), WIDTH), (num_fields * WIDTH, WIDTH_OUT), (len(ids), NUM_NUMERIC), (NUM_NUMERIC, WIDTH_OUT)
    rows, weights, numeric, numeric_weights = (rng.standard_normal(size, np.float32) for size in sizes)
    gradient = rng.standard_normal((len(ids), WIDTH_OUT), np.float32)
    outputs, gradients = np.empty_like(gradient), [np.empty_like(a) for a in (rows, weights, numeric_weights)]
    others = [index, fields, np.zeros(3, np.int32)]

    def run() -> None:
        call(f"distinct_forward_{precision}", [rows, weights, numeric, numeric_weights, *others], [outputs])
        call(f"distinct_backward_{precision}", [gradient, outputs, rows, weights, numeric, *others], gradients)

    return run


def tables_step(spec: TablesSpec, batches: list[np.ndarray]) -> Callable[[], None]:
    """Lookup and update of each of `batches` in turn, as fields of `spec`; their ids are known and no row is new."""
    tables = NativeTables(spec, RATES)
    uniques = [tables.unique(ids) for ids in batches]
    gradients = [random_gradients(np.random.default_rng(0), len(ids), WIDTH, ids.shape[1]) for ids in batches]

    def run() -> None:
        for unique, gradient in zip(uniques, gradients, strict=True):
            tables.lookup(unique)
            tables.update(unique, gradient, checked=True)

    return run


def measure_tables(rounds: int) -> dict[str, float]:
    """Seconds of the tables' part of a step, by way."""
    batches = np.split(log_ids(np.random.default_rng(0), BATCH * NUM_BATCHES), NUM_BATCHES)
    spec = make_spec(int(field_starts()[-1]), WIDTH)
    turns = {
        "direct": tables_step(spec, batches),
        "distinct": tables_step(one_field(spec), [distinct_rows(ids)[0][:, None] for ids in batches]),
    }
    seconds = {name: timing.median / NUM_BATCHES for name, timing in side_by_side(turns, rounds).items()}
    direct, distinct = (1e3 * seconds[name] for name in turns)
    print(f"lookup and LazyAdam: direct {direct:.1f} ms, distinct {distinct:.1f} ms, {distinct / direct:.2f} of it")
    return seconds


def main() -> None:
    """Measure each precision, and the tables; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    LIBRARY.load().dense_set_threads(len(os.sched_getaffinity(0)))
    ids = log_ids(np.random.default_rng(0), BATCH)
    share = len(distinct_rows(ids)[0]) / ids.size
    costs = {}
    for precision in ("float32", *(("bfloat16",) if cpu_flags() & BFLOAT16_FLAGS else ())):
        turns = {name: layer(precision, ids, way) for name, way in (("direct", 0), ("distinct", 1))}
        timings = side_by_side(turns, rounds, 1)
        ratio = timings["distinct"].median / timings["direct"].median
        costs[precision] = (ratio - share) * WIDTH
        direct, distinct = (1e3 * timings[name].median for name in turns)
        print(
            f"{precision}, {share:.1%} distinct: direct {direct:.0f} ms, distinct {distinct:.0f} ms, {1 / ratio:.2f} x "
            f"(the sums cost {costs[precision]:.1f} columns)"
        )
    tables = measure_tables(rounds)
    print(json.dumps({"machine": machine(), "share": share, "sums_cost": costs, "tables": tables}))


if __name__ == "__main__":
    main()
