"""Spread the rows of both tables over the ranks of a job. Rank `r % owners` owns row r.

In a lookup, each rank sends the distinct ids of its batch to the owners. The owners look up the rows and send them
back, and the rank expands them to the positions of its batch. In an update, each rank sums its gradients by id and
sends the sums to the owners. An owner adds the sums of all ranks in the order of ranks, and takes the optimizer step.

An owner keeps its rows in tables of any backend, and passes the ids that other ranks request to these tables as a batch
with one field. So the lookup and the optimizers of the backend are used unchanged, and a row that several ranks request
is looked up and updated once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import numpy as np
from mpi4py import MPI

from app.distributed.batch_kernels import BatchKernels, make_batch_kernels
from app.distributed.exchange import Exchange, Header, Operation
from app.tables.backends import PartSnapshot, PartTables, make_host_tables
from app.tables.checks import check_gradients
from app.tables.interface import (
    HostTables,
    PlaceRows,
    RowGradients,
    Rows,
    Snapshot,
    TableRates,
    TablesSpec,
    TableState,
    UniqueIds,
    WriteArray,
    one_field,
)

LOOKUPS = Operation.LOOKUP, Operation.LOOKUP_OF_MEANS


@dataclass(frozen=True)
class ShardedIds(UniqueIds):
    """The distinct ids of a batch, in the order of the ranks that own them.

    `counts` [owners] is the number of ids that each rank owns. `kernel_ids` are the same ids as an object that the
    functions of `BatchKernels` accept.
    """

    kernel_ids: UniqueIds
    counts: np.ndarray


class RowShard:
    """A shard: the table rows that one rank owns, and the rank's part in lookups and updates of rows that others own.

    `tables` hold the owned rows, and are None if there are none. `exchange` sends rows to other ranks and receives
    them.
    """

    def __init__(self, exchange: Exchange, tables: HostTables | None) -> None:
        self.exchange = exchange
        self.tables = tables
        self._pulled = UniqueIds((0, 1), np.zeros(0, np.int64), np.zeros(0, np.int32))
        self._embedding_dim = exchange.embedding_dim

    def pull_request(self, header: Header, ids: np.ndarray, counts: np.ndarray) -> None:
        """Send each owner the ids of the next lookup or update, `ids` int64 [U], of which `counts` [owners] go to each.

        Also receive the ids that other ranks request from this rank, and keep them for `lookup` and `update`. `header`
        is the result of `Exchange.start` for this operation.
        """
        requested = self.exchange.pull_request(ids, counts, header)
        if self.tables is not None:
            self._pulled = self.tables.unique(requested[:, None])
            self.tables.read_ahead(self._pulled, header.operation != Operation.LOOKUP_OF_MEANS)

    def lookup(self, operation: Operation) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the rows that this rank requested last: deep [U, D], wide [U], and Σ‖row‖².

        With the operation LOOKUP_OF_MEANS, the rows are running means. Σ‖row‖² is over the distinct deep rows that all
        ranks have requested.
        """
        if self.tables is None:
            rows = Rows(np.zeros((0, self._embedding_dim), np.float32), np.zeros(0, np.float32), 0.0)
        else:
            rows = self.tables.lookup(self._pulled, means=operation == Operation.LOOKUP_OF_MEANS)
        deep, wide = self.exchange.pull_reply(rows.deep, rows.wide)
        return deep, wide, self.exchange.sum(rows.squared_norm)

    def update(self, header: Header, deep_sums: np.ndarray, wide_sums: np.ndarray) -> None:
        """Send gradients to the owners, and take an optimizer step on the rows that other ranks requested last from
        this rank.

        `deep_sums` [U, D] and `wide_sums` [U] are the gradients of the rows that this rank requested, summed by id.
        """
        deep, wide = self.exchange.push(deep_sums, wide_sums)
        if self.tables is not None:
            self.tables.update(self._pulled, RowGradients(deep, wide, header.scale), checked=True)

    @contextmanager
    def loading(self, step: int) -> Iterator[PlaceRows]:
        """Forget all rows of this rank, set the step count to `step`, and yield the function with which the `with`
        block writes new rows (`HostTables.loading`). Rows that are written for ids which other ranks own are ignored.
        """
        if self.tables is None:
            yield lambda table, row_ids: lambda name, values, start=0: None
            return
        owner, num_owners = self.exchange.rank, self.exchange.num_owners
        with self.tables.loading(step) as place:

            def place_own(table: str, row_ids: np.ndarray) -> WriteArray:
                own = np.flatnonzero(row_ids % num_owners == owner)
                write = place(table, row_ids[own])

                def write_own(name: str, values: np.ndarray, start: int = 0) -> None:
                    first, end = np.searchsorted(own, (start, start + len(values)))
                    write(name, values[own[first:end] - start], first)

                return write_own

            yield place_own

    def serve(self, header: Header) -> None:
        """Take part in the lookup or update that the training ranks have started, as `header` says. Only servers (ranks
        that do not train) call this method.
        """
        if header.operation in (*LOOKUPS, Operation.PULL_REQUEST):
            self.pull_request(header, np.zeros(0, np.int64), np.zeros(self.exchange.num_owners, np.int64))
        if header.operation in LOOKUPS:
            self.lookup(header.operation)
        if header.operation == Operation.UPDATE:
            self.update(header, np.zeros((0, self._embedding_dim), np.float32), np.zeros(0, np.float32))


