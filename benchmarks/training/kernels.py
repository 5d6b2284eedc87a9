"""Compare the native table kernels with MindSpore's stock host operators and a plain memory copy.

    python -m benchmarks.training.kernels             lookup, LazyAdam, FTRL, unique at batch 16,000, D 80, V 200,000
    python -m benchmarks.training.kernels --growth    lookup + update as vocabulary and batch grow
    python -m benchmarks.training.kernels --dtypes    lookup + update of rows in bfloat16 beside float32

Ids follow a power law, density x^(-2/3) over x · V: a third of a batch's ids are distinct, one is 1.7 % of all.

The copy moves the bytes that the operation has to move, half of them read and half written, on as many threads. Lookup
reads each unique row once and writes every position. LazyAdam reads the gradient of every position once (that the
finite check reads it too is not counted), and reads and writes each unique row with its moments. The operation's time
includes all that its call does in Python.

The stock operators do less: no check of ids or gradients, no L2, no ‖row‖². They sum duplicates themselves. native's
unique, which runs ahead beside the step before, has a line of its own.

Letters: B batch, C looked-up fields, D embedding width, V vocabulary size, U unique ids of a batch.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.tables.fields import TableField
from app.tables.interface import DEEP, WIDE, RowGradients, TableRates, TablesSpec
from app.tables.native.tables import NativeTables
from benchmarks.harness.timing import Timing, new_parser, print_result, side_by_side
from common.arrays.pages import huge_pages

NUM_FIELDS = 26
FLOAT_BYTES = 4
EMBEDDING_DIM, VOCABULARY_SIZE = 80, 200_000
THREADS = len(os.sched_getaffinity(0))
RATES: TableRates = {WIDE: lambda step: 5e-2, DEEP: lambda step: 3.5e-4}
Contenders = dict[str, Callable[[], object]]


def make_spec(vocabulary_size: int, embedding_dim: int) -> TablesSpec:
    """Return the description of tables with the model zoo's settings and the given sizes."""
    names = tuple(f"C{field + 1}" for field in range(NUM_FIELDS))
    return TablesSpec(
        vocabulary_size, embedding_dim, tuple(map(TableField, names)), 1, 0.01, 8e-5, FtrlOptions(), LazyAdamOptions()
    )


def power_law_ids(rng: np.random.Generator, vocabulary_size: int, batch: int) -> np.ndarray:
    """Return random ids [B, C] int32 that follow a power law. An id's frequency does not depend on its number."""
    by_frequency = rng.permutation(vocabulary_size).astype(np.int32)
    return by_frequency[(rng.random((batch, NUM_FIELDS)) ** 3 * vocabulary_size).astype(np.int64)]


def random_gradients(rng: np.random.Generator, batch: int, embedding_dim: int) -> RowGradients:
    """Return random gradients of rows, as small as those of a mean over the batch."""
    deep = huge_pages(batch * NUM_FIELDS * embedding_dim * FLOAT_BYTES).view(np.float32).reshape(batch, -1)
    rng.standard_normal(dtype=np.float32, out=deep)
    deep /= batch
    return RowGradients(deep, rng.standard_normal(batch, np.float32) / np.float32(batch))


class MemoryCopy:
    """A copy from one buffer to another that moves `num_bytes`: half of them read, half written."""

    def __init__(self, num_bytes: int, num_threads: int) -> None:
        part = num_bytes // 2 // num_threads
        self._source, self._target = huge_pages(part * num_threads), huge_pages(part * num_threads)
        self._source[:] = 1
        self._parts = [slice(thread * part, (thread + 1) * part) for thread in range(num_threads)]
        self._pool = ThreadPoolExecutor(num_threads)

    def __call__(self) -> None:
        list(self._pool.map(self._copy, self._parts))

    def _copy(self, part: slice) -> None:
        np.copyto(self._target[part], self._source[part])


def native_contenders(tables: NativeTables, ids: np.ndarray, gradients: RowGradients) -> Contenders:
    """Return functions that call each native kernel as a training step does, by name."""
    unique = tables.unique(ids)
    tables.update(unique, gradients)
    slots = tables.touch(unique.values)

    def lazy_adam() -> None:
        tables.all_finite(gradients.deep)
        tables.update_deep(unique, tables.touch(unique.values), gradients.deep, gradients.scale)

    return {
        "lookup native": lambda: tables.lookup(unique),
        "lazy_adam native": lazy_adam,
        "ftrl native": lambda: tables.update_wide(unique, slots, gradients.wide, gradients.scale),
        "unique native": lambda: tables.unique(ids),
    }


