"""Compare the speed of several ranks with one, with the same batch on the same cores, and count their messages' bytes.

    python -m benchmarks.distributed.ranks_and_servers             batch 16,000, D 80, V 200,000, tower 1024-512-256-128
    python -m benchmarks.distributed.ranks_and_servers --quick     the same at batch 1,000: does everything work?

    one rank        one process with all cores
    ranks           as many ranks as cores, one thread each, rows owned by all of them
    servers         one process that owns all rows beside one that trains, each with all cores: they take turns

The contenders take turns of some steps and rest between them, so that other load on the machine hits all of them. A
ratio compares contenders of the same round. Median and quartiles are over the rounds. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from app.config.device import BFLOAT16_FLAGS, cpu_flags
from app.distributed.mpirun import find_mpirun, mpirun_options
from benchmarks.harness.contender import KEEP_PAGES, Contender, Parts
from benchmarks.harness.timing import machine, side_by_side
from benchmarks.harness.workload import Workload

WARM_UP_TURNS = 2
TABLE_BYTES = ("table_bytes", "least_table_bytes")
EXCHANGES = (
    "exchange_start",
    "exchange_ids",
    "exchange_rows",
    "exchange_gradients",
)  # app.distributed.exchange.Exchange.seconds
BETWEEN_RANKS = (*TABLE_BYTES, *EXCHANGES, "tower_sent_bytes", "tower_sum", "tower_wait")


def start(name: str, workload: Workload, ranks: int, servers: int) -> Contender:
    """The processes of a contender: `ranks` train, and `servers` more own the rows."""
    environment = {"OMP_NUM_THREADS": str(workload.threads), "GLOG_v": "3", **KEEP_PAGES}
    launcher: list[str] = []
    if ranks + servers > 1:
        launcher = [find_mpirun(), *mpirun_options(None), "--stdin", str(servers), "-n", str(ranks + servers)]
    arguments = [workload.to_json(), str(servers)]
    return Contender(name, "benchmarks.distributed.distributed_contender", arguments, environment, launcher)


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(median), "lower": float(lower), "upper": float(upper)}


def summarize(turns: list[Parts], batch_size: int) -> dict[str, Any]:
    """A contender's step, and the medians of its parts and of what went between ranks."""
    medians = {name: float(np.median([turn[name] for turn in turns])) for name in turns[0]}
    step = spread([turn["step"] for turn in turns])
    result = {"step": step, "samples_per_second": batch_size / step["median"]}
    result["parts"] = {n: value for n, value in medians.items() if n != "step" and n not in BETWEEN_RANKS}
    result |= {name: medians[name] for name in BETWEEN_RANKS if name in medians}
    if "table_bytes" in result:
        sent, least = (sum(turn[name] for turn in turns) for name in TABLE_BYTES)
        result["table_bytes_over_least"] = sent / least if least else 1.0
    return result


def measure(workload: Workload, rounds: int, steps: int) -> dict[str, Any]:
    """All contenders of one precision, in turns."""
    cores = workload.threads
    with ExitStack() as stack:
        contenders = [
            stack.enter_context(start("one rank", workload, 1, 0)),
            stack.enter_context(start("ranks", replace(workload, threads=1), cores, 0)),
            stack.enter_context(start("servers", workload, 1, 1)),
        ]
        for contender in contenders:
            contender.wait_until_ready()
        turns = {contender.name: partial(contender.take_steps, steps) for contender in contenders}
        side_by_side(turns, rounds, WARM_UP_TURNS)
    parts = {contender.name: contender.parts[WARM_UP_TURNS:] for contender in contenders}
    step = {name: np.array([turn["step"] for turn in turns]) for name, turns in parts.items()}
    results = {name: summarize(turns, workload.batch_size) for name, turns in parts.items()}
    ratios = {
        "ranks_over_one_rank": spread(list(step["one rank"] / step["ranks"])),
        "servers_step_over_one_rank": spread(list(step["servers"] / step["one rank"])),
    }
    print(f"\n== {workload.precision}, batch {workload.batch_size:,}, {cores} cores")
    for name, result in results.items():
        print(one_line(name, result))
    speed, with_servers = ("{median:.2f} [{lower:.2f} … {upper:.2f}]".format(**ratio) for ratio in ratios.values())
    print(f"ranks {speed} × one rank's samples/s; a step with servers {with_servers} × one rank's")
    return {"precision": workload.precision, "contenders": results, **ratios}


def one_line(name: str, result: dict[str, Any]) -> str:
    """Return a line such as `ranks  612.0 ms [600.1 … 630.9]  26,144 samples/s   lookup 9.1, …`."""
    lower, median, upper = (1e3 * result["step"][key] for key in ("lower", "median", "upper"))
    parts = ", ".join(f"{part} {1e3 * seconds:.1f}" for part, seconds in result["parts"].items())
    speed = f"{result['samples_per_second']:8,.0f} samples/s"
    text = f"{name:10} {median:8.1f} ms [{lower:.1f} … {upper:.1f}] {speed}   {parts}"
    if "table_bytes" not in result:
        return text
    tables, sent = (result[name] / 1e6 for name in ("table_bytes", "tower_sent_bytes"))
    wait, *exchanges = (1e3 * result[name] for name in EXCHANGES)
    return (
        f"{text}; a step sends {tables:.1f} MB of the tables, {result['table_bytes_over_least']:.3f} × the least: ids "
        "{:.1f} ms, rows {:.1f}, gradients {:.1f}".format(*exchanges)
        + f", after waits of {wait:.1f}; and {sent:.1f} MB of the tower: {1e3 * result['tower_sum']:.1f} ms after a "
        f"wait of {1e3 * result['tower_wait']:.1f}"
    )


def main() -> None:
    """Measure float32, and bfloat16 if the processor has it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help=f"after {WARM_UP_TURNS} that do not count (6)")
    parser.add_argument("--steps", type=int, default=4, help="of a turn (4)")
    parser.add_argument("--batch", type=int, default=16_000)
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), default=("float32", "bfloat16"))
    parser.add_argument("--quick", action="store_true", help="2 rounds of a step at batch 1,000")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.batch = 2, 1, 1_000
    precisions = [p for p in options.precisions if p == "float32" or cpu_flags() & BFLOAT16_FLAGS]
    load = os.getloadavg()[0]
    workloads = [Workload(batch_size=options.batch, precision=precision) for precision in precisions]
    results = [measure(workload, options.rounds, options.steps) for workload in workloads]
    print(json.dumps({"machine": machine(), "arguments": vars(options), "load_before": load, "results": results}))


if __name__ == "__main__":
    main()
