"""Compare lookup and update of the deep table in FBGEMM (CPU) with the native tables.

    python -m benchmarks.peers.fbgemm_tables             batch 16,000, 26 fields, D 80, V 200,000
    python -m benchmarks.peers.fbgemm_tables --quick     batch 1,000 and few rounds

FBGEMM's `SplitTableBatchedEmbeddingBagsCodegen` has one fused call for the backward pass and the update. Of its
optimizers only SGD and two Adagrads run on a CPU, no Adam. Row-wise Adagrad keeps one number of state a row,
element-wise Adagrad D, and LazyAdam 2 · D. FBGEMM sums duplicates within the update. native's unique ids are made
beside the step before. FBGEMM has no L2 on unique rows. Its gradients and rows have native's layout, [B, F · D].

`weighted` is its lookup with a weight an id, over all 39 fields. It shows the cost of looking numeric fields up. The
native tables leave those to the tower.

Letters: B batch, F fields, D embedding width.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from app.tables.native.tables import NativeTables
from benchmarks.harness.contender import KEEP_PAGES
from benchmarks.harness.timing import Timing, machine, side_by_side
from benchmarks.harness.workload import NUM_NUMERIC, Workload, make_batches
from benchmarks.training.kernels import NUM_FIELDS, RATES, make_spec, random_gradients

Calls = dict[str, Callable[[], object]]


def why_missing() -> str | None:
    """Return why FBGEMM cannot be used here, in one line, or None if it can."""
    try:
        import fbgemm_gpu.split_table_batched_embeddings_ops_training  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        return f"FBGEMM does not load here: {str(error).splitlines()[0]}; `make bench` installs it"
    return None


def native_calls(workload: Workload) -> Calls:
    """Lookup, and the LazyAdam step with L2, of one batch after the other."""
    spec = make_spec(workload.vocabulary_size, workload.embedding_dim)
    tables = NativeTables(spec, RATES, workload.threads)
    uniques = [tables.unique(batch.ids) for batch in make_batches(workload)]
    slots = [tables.touch(unique.values) for unique in uniques]
    gradients = random_gradients(np.random.default_rng(0), workload.batch_size, workload.embedding_dim)
    lookups, updates = itertools.cycle(uniques), itertools.cycle(zip(uniques, slots, strict=True))
    tables.step = 1

    def update() -> None:
        tables.update_deep(*next(updates), gradients.deep, gradients.scale)

    return {"native lookup": lambda: tables.lookup(next(lookups)), "native LazyAdam": update}


def fbgemm_calls(workload: Workload, optimizer: str, num_weighted: int = 0) -> Calls:
    """Return lookup and fused update. With `num_weighted` numeric fields before the others all ids are weighted."""
    import torch

    torch.set_num_threads(workload.threads)
    table = make_fbgemm_table(workload, optimizer, NUM_FIELDS + num_weighted)
    inputs = [fbgemm_inputs(batch.ids, batch.numeric[:, :num_weighted]) for batch in make_batches(workload)]
    num_columns = (NUM_FIELDS + num_weighted) * workload.embedding_dim
    gradient = torch.randn(workload.batch_size, num_columns) / workload.batch_size
    lookups, updates = itertools.cycle(inputs), itertools.cycle([table(*arrays) for arrays in inputs])
    name = "FBGEMM weighted" if num_weighted else "FBGEMM"

    def lookup() -> None:
        with torch.no_grad():
            table(*next(lookups))

    def update() -> None:
        next(updates).backward(gradient, retain_graph=True)

    return {f"{name} lookup": lookup, f"{name} {optimizer}": update}


def make_fbgemm_table(workload: Workload, optimizer: str, num_fields: int) -> Any:
    """Make a table that all fields share, as their ids have one range."""
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        BoundsCheckMode,
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(workload.vocabulary_size, workload.embedding_dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        feature_table_map=[0] * num_fields,
        optimizer=EmbOptimType[optimizer],
        learning_rate=0.05,
        device=torch.device("cpu"),
        bounds_check_mode=BoundsCheckMode.NONE,  # native checks its ids in `unique`, which is not timed either
    )
    table.init_embedding_weights_uniform(-0.01, 0.01)
    return table


def fbgemm_inputs(ids: np.ndarray, numeric: np.ndarray) -> tuple[Any, ...]:
    """`ids` [B, C] and `numeric` [B, N] -> indices and offsets, field by field, one id a bag, and weights if N > 0."""
    import torch

    num_rows, num_numeric = numeric.shape
    numeric_ids = np.broadcast_to(np.arange(num_numeric, dtype=ids.dtype), (num_rows, num_numeric))
    by_field = np.concatenate([numeric_ids, ids], axis=1).T.astype(np.int64)
    indices = torch.from_numpy(by_field.reshape(-1))
    offsets = torch.arange(by_field.size + 1)
    if num_numeric == 0:
        return indices, offsets
    weights = np.concatenate([numeric, np.ones(ids.shape, np.float32)], axis=1).T
    return indices, offsets, torch.from_numpy(np.ascontiguousarray(weights).reshape(-1))


def repeated(call: Callable[[], object], count: int) -> Callable[[], None]:
    """A turn of `count` calls."""

    def turn() -> None:
        for _ in range(count):
            call()

    return turn


def report(timings: dict[str, Timing], steps: int) -> dict[str, Any]:
    """Print the timings of `steps` calls. Return seconds per call, with the ratio to native's call of the kind."""
    results = {}
    for name, timing in timings.items():
        native = timings["native lookup" if name.endswith("lookup") else "native LazyAdam"]
        print(f"{name:32s} {timing}  {timing.median / native.median:6.2f} × native")
        results[name] = {
            "median": timing.median / steps,
            "lower": timing.lower / steps,
            "upper": timing.upper / steps,
            "over_native": timing.median / native.median,
        }
    return results


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=1, help="calls of a turn (1)")
    parser.add_argument("--batch", type=int, default=16_000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="3 rounds at batch 1,000")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.batch = 3, 1_000
    return options


def main() -> None:
    """Measure, and print a last line of JSON."""
    options = parse_arguments()
    if not os.environ.keys() >= KEEP_PAGES.keys():  # malloc reads them once, as the process starts
        command = [sys.executable, "-m", "benchmarks.peers.fbgemm_tables", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | KEEP_PAGES)
    result: dict[str, Any] = {"machine": machine(), "arguments": vars(options)}
    if missing := why_missing():
        print(missing)
        result["missing"] = missing
    else:
        workload = Workload(batch_size=options.batch, threads=options.threads)
        calls = native_calls(workload)
        calls |= fbgemm_calls(workload, "EXACT_ROWWISE_ADAGRAD")
        calls |= {name: call for name, call in fbgemm_calls(workload, "EXACT_ADAGRAD").items() if "lookup" not in name}
        calls |= fbgemm_calls(workload, "EXACT_ROWWISE_ADAGRAD", NUM_NUMERIC)
        turns = {name: repeated(call, options.steps) for name, call in calls.items()}
        result["calls"] = report(side_by_side(turns, options.rounds), options.steps)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