def copy_contenders(num_unique: int, num_positions: int) -> Contenders:
    """Return the memory copies with which lookup and LazyAdam are compared, by name.

    One more copy moves the row of every position in and out.
    """
    row_bytes = EMBEDDING_DIM * FLOAT_BYTES
    return {
        "lookup copy": MemoryCopy((num_unique + num_positions) * row_bytes, THREADS),
        "lookup copy of all positions": MemoryCopy(2 * num_positions * row_bytes, THREADS),
        "lazy_adam copy": MemoryCopy((num_positions + 6 * num_unique) * row_bytes, THREADS),
    }


def stock_contenders(spec: TablesSpec, ids: np.ndarray, gradients: RowGradients) -> Contenders:
    """Return functions that run MindSpore's operators on all its threads, by name. `asnumpy` waits for the result."""
    import mindspore as ms

    from app.training.step.stock_step import TableParameters
    from benchmarks.training.stock_operators import StockFtrl, StockLazyAdam, StockLookup

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    flat_ids = ms.Tensor(ids.reshape(-1))
    deep = ms.Tensor(gradients.deep.reshape(-1, spec.embedding_dim))
    wide = ms.Tensor(np.repeat(gradients.wide, NUM_FIELDS)[:, None])
    tables, rate = TableParameters(spec), ms.Tensor(RATES[DEEP](1), ms.float32)
    lookup, lazy_adam, ftrl = StockLookup(tables), StockLazyAdam(tables), StockFtrl(tables)
    return {
        "lookup stock": lambda: lookup(flat_ids).asnumpy(),
        "lazy_adam stock": lambda: lazy_adam(deep, flat_ids, rate)[0].asnumpy(),
        "ftrl stock": lambda: ftrl(wide, flat_ids)[0].asnumpy(),
    }


