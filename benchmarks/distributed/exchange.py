"""Time the exchange of ids, rows and gradients between the ranks of a host, and its lower bound.

    python -m benchmarks.distributed.exchange                      2 ranks, batch 16,000 of 26 fields, D 80, V 200,000
    python -m benchmarks.distributed.exchange --batch 1000         the same, small: does everything work?

All ranks look up and update their slices of a batch as in training, without a tower, and begin each part together, so
that nobody waits for a rank that computes. Beside the three exchanges stand

    dedup        an owner makes the ids that it was asked for distinct: with `ids`, what asking ahead could hide
    copy         one copy of a rank's unique rows: what reading them where they are could save of `rows` or `gradients`

The least of all rounds is what a part takes where nothing else runs: other work on the cores only adds. The slowest
rank counts. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

import numpy as np

from app.config.optimizers import FtrlOptions, LazyAdamOptions
from app.distributed.batch_kernels import make_batch_kernels
from app.distributed.exchange import Operation
from app.distributed.process_group import MpiGroup, load_mpi
from app.distributed.sharded_tables import ShardedIds, ShardedTables, make_row_shard
from app.tables.fields import TableField
from app.tables.interface import RowGradients, TablesSpec
from benchmarks.harness.ranks import run_ranks
from benchmarks.harness.timing import machine
from benchmarks.training.kernels import NUM_FIELDS, RATES, power_law_ids

VOCABULARY_SIZE, EMBEDDING_DIM = 200_000, 80
Seconds = dict[str, float]


class Rank:
    """A rank's tables, and its slice of a batch."""

    def __init__(self, group: MpiGroup, batch_size: int) -> None:
        fields = tuple(f"C{number + 1}" for number in range(NUM_FIELDS))
        spec = TablesSpec(
            VOCABULARY_SIZE,
            EMBEDDING_DIM,
            tuple(map(TableField, fields)),
            1,
            0.01,
            0.0,
            FtrlOptions(),
            LazyAdamOptions(),
        )
        owned = make_row_shard("native", spec, RATES, group.world, group.num_owners, num_threads=1)
        ids = power_law_ids(np.random.default_rng(0), VOCABULARY_SIZE, batch_size)[group.rows_of(batch_size)]
        self.tables = ShardedTables(spec, make_batch_kernels("native", spec, 1), owned)
        self.unique: ShardedIds = self.tables.unique(ids)
        deep = np.full((len(ids), NUM_FIELDS * EMBEDDING_DIM), 1e-3, np.float32)
        self.gradients = RowGradients(deep, deep[:, 0].copy(), 1.0)
        self._rows = np.ones((2, self.unique.values.size, EMBEDDING_DIM), np.float32)
        self._barrier = group.world.Barrier

    def round(self) -> Seconds:
        """Return the seconds of the parts of one lookup and one update."""
        exchange = self.tables.owned.exchange
        before = dict(exchange.seconds)
        taken = {"lookup": self._timed(lambda: self.tables.lookup(self.unique))}
        taken["update"] = self._timed(lambda: self.tables.update(self.unique, self.gradients, checked=True))
        taken |= {what: exchange.seconds[what] - before[what] for what in ("ids", "rows", "gradients")}
        header = exchange.start(Operation.PULL_REQUEST, self.unique.counts)
        asked = exchange.pull_request(self.unique.values, self.unique.counts, header)
        taken["dedup"] = self._timed(lambda: self._own_unique(asked))
        taken["copy"] = self._timed(lambda: np.copyto(self._rows[0], self._rows[1]))
        return taken

    def _own_unique(self, asked: np.ndarray) -> None:
        assert self.tables.owned.tables is not None
        self.tables.owned.tables.unique(asked[:, None])

    def _timed(self, part: Callable[[], object]) -> float:
        self._barrier()
        start = time.perf_counter()
        part()
        return time.perf_counter() - start


def measure(batch_size: int, rounds: int) -> dict[str, Seconds]:
    """The least and the median of each part, of the slowest rank; the same on every rank."""
    group = MpiGroup(load_mpi().COMM_WORLD)
    rank = Rank(group, batch_size)
    rank.round()  # all rows are touched, all buffers there
    ranks = group.gather([rank.round() for _ in range(rounds)])
    slowest = {name: [max(each[i][name] for each in ranks) for i in range(rounds)] for name in ranks[0][0]}
    return {name: {"least": min(values), "median": float(np.median(values))} for name, values in slowest.items()}


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16_000, help="of all ranks together (16,000)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.as_rank:
        print(run_ranks(options.ranks, "benchmarks.distributed.exchange", *sys.argv[1:], "--as-rank"), end="")
        return
    found = measure(options.batch, options.rounds)
    if load_mpi().COMM_WORLD.rank == 0:
        for name, seconds in found.items():
            print(f"{name:10} {1e3 * seconds['least']:8.2f} ms at best, median {1e3 * seconds['median']:.2f}")
        print(json.dumps({"machine": machine(), "arguments": vars(options), "results": found}), flush=True)


if __name__ == "__main__":
    main()
