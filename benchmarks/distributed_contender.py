"""One rank (or one process) of `benchmarks.distributed`: takes training steps and prints what they took, as JSON.

    [mpirun -n N] python -m benchmarks.distributed_contender WORKLOAD SERVERS STEPS

WORKLOAD is JSON, with fields of `benchmarks.workload.Workload`; its batch is that of all ranks together.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from app import device
from app.parameter_server import ParameterServer
from app.process_group import MpiGroup, load_mpi, started_by_mpi
from app.tables.sharded import ShardedTables
from benchmarks.contender import Parts
from benchmarks.mindspore_contender import make_config, make_schema
from benchmarks.workload import Step, Workload, make_batches, steps_on_prefetched_batches

WARM_UP_STEPS = 4


def main() -> None:
    """Build the step of this rank, take the steps, and print on the first rank that trains."""
    workload, servers, steps = Workload.from_json(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    config, schema = make_config(workload, "native"), make_schema(workload)
    device.prepare_environment(config.device)
    group = MpiGroup(load_mpi().COMM_WORLD, servers) if started_by_mpi() else None
    if group is not None and group.world.rank < servers:
        ParameterServer(config, schema, "native", group).run()
        return
    device.select_device(config.device)
    from app.assemble import assemble

    step = assemble(config, schema, "native", group).step
    take_steps = steps_on_prefetched_batches(step, step, workload)
    take_steps(WARM_UP_STEPS)
    result = measure(take_steps, steps)
    if group is None:
        print(json.dumps(result))
        return
    assert isinstance(step.tables, ShardedTables)
    result |= traffic(step.tables, group, workload, WARM_UP_STEPS + steps)
    result |= tower_sum(step, group, WARM_UP_STEPS + steps)
    with group:
        if group.rank == 0:
            print(json.dumps(result), flush=True)


def measure(take_steps: Callable[[int], Parts], steps: int) -> dict[str, Any]:
    """Seconds of each step, and the mean of each of its parts."""
    seconds, parts = [], []
    for _ in range(steps):
        start = time.perf_counter()
        parts.append(take_steps(1))
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "parts": {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}}


def traffic(tables: ShardedTables, group: MpiGroup, workload: Workload, steps: int) -> dict[str, float]:
    """Bytes that the ranks sent to others in a step: the tables', beside the least there can be, and the tower's."""
    owners = group.num_owners
    exchange = tables.owned.exchange
    sent = sum(group.gather(sum(exchange.remote_bytes.values()))) / steps
    sent += _servers_rows(tables, group) / steps
    row_bytes = 4 * (workload.embedding_dim + 1)
    batches = make_batches(workload)
    remote = 0.0
    for batch in (batches[i % len(batches)] for i in range(steps)):
        for rank in range(group.size):
            rows = np.unique(batch.ids[len(batch.ids) * rank // group.size : len(batch.ids) * (rank + 1) // group.size])
            remote += float((rows % owners != rank + group.num_servers).sum()) / steps
    return {
        "table_bytes": sent,
        "table_bytes_over_least": sent / (remote * (2 * row_bytes + 8)) if remote else 1.0,
    }


def tower_sum(step: Step, group: MpiGroup, steps: int) -> dict[str, float]:
    """Of the sum of the tower's gradients in a step: bytes of all ranks, seconds of this one."""
    from app.data_parallel import DataParallelStep, SummedGraph  # MindSpore, after the environment is prepared

    assert isinstance(step, DataParallelStep)
    assert isinstance(step.graph, SummedGraph)
    summed = step.graph.sum
    return {
        "tower_shared_bytes": sum(group.gather(summed.shared_bytes)) / steps,
        "tower_sent_bytes": sum(group.gather(summed.sent_bytes)) / steps,
        "tower_sum_seconds": summed.seconds / steps,
        "tower_wait_seconds": summed.wait_seconds / steps,
    }


def _servers_rows(tables: ShardedTables, group: MpiGroup) -> float:
    """Rows that servers sent, which only they count: as many bytes as came back in gradients."""
    if not group.num_servers:
        return 0.0
    return float(sum(group.gather(tables.owned.exchange.remote_bytes["gradients"])))


if __name__ == "__main__":
    main()
