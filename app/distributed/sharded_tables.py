"""Spread the rows of both tables over the ranks of a job. Rank `r % owners` owns row r.

In a lookup, each rank sends the distinct ids of its batch to the owners. The owners look up the rows and send them
back, and the rank expands them to the positions of its batch. In an update, each rank sums its gradients by id and
sends the sums to the owners. An owner adds the sums of all ranks in the order of ranks, and takes the optimizer step.

Every operation starts with a message to each rank, the header: the operation, and the number of ids that are requested
from that rank. So a server, which only owns rows, learns from the training ranks what comes next. A rank without rows
in its batch takes part with zero ids. Received data is in the order of ranks, so that sums over ranks always have the
same order.

An owner keeps its rows in tables of any backend, and passes the ids that other ranks request to these tables as a batch
with one field. So the lookup and the optimizers of the backend are used unchanged, and a row that several ranks request
is looked up and updated once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import numpy as np
from mpi4py import MPI

from app.distributed.batch_kernels import BatchKernels, make_batch_kernels
from app.distributed.watchdog import wait_asleep, waiting
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
from common.arrays.pages import HugeBuffer


class Operation(enum.IntEnum):
    """The kind of exchange that all ranks take part in next. Each rank names it in the header that it sends.

    Servers (ranks that only own table rows) always send NONE, and take part in the operation that the training ranks
    name.
    """

    NONE = 0
    LOOKUP = 1
    PULL_REQUEST = 2
    UPDATE = 3
    RPC = 4
    LOOKUP_OF_MEANS = 5


@dataclass(frozen=True)
class Header:
    """The headers that a rank has received from all ranks at the start of an operation, combined into one.

    `counts` [ranks] is the number of ids that each rank requests from this rank. `scale` is the factor by which, in an
    update, the owners of rows multiply the gradients. `shard` says which of a rank's shards of rows the operation is
    about: a rank has two if wide and deep rows are stored apart, else one.
    """

    operation: Operation
    counts: np.ndarray
    scale: float
    shard: int = 0


def start(
    communicator: MPI.Comm,
    operation: Operation,
    counts: np.ndarray | None = None,
    scale: float = 0.0,
    shard: int = 0,
) -> Header:
    """Start an operation together with all other ranks, and return one header that combines the headers from all ranks.

    `counts` [owners] is the number of ids that this rank will request from each owner. Raise ValueError if the training
    ranks do not start the same operation.
    """
    ranks = communicator.size
    sent, received = np.zeros((ranks, 4)), np.empty((ranks, 4))
    sent[:, 0], sent[:, 2], sent[:, 3] = operation, scale, shard
    if counts is not None:
        sent[: len(counts), 1] = counts
    # All ranks use the non-blocking call. MPI would not match it with another rank's blocking call.
    request = communicator.Ialltoall(sent, received)
    with waiting():
        # A server (rank that only owns table rows) may wait long for the next operation.
        wait_asleep(request) if operation == Operation.NONE else request.Wait()
    _check_same_operation(received)
    operation, scale, shard = received[:, [0, 2, 3]].max(axis=0)
    return Header(Operation(int(operation)), received[:, 1].astype(np.int64), float(scale), int(shard))


def _check_same_operation(received: np.ndarray) -> None:
    """Raise ValueError unless all training ranks sent the same operation, scale and shard.

    `received` [ranks, 4] are the headers from all ranks. The error does not count as one that every rank raises
    (`mark_collective`), so each rank that raises it ends the job without waiting for the other ranks.
    """
    trains = np.flatnonzero(received[:, 0] != Operation.NONE)
    headers = received[trains][:, [0, 2, 3]]
    if (headers == headers[:1]).all():
        return
    other = int(np.flatnonzero((headers != headers[0]).any(axis=1))[0])
    first, second = (
        f"rank {trains[i]} does {Operation(int(operation)).name} with scale {scale:g} in shard {shard:g}"
        for i, (operation, scale, shard) in ((i, headers[i]) for i in (0, other))
    )
    raise ValueError(
        f"the ranks are not in step: {first}, {second}; run the same command again to resume from the last checkpoint"
    )


class Segments:
    """The segments of an array that is sent or received, one for each rank: the numbers of elements (`counts` [ranks])
    and the indices of the first elements (`starts` [ranks]).
    """

    def __init__(self, counts: np.ndarray) -> None:
        self.counts = counts
        self.starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self.total = int(counts.sum())


class Exchange:
    """Sends ids, rows and gradients between this rank and the others."""

    def __init__(self, communicator: MPI.Comm, num_owners: int, embedding_dim: int, shard: int = 0) -> None:
        """A rank may have two shards of rows, one for the wide and one for the deep table. `shard` is the number of the
        shard whose rows and gradients this object sends and receives.
        """
        self.num_owners = num_owners
        self.rank = communicator.rank
        self.embedding_dim = embedding_dim
        self._communicator = communicator
        self._shard = shard
        # MPI counts elements in 32 bits. With a whole row as one element, the numbers of elements stay small enough.
        self._row = MPI.FLOAT.Create_contiguous(embedding_dim).Commit()
        # These two describe the last `pull_request`: which of the U requested ids this rank has sent to each owner
        # (rank with the rows), and which of the R ids that it received came from each rank.
        self._by_owner = self._by_rank = Segments(np.zeros(communicator.size, np.int64))
        self._buffers = {name: HugeBuffer() for name in ("rows", "gradients")}

    def start(self, operation: Operation, counts: np.ndarray | None = None, scale: float = 0.0) -> Header:
        """Start an operation together with all other ranks, and return the header that this rank has received.

        `counts` [owners] is the number of ids that this rank will request from each owner.
        """
        return start(self._communicator, operation, counts, scale, self._shard)

    def pull_request(self, ids: np.ndarray, counts: np.ndarray, header: Header) -> np.ndarray:
        """Send `ids` int64 [U] to their owners. Return the ids that all ranks request from this rank, int64 [R].

        `ids` are in the order of their owners, and `counts` [owners] is the number of ids that each owner gets.
        `header` is the result of `start` for this operation.
        """
        to_owners = np.zeros(self._communicator.size, np.int64)
        to_owners[: self.num_owners] = counts
        self._by_owner, self._by_rank = Segments(to_owners), Segments(header.counts)
        received = np.empty(self._by_rank.total, np.int64)
        with waiting():
            wait_asleep(self._all_to_all(ids, self._by_owner, received, self._by_rank, MPI.INT64_T))
        return received

    def pull_reply(self, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Send the rows that other ranks requested from this rank in the last `pull_request`, `deep` [R, D] and `wide`
        [R].

        Return the deep rows [U, D] and the wide rows [U] that this rank requested. The arrays are valid until the next
        call.
        """
        return self._send_rows("rows", deep, wide, self._by_rank, self._by_owner)

    def push(self, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Send the gradients of the rows that this rank requested last, `deep` [U, D] and `wide` [U], to the owners of
        the rows.

        Return the gradients [R, D] and [R] that other ranks have sent for rows of this rank. The arrays are valid until
        the next call.
        """
        return self._send_rows("gradients", deep, wide, self._by_owner, self._by_rank)

    def sum(self, value: float) -> float:
        """Return the sum of `value` over all ranks, added in the order of ranks."""
        values = np.empty(self._communicator.size)
        self._communicator.Allgather(np.array([value]), values)
        return float(values.sum())

    def _send_rows(
        self, what: str, deep: np.ndarray, wide: np.ndarray, to: Segments, back: Segments
    ) -> tuple[np.ndarray, np.ndarray]:
        deep_received = self._buffers[what].array((back.total, self.embedding_dim))
        wide_received = np.empty(back.total, np.float32)
        with waiting():
            requests = [self._all_to_all(wide, to, wide_received, back, MPI.FLOAT)]
            if self.embedding_dim:
                requests.append(self._all_to_all(deep, to, deep_received, back, self._row))
            for request in requests:
                wait_asleep(request)
        return deep_received, wide_received

    def _all_to_all(
        self, sent: np.ndarray, to: Segments, received: np.ndarray, back: Segments, datatype: MPI.Datatype
    ) -> MPI.Request:
        return self._communicator.Ialltoallv(
            [sent, to.counts, to.starts, datatype], [received, back.counts, back.starts, datatype]
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
