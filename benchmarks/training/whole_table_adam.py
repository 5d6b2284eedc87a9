"""Compare the cost of `adam` on a whole table with `lazy_adam`, on the same batches.

    python -m benchmarks.training.whole_table_adam     lookup and update at batch 16,000, 26 fields, D 80, V 200,000

Every batch is a new one, so rows have missed steps, as in training. The first half of the steps is left out: many
rows are touched for the first time in them. The two take turns. With --torch also what the lazy way stands for:
PyTorch's Adam on all V rows, dense gradient and all.

Letters: B batch, D embedding width, V vocabulary size.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np

from app.config.optimizers import AdamOptions, DeepOptimizer, FtrlOptions, LazyAdamOptions
from app.tables.fields import TableField
from app.tables.interface import DEEP, RowGradients, TablesSpec
from app.tables.native.tables import NativeTables
from benchmarks.harness.timing import machine
from benchmarks.training.kernels import NUM_FIELDS, RATES, random_gradients, seconds_of

L2_COEF = 1e-5  # of BARS's recipes
OPTIMIZERS: dict[str, DeepOptimizer] = {
    "lazy_adam": LazyAdamOptions(learning_rate=1e-3),
    "adam": AdamOptions(learning_rate=1e-3),
}


def make_tables(name: str, vocabulary_size: int, embedding_dim: int, threads: int) -> NativeTables:
    """Tables with one of `OPTIMIZERS`."""
    fields = tuple(f"C{field + 1}" for field in range(NUM_FIELDS))
    spec = TablesSpec(
        vocabulary_size,
        embedding_dim,
        tuple(map(TableField, fields)),
        1,
        0.01,
        L2_COEF,
        FtrlOptions(),
        OPTIMIZERS[name],
    )
    return NativeTables(spec, {**RATES, DEEP: lambda step: OPTIMIZERS[name].learning_rate}, threads)


def measure_step(tables: NativeTables, ids: np.ndarray, gradients: RowGradients) -> tuple[float, float]:
    """Seconds of a lookup, and of the deep rows' update."""
    unique = tables.unique(ids)
    lookup = seconds_of(lambda: tables.lookup(unique))
    tables.update(unique, gradients, checked=True)
    return lookup, list(tables.update_seconds.values())[1]


def torch_seconds(batches: list[np.ndarray], gradients: RowGradients, vocabulary_size: int, dim: int) -> list[float]:
    """Seconds of backward and dense Adam with L2 on the whole table, by batch."""
    import torch

    table = torch.nn.Embedding(vocabulary_size, dim)
    optimizer = torch.optim.Adam(table.parameters(), lr=1e-3, weight_decay=L2_COEF)
    gradient = torch.from_numpy(gradients.deep.reshape(-1, dim))
    seconds = []
    for ids in batches:
        rows = table(torch.from_numpy(ids.reshape(-1)))
        start = time.perf_counter()
        optimizer.zero_grad()
        rows.backward(gradient)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Measure; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16_000)
    parser.add_argument("--embedding-dim", type=int, default=80)
    parser.add_argument("--vocabulary-size", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--torch", action="store_true", help="PyTorch's dense Adam beside it")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    size = options.vocabulary_size, options.embedding_dim
    by_frequency = rng.permutation(size[0]).astype(np.int32)
    batches = [by_frequency[frequent_places(rng, size[0], options.batch)] for _ in range(options.steps)]
    gradients = random_gradients(rng, options.batch, size[1])
    tables = {name: make_tables(name, *size, options.threads) for name in OPTIMIZERS}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in tables}
    for ids in batches:
        for name, each in tables.items():
            seconds[name].append(measure_step(each, ids, gradients))
    medians = {name: np.median(taken[len(taken) // 2 :], axis=0).tolist() for name, taken in seconds.items()}
    result = {f"{name} {part}": medians[name][i] for name in medians for i, part in enumerate(("lookup", "update"))}
    if options.torch:
        result["torch dense adam"] = float(np.median(torch_seconds(batches[:6], gradients, *size)[1:]))
    for name, value in result.items():
        print(f"{name:20s} {1000 * value:8.1f} ms")
    print(json.dumps({"machine": machine(), "arguments": vars(options), "seconds": result}))


def frequent_places(rng: np.random.Generator, vocabulary_size: int, batch: int) -> np.ndarray:
    """[B, 26] places by frequency: those of every batch are the same ids'
    (`benchmarks.training.kernels.power_law_ids`).
    """
    return (rng.random((batch, NUM_FIELDS)) ** 3 * vocabulary_size).astype(np.int64)


if __name__ == "__main__":
    main()