class ShardedTables(HostTables):
    """Embedding tables in host memory (`HostTables`) whose rows are spread over the processes of a job (ranks).

    All training ranks must call the same method at the same time. This rank need not own rows.
    """

    def __init__(self, spec: TablesSpec, kernels: BatchKernels, owned: RowShard) -> None:
        self.spec = spec
        self.step = 0
        # Seconds that each optimizer took in the last update of the rows that this rank owns.
        self.update_seconds: dict[str, float] = {}
        self.owned = owned
        self._kernels = kernels
        self._pulled: ShardedIds | None = None

    def unique(self, ids: np.ndarray) -> ShardedIds:
        """Return the distinct ids of this rank's batch. Other ranks need not call this method. Raise ValueError for a
        wrong dtype or shape, or for an id outside 0 … V-1.
        """
        unique = self._kernels.unique(ids)
        num_owners = self.owned.exchange.num_owners
        owners = unique.values % num_owners
        counts = np.bincount(owners, minlength=num_owners)
        if num_owners > 1:
            unique = self._kernels.reorder(unique, np.argsort(owners, kind="stable"))
        return ShardedIds(unique.shape, unique.values, unique.inverse, unique, counts, lists=unique.lists)

    def lookup(self, unique: UniqueIds, means: bool = False) -> Rows:
        """Return the rows of this rank's batch, or with `means` their running means.

        `squared_norm` of the result is the sum of ‖row‖² over the distinct deep rows in the batches of all ranks.
        """
        unique, operation = _own(unique), Operation.LOOKUP_OF_MEANS if means else Operation.LOOKUP
        self._pull_request(operation, unique)
        deep_rows, wide_rows, squared_norm = self.owned.lookup(operation)
        deep, wide = self._kernels.expand(unique.kernel_ids, deep_rows, wide_rows)
        return Rows(deep, wide, squared_norm)

    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        """Take one optimizer step with the gradients of all ranks' batches, summed by row.

        `unique` has the distinct ids of this rank's batch, and `gradients` the gradients of its rows.
        """
        unique = _own(unique)
        check_gradients(gradients, unique.shape[0], self.spec, only_shape=checked)
        if self._pulled is not unique:
            self._pull_request(Operation.PULL_REQUEST, unique)
        deep_sums, wide_sums = self._kernels.sum_by_id(unique.kernel_ids, gradients.deep, gradients.wide)
        header = self.owned.exchange.start(Operation.UPDATE, scale=gradients.scale)
        self.owned.update(header, deep_sums, wide_sums)
        self.step += 1
        if self.owned.tables is not None:
            self.update_seconds = self.owned.tables.update_seconds

    def state(self) -> dict[str, TableState]:
        """Return the touched rows (rows that were updated or loaded) that this rank owns, by table name."""
        return self.owned.tables.state() if self.owned.tables is not None else {}

    def snapshot(self, changed_only: bool) -> Snapshot:
        """Return a read-only view of the rows that this rank owns, as they are now. See `Tables.snapshot`."""
        return self.owned.tables.snapshot(changed_only) if self.owned.tables is not None else PartSnapshot({})

    @contextmanager
    def loading(self, step: int) -> Iterator[PlaceRows]:
        self.step = step
        with self.owned.loading(step) as place:
            yield place

    def _pull_request(self, operation: Operation, unique: ShardedIds) -> None:
        header = self.owned.exchange.start(operation, unique.counts)
        self.owned.pull_request(header, unique.values, unique.counts)
        self._pulled = unique


def make_sharded_tables(
    backend: str, spec: TablesSpec, learning_rates: TableRates, world: MPI.Comm, num_owners: int, num_threads: int
) -> tuple[HostTables, list[RowShard]]:
    """Make and return two things: the tables through which this rank looks up and updates the rows of all owners, and a
    list of the shards that hold the rows of this rank.

    There is one shard, or two if the wide and the deep part see different fields. `Header.shard` is an index in the
    list. The first `num_owners` ranks of `world` own rows. Raise ValueError, naming the first difference, unless all
    ranks pass the same settings.
    """
    shards: list[RowShard] = []

    def make(part: TablesSpec) -> HostTables:
        shards.append(make_row_shard(backend, part, learning_rates, world, num_owners, num_threads, len(shards)))
        return ShardedTables(part, make_batch_kernels(backend, part, num_threads), shards[-1])

    return PartTables(spec, make) if spec.has_parts else make(spec), shards


def make_row_shard(
    backend: str,
    spec: TablesSpec,
    learning_rates: TableRates,
    world: MPI.Comm,
    num_owners: int,
    num_threads: int,
    shard: int = 0,
) -> RowShard:
    """Make and return this rank's `RowShard`: the tables for the rows that it owns, if any, and its exchange with other
    ranks.

    The first `num_owners` ranks of `world` own rows. All owners must use the same learning rates. `shard` is the number
    of the result among this rank's shards. Raise ValueError, naming the first difference, unless all ranks pass the
    same settings.
    """
    shapes = {**asdict(replace(one_field(spec), storage=None)), "backend": backend, "owners": num_owners}
    first, *others = world.allgather(shapes)
    for rank, other in enumerate(others, start=1):
        for name, expected in first.items():
            if other[name] != expected:
                raise ValueError(
                    f"the tables of rank {rank} differ from those of rank 0: {name} was {expected!r}, is "
                    f"{other[name]!r}; all ranks need the same settings, data and release"
                )
    tables = None
    if world.rank < num_owners:
        own = replace(one_field(spec), id_stride=num_owners)
        tables = make_host_tables(backend, own, learning_rates, num_threads)
    return RowShard(Exchange(world, num_owners, spec.embedding_dim, shard), tables)


def _own(unique: UniqueIds) -> ShardedIds:
    if not isinstance(unique, ShardedIds):
        raise TypeError(f"sharded tables need the result of their own unique(), found {type(unique).__name__}")
    return unique