def measure_kernels(batch: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of all kernels, of MindSpore's operators and of the copies, and their ratios."""
    rng = np.random.default_rng(0)
    spec = make_spec(VOCABULARY_SIZE, EMBEDDING_DIM)
    tables = NativeTables(spec, RATES, THREADS)
    ids, gradients = power_law_ids(rng, VOCABULARY_SIZE, batch), random_gradients(rng, batch, EMBEDDING_DIM)
    num_unique = tables.unique(ids).values.size
    print(f"{ids.size:,} ids, {num_unique:,} of them distinct; {THREADS} threads, {tables.instruction_set}")
    contenders = {
        **native_contenders(tables, ids, gradients),
        **copy_contenders(num_unique, ids.size),
        **stock_contenders(spec, ids, gradients),
    }
    timings = side_by_side(dict(sorted(contenders.items())), rounds)
    for name, timing in timings.items():
        print(f"{name:30s} {timing}")
    return {"num_unique": num_unique, "seconds": medians(timings), "ratios": ratios(timings)}


def medians(timings: dict[str, Timing]) -> dict[str, float]:
    return {name: timing.median for name, timing in timings.items()}


def ratios(timings: dict[str, Timing]) -> dict[str, float]:
    """Return how many times native is faster than stock, and its time divided by that of the copy, by operation."""
    by_name = {}
    for name, timing in timings.items():
        operation, _, contender = name.partition(" ")
        native = timings[f"{operation} native"].median
        if contender == "stock":
            by_name[f"{operation} faster than stock"] = timing.median / native
        elif contender != "native":
            by_name[f"{operation} time of {contender}"] = native / timing.median
    for name, ratio in by_name.items():
        print(f"{name:50s} {ratio:.2f}")
    return by_name


def measure_vocabularies(batch: int, num_touched: int, rounds: int) -> list[dict[str, Any]]:
    """Measure lookup and update with vocabularies from 10⁵ to 10⁸ ids. Return the seconds of each.

    Every batch has the same number of unique ids. They are drawn uniformly from the touched rows, which lie anywhere in
    the vocabulary.
    """
    num_unique, num_batches = 60_000, 4
    rng, gradients = np.random.default_rng(0), random_gradients(np.random.default_rng(0), batch, EMBEDDING_DIM)
    contenders: Contenders = {}
    touched: dict[str, int] = {}
    for vocabulary_size in (10**5, 10**6, 10**7, 10**8):
        tables = NativeTables(make_spec(vocabulary_size, EMBEDDING_DIM), RATES, THREADS)
        pool = rng.choice(vocabulary_size, min(vocabulary_size, num_touched), replace=False)
        tables.touch(pool)
        batches = [ids_with_unique(rng, pool, batch, num_unique) for _ in range(num_batches)]
        name = f"V {vocabulary_size:,}"
        contenders[name], touched[name] = step_through(tables, batches, gradients), pool.size
    timings = side_by_side(contenders, rounds)
    fastest = timings["V 100,000"].median
    for name, timing in timings.items():
        print(f"{name:15s} {touched[name]:10,} rows touched  {timing}  {timing.median / fastest:.2f} × V 100,000")
    return [
        {"name": name, "num_touched": touched[name], "num_unique": num_unique, "seconds": timing.median}
        for name, timing in timings.items()
    ]


def ids_with_unique(rng: np.random.Generator, pool: np.ndarray, batch: int, num_unique: int) -> np.ndarray:
    """Return ids [B, C] int32 from `pool`, exactly `num_unique` of them distinct, in random order."""
    distinct = rng.choice(pool, num_unique, replace=False)
    ids = np.concatenate([distinct, rng.choice(distinct, batch * NUM_FIELDS - num_unique)])
    return rng.permutation(ids).reshape(batch, NUM_FIELDS).astype(np.int32)


def step_through(tables: NativeTables, batches: list[np.ndarray], gradients: RowGradients) -> Callable[[], object]:
    """Return a function that does the tables' part of a step, lookup and update, on one batch after the other.

    The unique ids of the batches are computed before.
    """
    uniques = itertools.cycle([tables.unique(ids) for ids in batches])

    def step() -> None:
        unique = next(uniques)
        tables.lookup(unique)
        tables.update(unique, gradients)

    return step


def measure_batches(rounds: int) -> list[dict[str, Any]]:
    """Measure lookup and update at growing batch sizes, with all rows touched.

    Return the time for a row of the batch.
    """
    rng = np.random.default_rng(0)
    spec, contenders = make_spec(VOCABULARY_SIZE, EMBEDDING_DIM), {}
    batch_sizes = (256, 16_000, 65_536)
    for batch in batch_sizes:
        tables = NativeTables(spec, RATES, THREADS)
        tables.touch(np.arange(VOCABULARY_SIZE))
        batches = [power_law_ids(rng, VOCABULARY_SIZE, batch) for _ in range(2)]
        contenders[f"B {batch:,}"] = step_through(tables, batches, random_gradients(rng, batch, EMBEDDING_DIM))
    timings = side_by_side(contenders, rounds)
    results = []
    for batch, (name, timing) in zip(batch_sizes, timings.items(), strict=True):
        print(f"{name:15s} {timing}  {timing.median / batch * 1e6:.2f} µs a row")
        results.append({"batch": batch, "seconds": timing.median, "microseconds_per_row": timing.median / batch * 1e6})
    return results


def measure_dtypes(batch: int, rounds: int) -> dict[str, Any]:
    """Return the bytes of a touched row, and the seconds of lookup and update, of bfloat16 divided by those of float32.

    They are given for two embedding widths.
    """
    result = {}
    for dim in (80, 8):
        rng = np.random.default_rng(0)
        batches = [power_law_ids(rng, VOCABULARY_SIZE, batch) for _ in range(4)]
        gradients = random_gradients(rng, batch, dim)
        float32 = make_spec(VOCABULARY_SIZE, dim)
        specs = {"float32": float32, "bfloat16": replace(float32, dtype="bfloat16")}
        tables = {dtype: NativeTables(spec, RATES) for dtype, spec in specs.items()}
        for each in tables.values():
            each.touch(rng.permutation(VOCABULARY_SIZE))
        timings = side_by_side({d: step_through(each, batches, gradients) for d, each in tables.items()}, rounds)
        for dtype, timing in timings.items():
            print(f"D {dim}, {dtype}: {specs[dtype].row_bytes()} bytes a row, lookup and update {timing}", flush=True)
        size, time = over_float32({d: spec.row_bytes() for d, spec in specs.items()}), over_float32(medians(timings))
        result[f"D {dim}"] = {"bytes": size, "seconds": time, "of_step": medians(timings)}
        print(f"D {dim}: bytes {size:.3f}, time {time:.3f} of float32's")
    return result


def over_float32(by_dtype: Mapping[str, float]) -> float:
    return by_dtype["bfloat16"] / by_dtype["float32"]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--growth", action="store_true", help="lookup + update as vocabulary and batch grow")
    parser.add_argument("--dtypes", action="store_true", help="lookup + update in bfloat16 beside float32")
    parser.add_argument("--batch", type=int, default=16_000)
    parser.add_argument("--touched", type=int, default=1_500_000, help="of --growth, in rows: 972 bytes each")
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    if options.growth:
        vocabularies = measure_vocabularies(options.batch, options.touched, options.rounds)
        print_result(options, vocabularies=vocabularies, batches=measure_batches(options.rounds))
    elif options.dtypes:
        print_result(options, tables=measure_dtypes(options.batch, options.rounds))
    else:
        print_result(options, kernels=measure_kernels(options.batch, options.rounds))


if __name__ == "__main__":
    main()
