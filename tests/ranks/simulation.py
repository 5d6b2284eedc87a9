"""Ranks that run in one process, whose messages arrive in an order that a seed decides, and of which one may fail.

`python -m tests.ranks.simulation 10000` compares that many seeds with one process.
"""

import sys
import time
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
from greenlet import getcurrent, greenlet

from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.distributed import sharded_tables, watchdog
from app.distributed.process_group import GradientSum, rank_slice
from app.distributed.sharded_tables import Operation, make_row_shard, make_sharded_tables
from app.tables.fields import TableField
from app.tables.interface import RowGradients, TablesSpec
from app.tables.reference import ReferenceTables
from tests.app.tables.tables_of_spec import constant_rates

DIM, ROWS, STEPS, NUM_DENSE = 2, 40, 4, 150
SPEC = TablesSpec(
    ROWS, DIM, tuple(map(TableField, "abc")), 1, 0.01, 1e-3, FtrlOptions(learning_rate=0.125), LazyAdamOptions()
)
RATES = constant_rates(SPEC)


class Killed(Exception):
    """A rank has failed: the job ends, as under mpirun."""


class Network:
    """Runs greenlets: one for each rank, and one for each call that a rank starts beside its own work.

    Each event is a greenlet's turn or the arrival of a message, chosen at random.
    """

    def __init__(self, rng, dies_at):
        self.rng, self.dies_at, self.sent, self.arrived, self.started = rng, dies_at, [], {}, []

    def submit(self, function, *arguments):
        """Start a call beside the greenlet that starts it, after its earlier calls, as a thread would run it. Return
        its future."""
        caller, call = getcurrent(), Call(lambda: function(*arguments), getcurrent().parent)
        before, caller.last_call = getattr(caller, "last_call", None), call
        call.is_ready = lambda: before is None or before.dead
        self.started.append(call)
        return call

    def run(self, programs):
        self.started = [greenlet(program) for program in programs]
        try:
            self._take_turns()
        finally:
            for each in self.started:  # A suspended greenlet keeps everything that its functions hold.
                while not each.dead:
                    each.throw()

    def _take_turns(self):
        for event in range(100_000):
            if event == self.dies_at:
                raise Killed
            running = [each for each in self.started if not each.dead]
            if not running:
                return
            ready = [each for each in running if getattr(each, "is_ready", lambda: True)()]
            choice = int(self.rng.integers(len(ready) + len(self.sent)))
            if choice < len(ready):
                ready[choice].switch()
            else:
                key, source, data = self.sent.pop(choice - len(ready))
                self.arrived.setdefault(key, {})[source] = data
        raise AssertionError("the ranks wait for each other")


def wait_for(is_ready):
    """Let other greenlets run until `is_ready` returns True."""
    getcurrent().is_ready = is_ready
    while not is_ready():
        getcurrent().parent.switch()
    getcurrent().is_ready = lambda: True


class Call(greenlet):
    """A function call that runs beside the others, with the method of a future."""

    def __init__(self, function, parent):
        super().__init__(lambda: setattr(self, "returned", function()), parent)

    def result(self):
        wait_for(lambda: self.dead)
        return self.returned


class Communicator:
    """The functions of MPI.Comm that the exchange uses. Calls of all ranks match by their number, as in MPI."""

    def __init__(self, network, name, rank, size):
        self.network, self.name, self.rank, self.size, self.calls = network, name, rank, size, 0

    def Dup(self):
        return Communicator(self.network, f"copy of {self.name}", self.rank, self.size)

    def _post(self, operation, parts):
        self.calls += 1
        call = (self.name, self.calls)
        for target, part in enumerate(parts):
            self.network.sent.append(((*call, target), self.rank, (operation, part)))
        return Request(self, operation, (*call, self.rank))

    def allgather(self, value):
        return self._post("allgather", [value] * self.size).Wait()

    def Iallgather(self, sent, received):
        return self._post("allgather", [sent.copy()] * self.size).into(received)

    def Allgather(self, sent, received):
        self.Iallgather(sent, received).Wait()

    def Ialltoall(self, sent, received):
        return self._post("alltoall", list(sent.reshape(received.shape).copy())).into(received)

    def Ialltoallv(self, sent, received):
        (values, counts, starts, _), (target, target_counts, target_starts, _) = sent, received
        parts = [values[start : start + count].copy() for start, count in zip(starts, counts, strict=True)]
        assert (target_starts == np.cumsum([0, *target_counts[:-1]])).all()
        return self._post("alltoallv", parts).into(target)


class Request:
    """Messages of one call that are on their way to a rank."""

    def __init__(self, communicator, operation, key):
        self.network, self.size, self.operation, self.key = communicator.network, communicator.size, operation, key
        self.target = None

    def into(self, target):
        self.target = target
        return self

    def is_here(self):
        return len(self.network.arrived.get(self.key, {})) == self.size

    def Test(self):
        if not self.is_here():
            getcurrent().parent.switch()
        return self.is_here() and self.Wait() is not None

    def Wait(self):
        wait_for(self.is_here)
        arrived = [self.network.arrived[self.key][rank] for rank in range(self.size)]
        assert {operation for operation, _ in arrived} == {self.operation}, arrived
        if self.target is not None:
            self.target[:] = np.concatenate([part for _, part in arrived]).reshape(self.target.shape)
        return [part for _, part in arrived]


