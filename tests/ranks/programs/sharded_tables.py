"""Run under mpirun: sharded tables take steps beside tables of one process, and are compared with them.

mpirun -n N python sharded_tables.py SERVERS
"""

import sys

import numpy as np
from mpi4py import MPI

from app.config.optimizer_settings import (
    AdagradOptions,
    AdamOptions,
    FtrlOptions,
    LazyAdamOptions,
    PartialRowwiseAdamOptions,
    RowwiseAdagradOptions,
    SgdOptions,
)
from app.distributed.sharded_tables import Exchange, Operation, RowShard, ShardedTables, make_batch_kernels
from app.tables.backends import make_host_tables
from app.tables.fields import TableField
from app.tables.interface import DEEP, WIDE, RowGradients, TablesSpec, one_field

DIM, FIELDS, ROWS = 16, ("a", "b", "c"), 500
OPTIMIZERS = (
    (FtrlOptions(), LazyAdamOptions()),
    (AdagradOptions(), AdamOptions()),
    (SgdOptions(), RowwiseAdagradOptions()),
    (FtrlOptions(), AdagradOptions()),
    (FtrlOptions(), FtrlOptions()),
    (FtrlOptions(), SgdOptions()),
    (FtrlOptions(), PartialRowwiseAdamOptions()),
)
SCALE = 0.3  # no power of two: it matters where it is multiplied with
BATCHES = (40, 40, 7, 1, 40, 0)  # rows; with fewer than ranks, some take part with none


def batches():
    rng = np.random.default_rng(0)
    for rows in BATCHES:
        ids = (rng.random((rows, len(FIELDS))) ** 3 * ROWS).astype(np.int32)
        deep = rng.standard_normal((rows, len(FIELDS) * DIM)).astype(np.float32)
        yield ids, deep, rng.standard_normal(rows).astype(np.float32)


def take_steps(tables, start_of, end_of):
    """Returns the rows looked up in each step."""
    looked_up = []
    for ids, deep, wide in batches():
        mine = slice(start_of(len(ids)), end_of(len(ids)))
        unique = tables.unique(ids[mine])
        rows = tables.lookup(unique)
        looked_up.append((rows.deep.copy(), rows.wide.copy(), rows.squared_norm))
        tables.update(unique, RowGradients(deep[mine], wide[mine], scale=SCALE))
    return looked_up


def check(found, expected, rounds):
    """To 1e-6 of the values' scale; bit by bit unless another order `rounds`."""
    scale = np.abs(expected).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale if rounds else 0)


def main(backend: str, servers: int, wide, deep) -> None:
    world = MPI.COMM_WORLD
    owners, workers, worker = servers or world.size, world.size - servers, world.rank - servers
    rounds = workers > 1  # one rank alone sums as one process does
    spec = TablesSpec(ROWS, DIM, tuple(map(TableField, FIELDS)), 1, 0.01, 1e-3, wide, deep, ema_decay=0.8)
    rates = {WIDE: lambda step: wide.learning_rate, DEEP: lambda step: deep.learning_rate}
    alone = make_host_tables(backend, spec, rates, 1)
    expected = take_steps(alone, lambda rows: 0, lambda rows: rows)
    own = make_host_tables(backend, one_field(spec), rates, 1) if world.rank < owners else None
    exchange = CountedExchange(world, owners, DIM)
    owned = RowShard(exchange, own)
    if worker >= 0:
        sharded = ShardedTables(spec, make_batch_kernels(backend, spec, 1), owned)
        found = take_steps(sharded, lambda rows: rows * worker // workers, lambda rows: rows * (worker + 1) // workers)
        for rows, (deep_rows, wide_rows, norm), whole in zip(BATCHES, found, expected, strict=True):
            mine = slice(rows * worker // workers, rows * (worker + 1) // workers)
            check(deep_rows, whole[0][mine], rounds)
            check(wide_rows, whole[1][mine], rounds)
            np.testing.assert_allclose(norm, whole[2], rtol=1e-6)
    else:
        for _ in range(2 * len(BATCHES)):
            owned.serve(owned.exchange.start(Operation.NONE))
    if own is not None:
        for table, whole in alone.state().items():
            state, mine = own.state()[table], whole.row_ids % owners == world.rank
            np.testing.assert_array_equal(state.row_ids, whole.row_ids[mine])
            for name, array in whole.arrays.items():
                check(state.arrays[name], array[mine], rounds)
    distinct = sum(len(np.unique(ids[slice_of(ids, worker, workers)])) for ids, _, _ in batches()) if worker >= 0 else 0
    assert exchange.num_ids == exchange.num_gradients == distinct
    ids = np.arange(ROWS - ROWS % len(FIELDS), dtype=np.int32).reshape(-1, len(FIELDS))
    if worker >= 0:
        means, whole = (tables.lookup(tables.unique(ids), means=True) for tables in (sharded, alone))
        check(means.deep, whole.deep, rounds)
        check(means.wide, whole.wide, rounds)
    else:
        owned.serve(owned.exchange.start(Operation.NONE))
    print(f"rank {world.rank} of {world.size}, {backend}, {wide.name}, {deep.name}: equal", flush=True)


class CountedExchange(Exchange):
    num_ids = num_gradients = 0  # sent so far

    def pull_request(self, ids, counts, header):
        self.num_ids += len(ids)
        return super().pull_request(ids, counts, header)

    def push(self, deep, wide):
        self.num_gradients += len(wide)
        return super().push(deep, wide)


def slice_of(ids, worker, workers):
    return slice(len(ids) * worker // workers, len(ids) * (worker + 1) // workers)


if __name__ == "__main__":
    for backend_name in ("reference", "native"):
        for wide_options, deep_options in OPTIMIZERS:
            main(backend_name, int(sys.argv[1]), wide_options, deep_options)
