"""Measure the memory of the tables in each of N ranks that share the rows.

    python -m benchmarks.distributed.rank_memory                          V 500,000, D 80, FTRL and LazyAdam, every row
    touched python -m benchmarks.distributed.rank_memory --vocabulary 50000       the same, small: does everything work?

Each rank asks for its share of all rows, batch by batch, and updates them, as in training. What its memory grew
by, from before the tables are made, is set beside the least that its rows take. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from app.config.optimizers import FtrlOptions, LazyAdamOptions
from app.distributed.batch_kernels import make_batch_kernels
from app.distributed.process_group import MpiGroup, load_mpi
from app.distributed.sharded_tables import ShardedTables, make_row_shard
from app.tables.fields import TableField
from app.tables.interface import RowGradients, TablesSpec
from benchmarks.harness.ranks import found_by_ranks
from benchmarks.harness.timing import machine, memory_mib
from benchmarks.training.kernels import RATES

EMBEDDING_DIM = 80
BATCH_IDS = 10_000
MIB = 2**20


def grown_by(vocabulary_size: int) -> dict[str, float]:
    """MiB that this rank's memory grows by as all ranks touch all rows, and what the rows it owns take at least."""
    group = MpiGroup(load_mpi().COMM_WORLD)
    spec = TablesSpec(
        vocabulary_size, EMBEDDING_DIM, (TableField("row"),), 1, 0.01, 0.0, FtrlOptions(), LazyAdamOptions()
    )
    before = memory_mib("VmRSS")
    owned = make_row_shard("native", spec, RATES, group.world, group.num_owners, num_threads=1)
    tables = ShardedTables(spec, make_batch_kernels("native", spec, 1), owned)
    ids = np.random.default_rng(0).permutation(vocabulary_size).astype(np.int32)
    for start in range(0, vocabulary_size, BATCH_IDS * group.size):
        mine = ids[start : start + BATCH_IDS * group.size][group.rank :: group.size, None]
        unique = tables.unique(mine)
        tables.lookup(unique)
        gradients = np.ones((len(mine), EMBEDDING_DIM), np.float32)
        tables.update(unique, RowGradients(gradients, gradients[:, 0].copy(), 1.0))
    own_rows = len(range(group.rank, vocabulary_size, group.size))
    return {"grown_mib": memory_mib("VmRSS") - before, "rows_mib": own_rows * spec.row_bytes() / MIB}


def main() -> None:
    """Measure 1, 2 and 4 ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=500_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        group = MpiGroup(load_mpi().COMM_WORLD)
        found = group.gather(grown_by(options.vocabulary))
        if group.rank == 0:
            print(json.dumps(found), flush=True)
        return
    results: list[dict[str, Any]] = []
    for ranks in options.ranks:
        words = ("--vocabulary", str(options.vocabulary), "--as-rank")
        found = found_by_ranks(ranks, "benchmarks.distributed.rank_memory", *words)
        grown, rows = ([round(rank[key], 1) for rank in found] for key in ("grown_mib", "rows_mib"))
        print(f"{ranks} ranks: {max(grown):7.1f} MiB in the largest, whose rows are {max(rows):7.1f} MiB")
        results.append({"ranks": ranks, "grown_mib": grown, "rows_mib": rows})
    print(json.dumps({"machine": machine(), "vocabulary": options.vocabulary, "results": results}))


if __name__ == "__main__":
    main()
