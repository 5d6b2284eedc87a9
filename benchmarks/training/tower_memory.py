"""Measure the tower's memory in each of N ranks, in each mode that splits it.

    python -m benchmarks.training.tower_memory              4 hidden layers of 2,048, batch 4,000, 2 ranks
    python -m benchmarks.training.tower_memory --quick      the same, small: does everything work?

`held` is what a rank keeps between steps: its weights and what their optimizers remember. `peak` is the most that its
memory had grown by, from before the model was made: gradients, activations, messages and MindSpore's graphs come in.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from app import device
from app.distributed.process_group import MpiGroup, load_mpi
from benchmarks.harness.ranks import found_by_ranks
from benchmarks.harness.timing import machine, memory_mib
from benchmarks.harness.workload import Workload, make_batches
from benchmarks.training.mindspore_contender import make_config, make_schema
from common import settings

MIB = 2**20
STEPS = 3


def modes(num_layers: int, num_ranks: int) -> dict[str, tuple[str, ...]]:
    """Settings by the mode's name; the split layers have their columns and their rows split in turn."""
    splits = [f"((1, 1), (1, {num_ranks}))", f"((1, {num_ranks}), ({num_ranks}, 1))"]
    strategies = ", ".join(f'matrix_{i}: "{splits[i % 2]}"' for i in range(num_layers))
    return {
        "data parallel": (),
        "optimizer shards": ("parallel.optimizer_shards=true",),
        "split products": (f"parallel.tensor_parallel={num_ranks}", f"parallel.strategies={{{strategies}}}"),
        "pipeline": ("parallel.pipeline_stages=2",),
    }


def measure(mode: str, workload: Workload) -> dict[str, float]:
    """MiB of this rank, after some steps with all ranks."""
    group = MpiGroup(load_mpi().COMM_WORLD)
    words = modes(len(workload.hidden_widths), group.size)[mode]
    config = settings.override(make_config(workload, "native"), words)
    device.prepare_environment(config.device)
    device.select_device(config.device)
    from app.training.assemble import assemble

    batches = make_batches(workload)
    before = memory_mib("VmRSS")
    with group:
        parts = assemble(config, make_schema(workload), "native", group)
        for batch in batches[:STEPS]:
            parts.step(batch, parts.step.prepare(batch))
    return {"held_mib": held_mib(parts), "peak_mib": memory_mib("VmHWM") - before}


def held_mib(parts: Any) -> float:
    """The dense parameters of a rank and its optimizers' state."""
    named = parts.model.named_parameters() | parts.optimizers.named_state()
    shares = getattr(parts.optimizers.tower, "shares", ())  # the optimizer's own copy of its part of the weights
    return sum(np.dtype(np.float32).itemsize * parameter.size for parameter in (*named.values(), *shares)) / MIB


def one_line(mode: str, ranks: Iterable[dict[str, float]]) -> str:
    """`pipeline          held 60.1 + 90.2 MiB   peak 300 + 200 MiB`, rank by rank."""
    held, peak = ([round(rank[key], 1) for rank in ranks] for key in ("held_mib", "peak_mib"))
    return f"{mode:<17} held {' + '.join(map(str, held))} MiB   peak {' + '.join(map(str, peak))} MiB"


def main() -> None:
    """Measure each mode, or be one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="(2)")
    parser.add_argument("--layers", type=int, default=4, help="hidden layers (4)")
    parser.add_argument("--width", type=int, default=2048, help="of each of them (2048)")
    parser.add_argument("--batch", type=int, default=4000, help="rows of all ranks together (4000)")
    parser.add_argument("--quick", action="store_true", help="2 layers of 64, batch 100")
    parser.add_argument("--as-rank", nargs=2, metavar=("MODE", "WORKLOAD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        group = MpiGroup(load_mpi().COMM_WORLD)
        found = group.gather(measure(options.as_rank[0], Workload.from_json(options.as_rank[1])))
        if group.rank == 0:
            print(json.dumps(found), flush=True)
        return
    if options.quick:
        options.layers, options.width, options.batch = 2, 64, 100
    widths = (options.width,) * options.layers
    workload = Workload(options.batch, vocabulary_size=10_000, embedding_dim=16, hidden_widths=widths, threads=1)
    results = {}
    for mode in modes(options.layers, options.ranks):
        words = ("--as-rank", mode, workload.to_json())
        results[mode] = found_by_ranks(options.ranks, "benchmarks.training.tower_memory", *words)
        print(one_line(mode, results[mode]), flush=True)
    sizes = {key: value for key, value in vars(options).items() if key != "as_rank"}
    print(json.dumps({"machine": machine(), "arguments": sizes, "results": results}))


if __name__ == "__main__":
    main()
