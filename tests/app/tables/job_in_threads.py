"""A made-up job of training ranks and of servers that own rows. Each is a thread of this process, and together they
have the interface of `HostTables`.

Ranks exchange ids, rows and gradients by the code of `app/distributed/sharded_tables.py`. Only MPI itself is replaced.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import numpy as np

from app.distributed.process_group import rank_slice
from app.distributed.sharded_tables import Operation, make_sharded_tables
from app.tables.interface import RowGradients, Rows, TableState

DONE = SimpleNamespace(Wait=lambda: None, Test=lambda: True)  # A request whose messages have arrived.


class World:
    """Where the ranks exchange messages: `board` has the last message of each rank."""

    def __init__(self, size):
        self.board, self.barrier = [None] * size, threading.Barrier(size, timeout=5)

    def swap(self, rank, mine, take):
        self.board[rank] = mine
        self.barrier.wait()
        for source, theirs in enumerate(self.board):
            take(source, theirs)
        self.barrier.wait()


class Rank:
    """Replaces MPI's communicator in one rank. It has the methods that `Exchange` calls."""

    def __init__(self, world, rank):
        self.world, self.rank, self.size = world, rank, len(world.board)

    def Ialltoall(self, sent, received):
        def take(source, theirs):
            received[source] = theirs[self.rank]

        self.world.swap(self.rank, sent, take)
        return DONE

    def allgather(self, mine):
        return [mine]  # Ranks are made one after the other in the same way, so all would send the same value.

    def Ialltoallv(self, sent, received):
        array, counts, starts, _ = received
        if array.dtype == np.int64:  # Each rank requests each id once.
            assert len(np.unique(sent[0])) == len(sent[0])

        def take(source, theirs):
            values, their_counts, their_starts, _ = theirs
            assert counts[source] == their_counts[self.rank]
            first, start = starts[source], their_starts[self.rank]
            array[first : first + counts[source]] = values[start : start + their_counts[self.rank]]

        self.world.swap(self.rank, sent, take)
        return DONE

    def Allgather(self, mine, all_values):
        def take(source, theirs):
            all_values[source] = theirs[0]

        self.world.swap(self.rank, mine, take)


class JobInThreads:
    """Tables whose rows are spread over the ranks of a job, with the interface of `HostTables`.

    The job has `workers` ranks that train and, before them, `servers` that own all rows. If `servers` is 0, the
    training ranks own the rows.
    """

    def __init__(self, spec, learning_rates, backend, workers, servers):
        world, owners = World(servers + workers), servers or workers
        self.spec, self.servers, self.asked = spec, servers, None
        made = [
            make_sharded_tables(backend, spec, learning_rates, Rank(world, rank), owners, 1)
            for rank in range(servers + workers)
        ]
        self.everyone, self.shards = zip(*made, strict=True)
        self.ranks, self.owners = self.everyone[servers:], self.everyone[:owners]
        self.pool = ThreadPoolExecutor(servers + workers)

    @property
    def step(self):
        owned = [shard.tables for shards in self.shards[: len(self.owners)] for shard in shards]
        assert {each.step for each in (*self.ranks, *owned)} == {self.ranks[0].step}
        return self.ranks[0].step

    def _together(self, work, *parts, operations=1):
        def serve(shards):
            for _ in range(operations * len(shards)):
                header = shards[0].exchange.start(Operation.NONE)
                shards[header.shard].serve(header)

        serving = [self.pool.submit(serve, shards) for shards in self.shards[: self.servers]]
        done = [self.pool.submit(work, *words) for words in zip(self.ranks, *parts, strict=True)]
        return [future.result() for future in (*serving, *done)][self.servers :]

    def _shares(self, num_rows):
        return [rank_slice(num_rows, rank, len(self.ranks)) for rank in range(len(self.ranks))]

    def unique(self, ids):
        return [rank.unique(ids[mine]) for rank, mine in zip(self.ranks, self._shares(len(ids)), strict=True)]

    def lookup(self, unique):
        self.asked = unique
        rows = self._together(lambda rank, mine: rank.lookup(mine), unique)
        assert len({each.squared_norm for each in rows}) == 1
        deep, wide = (np.concatenate([getattr(each, name) for each in rows]) for name in ("deep", "wide"))
        return Rows(deep, wide, rows[0].squared_norm)

    def update(self, unique, gradients):
        shares = self._shares(len(gradients.wide))
        parts = [RowGradients(gradients.deep[mine], gradients.wide[mine], gradients.scale) for mine in shares]
        # If the rows of another batch were looked up meanwhile, each rank first sends its ids again, as an operation.
        operations = 1 if self.asked is unique else 2
        self.asked = unique
        self._together(lambda rank, *words: rank.update(*words), unique, parts, operations=operations)

    def state(self):
        return _joined([owner.state() for owner in self.owners])

    def snapshot(self, changed_only):
        parts = [owner.snapshot(changed_only) for owner in self.owners]
        joined = {table: JoinedTable([part.tables[table] for part in parts]) for table in parts[0].tables}
        return SimpleNamespace(tables=joined, release=lambda saved: [part.release(saved) for part in parts])

    @contextmanager
    def loading(self, step):
        with ExitStack() as stack:
            all_place = [stack.enter_context(part.loading(step)) for part in self.everyone]

            def place(*rows):
                all_write = [each(*rows) for each in all_place]
                return lambda *values: [each(*values) for each in all_write]

            yield place


class JoinedTable:
    """A `TableSnapshot` of the rows of all owners, ordered by id."""

    def __init__(self, parts):
        self.parts, self.layout = parts, parts[0].layout
        row_ids = np.concatenate([part.row_ids for part in parts])
        self.order = np.argsort(row_ids)
        self.row_ids = row_ids[self.order]

    def read(self, name, places):
        values = [part.read(name, slice(None)).copy() for part in self.parts]
        return np.concatenate(values)[self.order][places]


def _joined(states):
    tables = {table: JoinedTable([state[table] for state in states]) for table in states[0]}
    return {
        table: TableState(rows.row_ids, {name: rows.read(name, slice(None)) for name in rows.layout})
        for table, rows in tables.items()
    }