def batch_of(seed, step):
    """Return ids, gradients of deep and wide rows, and dense gradients. Eighths are summed exactly in any order."""
    rng = np.random.default_rng((seed, step))
    rows = int(rng.integers(0, 12))
    ids = (rng.random((rows, 3)) ** 2 * ROWS).astype(np.int32)
    deep, wide, dense = (rng.integers(-8, 9, shape) / 8 for shape in ((rows, 3 * DIM), rows, (rows, NUM_DENSE)))
    return ids, *(array.astype(np.float32) for array in (deep, wide, dense))


def train(seed, tables, rank, size, add, on_step, start=0):
    """Take the steps from `start` on the slices of `rank`, and call `on_step` with their number and dense sums."""
    for step in range(start, STEPS):
        ids, deep, wide, dense = (array[rank_slice(len(array), rank, size)] for array in batch_of(seed, step))
        unique = tables.unique(ids)
        rows = tables.lookup(unique)
        sums = add([dense.sum(axis=0), np.atleast_1d(rows.wide.size).astype(np.float32)])
        tables.update(unique, RowGradients(deep, wide, scale=0.5))
        on_step(step + 1, np.concatenate(sums()))


class Job:
    """A training of several ranks that saves each step, and resumes after a failure with other ranks and servers."""

    def __init__(self, seed):
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self.saved, self.sums, self.num_failures = {0: {}}, {}, 0

    def run(self):
        dies_at = int(self.rng.integers(20, 400))
        while True:
            try:
                self._launch(dies_at)
                return
            except Killed:
                self.num_failures += 1
                dies_at = -1

    def _launch(self, dies_at):
        size = int(self.rng.integers(2, 5))
        servers = int(self.rng.integers(0, size))
        owners, network, states = servers or size, Network(self.rng, dies_at), {}
        start = max(self.saved)

        def save(step, rank, tables):
            states.setdefault(step, {})[rank] = tables.state()
            if len(states[step]) == owners:
                self.saved[step] = merged(states[step].values())

        def server(world):
            shard = make_row_shard("reference", SPEC, RATES, world, owners, 1)
            load_own(shard.tables, self.saved[start], world.rank, owners, start)
            step = start
            while (header := shard.exchange.start(Operation.NONE)).operation != Operation.RPC:
                shard.serve(header)
                if header.operation == Operation.UPDATE:
                    step += 1
                    save(step, world.rank, shard.tables)

        def worker(world):
            rank, group = world.rank - servers, Communicator(network, "train", world.rank - servers, size - servers)
            tables, (shard,) = make_sharded_tables("reference", SPEC, RATES, world, owners, 1)
            tables.step = start
            if shard.tables is not None:
                load_own(shard.tables, self.saved[start], world.rank, owners, start)
            total = GradientSum(group, network.submit)
            (total_dense,) = total.allocate([(NUM_DENSE,)])

            def on_step(step, sums):
                assert (self.sums.setdefault(step, sums) == sums).all()
                if shard.tables is not None:
                    save(step, world.rank, shard.tables)

            def add(arrays):
                total_dense[:] = arrays[0]
                for num_values in 70, NUM_DENSE, sys.maxsize:
                    total.start(num_values)
                few = total.gather(arrays[1]).sum(axis=0)
                return lambda: [total_dense.copy(), few] if total.finish() else []

            train(self.seed, tables, rank, size - servers, add, on_step, start)
            if servers:
                sharded_tables.start(world, Operation.RPC)

        worlds = [Communicator(network, "world", rank, size) for rank in range(size)]
        network.run([lambda world=world: (server if world.rank < servers else worker)(world) for world in worlds])


def merged(states):
    """Return the rows of all owners, by table and row id: the arrays of one row."""
    return {
        table: {
            int(row): {name: array[i] for name, array in state[table].arrays.items()}
            for state in states
            for i, row in enumerate(state[table].row_ids)
        }
        for table in ("deep", "wide")
    }


def load_own(tables, saved, rank, owners, step):
    with tables.loading(step) as place:
        for table, rows in saved.items():
            own = np.array([row for row in sorted(rows) if row % owners == rank], np.int64)
            write = place(table, own)
            for name in rows[int(own[0])] if len(own) else ():
                write(name, np.stack([rows[int(row)][name] for row in own]))


def check(seed):
    """Compare one seed with one process, and return the number of failures that the job survived."""
    alone, sums, states = ReferenceTables(SPEC, RATES), {}, {}

    def on_step(step, total):
        sums[step], states[step] = total, merged([alone.state()])

    train(seed, alone, 0, 1, lambda arrays: lambda: arrays, on_step)
    job = Job(seed)
    with patch.object(watchdog, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic)):
        job.run()
    # A job that dies between the save of servers and the end of the workers' step has no sums of this step.
    for step, total in job.sums.items():
        assert (total == sums[step]).all(), (seed, step)
    for step, expected in states.items():
        for table, rows in expected.items():
            found = job.saved[step][table]
            assert found.keys() == rows.keys(), (seed, step, table)
            for row, arrays in rows.items():
                for name, values in arrays.items():
                    assert (found[row][name] == values).all(), (seed, step, table, row, name)
    return job.num_failures


if __name__ == "__main__":
    began, failures = time.monotonic(), 0
    for seed in range(num_seeds := int(sys.argv[1])):
        failures += check(seed)
        if (done := seed + 1) % 1000 == 0 or done == num_seeds:
            taken = f"{time.monotonic() - began:.0f} s"
            print(f"{done} seeds, 0 differences, {failures} failures survived, {taken}", flush=True)
