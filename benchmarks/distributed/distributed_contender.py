"""Rank (or single process) of `benchmarks.distributed.ranks_and_servers` that takes steps when the first training rank
gets a command.

    [mpirun -n N] python -m benchmarks.distributed.distributed_contender WORKLOAD SERVERS

WORKLOAD is JSON, with fields of `benchmarks.harness.workload.Workload`. Its batch is that of all ranks together.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable

import numpy as np

from app.config import device
from app.distributed.gradient_sum import GradientSum
from app.distributed.process_group import ONE_PROCESS, MpiGroup, load_mpi, started_by_mpi
from app.distributed.sharded_tables import ShardedTables
from app.training.parallel.server import ParameterServer
from benchmarks.harness.contender import Parts, serve
from benchmarks.harness.workload import Step, Workload, make_batches, steps_on_prefetched_batches
from benchmarks.training.mindspore_contender import make_config, make_schema


def main() -> None:
    """Build the step of this rank, and take steps."""
    workload, servers = Workload.from_json(sys.argv[1]), int(sys.argv[2])
    config, schema = make_config(workload, "native"), make_schema(workload)
    device.prepare_environment(config.device)
    group = MpiGroup(load_mpi().COMM_WORLD, servers) if started_by_mpi() else None
    if group is not None and group.world.rank < servers:
        ParameterServer(config, schema, "native", group).run()
        return
    device.select_device(config.device)
    from app.training.assemble import assemble

    step = assemble(config, schema, "native", group or ONE_PROCESS).step
    take_steps = timed(steps_on_prefetched_batches(step, step, workload))
    if group is None:
        serve(take_steps)
        return
    turn = Turn(take_steps, step, group, workload)
    if group.rank == 0:
        serve(turn)
    else:
        while True:
            turn(0)


def timed(take_steps: Callable[[int], Parts]) -> Callable[[int], Parts]:
    """Return a function that takes steps and returns the mean seconds of a step, `step`, and of its parts."""

    def take(count: int) -> Parts:
        start = time.perf_counter()
        parts = take_steps(count)
        return {"step": (time.perf_counter() - start) / count, **{name: part / count for name, part in parts.items()}}

    return take


class Turn:
    """Steps of all ranks together, of which the first rank sets the number. Returns its parts and the bytes sent."""

    def __init__(self, take_steps: Callable[[int], Parts], step: Step, group: MpiGroup, workload: Workload) -> None:
        from app.model.graph import OnDevice  # MindSpore, after the environment is prepared
        from app.training.parallel.data_parallel import DataParallelStep

        assert isinstance(step, DataParallelStep)
        assert isinstance(step.tables, ShardedTables)
        graph = step.graph.cell if isinstance(step.graph, OnDevice) else step.graph
        self._sum = getattr(graph, "sum", None) or GradientSum(group.communicator)  # none on one rank
        self._exchange = step.tables.owned.exchange
        self._take_steps, self._group = take_steps, group
        self._least_bytes = itertools.cycle(least_bytes(workload, group))
        self._before = self._totals()

    def __call__(self, count: int) -> Parts:
        """Take `count` steps and return the parts of a step. Bytes are those of all ranks."""
        count = self._group.all_reduce_max(count)
        parts = self._take_steps(count)
        totals = self._totals()
        sent = {name: (total - self._before[name]) / count for name, total in totals.items()}
        self._before = totals
        least = float(np.mean([next(self._least_bytes) for _ in range(count)]))
        return {**parts, **sent, "least_table_bytes": least}

    def _totals(self) -> Parts:
        """Return the bytes exchanged in all steps so far."""
        remote = self._exchange.remote_bytes
        # Rows that servers sent are known to them alone: as many bytes as came back in gradients.
        table_bytes = sum(remote.values()) + (remote["gradients"] if self._group.num_servers else 0)
        return {
            "table_bytes": sum(self._group.gather(table_bytes)),
            "tower_sent_bytes": sum(self._group.gather(self._sum.sent_bytes)),
            "tower_sum": self._sum.seconds,
            "tower_wait": self._sum.wait_seconds,
            **{f"exchange_{what}": seconds for what, seconds in self._exchange.seconds.items()},
        }


def least_bytes(workload: Workload, group: MpiGroup) -> list[float]:
    """Return the fewest bytes that each batch must exchange: unique remote rows there and back, and their ids."""
    element_bytes = 2 * 4 * (workload.embedding_dim + 1) + 8
    sums = []
    for batch in make_batches(workload):
        remote = 0
        for rank in range(group.size):
            rows = np.unique(batch.ids[len(batch.ids) * rank // group.size : len(batch.ids) * (rank + 1) // group.size])
            remote += int((rows % group.num_owners != rank + group.num_servers).sum())
        sums.append(float(remote * element_bytes))
    return sums


if __name__ == "__main__":
    main()
