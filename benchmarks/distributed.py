"""How fast are several ranks against one, with the same batch on the same cores? And what do they send each other?

    python -m benchmarks.distributed             batch 16,000, D 80, V 200,000, tower 1024-512-256-128
    python -m benchmarks.distributed --quick     the same at batch 1,000: does everything work?

    one rank        one process with all cores
    ranks           as many ranks as cores, one thread each, rows owned by all of them
    servers         one process that owns all rows beside one that trains, each with all cores: they take turns

Every measurement is a job of its own, started anew; the contenders take turns, so that what else the machine does hits
all of them. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from app.device import BFLOAT16_FLAGS, cpu_flags
from app.launch import find_mpirun, mpirun_options
from benchmarks.contender import KEEP_PAGES, PROJECT
from benchmarks.timing import machine
from benchmarks.workload import Workload


def run_job(workload: Workload, ranks: int, servers: int, steps: int) -> dict[str, Any]:
    """One job's figures; `ranks` train, and `servers` more own the rows."""
    program = ["-m", "benchmarks.distributed_contender", workload.to_json(), str(servers), str(steps)]
    command = [sys.executable, *program]
    if ranks + servers > 1:
        command = [find_mpirun(), *mpirun_options(None), "-n", str(ranks + servers), *command]
    environment = {**os.environ, "OMP_NUM_THREADS": str(workload.threads), "GLOG_v": "3", **KEEP_PAGES}
    done = subprocess.run(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    result: dict[str, Any] = json.loads(line)
    return result


def summarize(jobs: list[dict[str, Any]], batch_size: int) -> dict[str, Any]:
    """Median and quartiles over all steps of a contender's jobs, and its other figures from the last one."""
    seconds = np.concatenate([job["seconds"] for job in jobs])
    lower, median, upper = np.quantile(seconds, [0.25, 0.5, 0.75])
    last = {name: value for name, value in jobs[-1].items() if name != "seconds"}
    speed = batch_size / median
    return {"median": median, "lower": lower, "upper": upper, "samples_per_second": speed, **last}


def measure(workload: Workload, rounds: int, steps: int) -> dict[str, Any]:
    """All contenders of one precision, in turns."""
    cores = workload.threads
    contenders = {
        "one rank": (workload, 1, 0),
        "ranks": (replace(workload, threads=1), cores, 0),
        "servers": (workload, 1, 1),
    }
    jobs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for turn in range(rounds):
        names = list(contenders)
        for name in names[turn % 3 :] + names[: turn % 3]:
            jobs[name].append(run_job(*contenders[name], steps))
    results = {name: summarize(each, workload.batch_size) for name, each in jobs.items()}
    speed = {name: result["samples_per_second"] for name, result in results.items()}
    ratios = {
        "ranks_over_one_rank": speed["ranks"] / speed["one rank"],
        "servers_step_over_one_rank": speed["one rank"] / speed["servers"],
    }
    print(f"\n== {workload.precision}, batch {workload.batch_size:,}, {cores} cores")
    for name, result in results.items():
        print(one_line(name, result))
    print(
        f"ranks {100 * ratios['ranks_over_one_rank']:.0f} % of one rank's samples/s, a step with servers "
        f"{ratios['servers_step_over_one_rank']:.2f} × one rank's"
    )
    return {"precision": workload.precision, "contenders": results, **ratios}


def one_line(name: str, result: dict[str, Any]) -> str:
    """`ranks  612.0 ms [600.1 … 630.9]  26,144 samples/s   lookup 9.1, …; tables 20.1 MB, 1.00 × the least`."""
    lower, median, upper = (1e3 * result[key] for key in ("lower", "median", "upper"))
    parts = ", ".join(f"{part} {1e3 * seconds:.1f}" for part, seconds in result["parts"].items())
    speed = f"{result['samples_per_second']:8,.0f} samples/s"
    text = f"{name:10} {median:8.1f} ms [{lower:.1f} … {upper:.1f}] {speed}   {parts}"
    if "table_bytes" not in result:
        return text
    over_least = result["table_bytes_over_least"]
    return (
        f"{text}; sent a step: tables {result['table_bytes'] / 1e6:.1f} MB, {over_least:.3f} × the least, "
        f"tower {result['tower_sent_bytes'] / 1e6:.1f} MB and {result['tower_shared_bytes'] / 1e6:.1f} MB in shared "
        f"memory in {1e3 * result['tower_sum_seconds']:.1f} ms after a wait of {1e3 * result['tower_wait_seconds']:.1f}"
    )


def main() -> None:
    """Measure float32 and, where the processor has it, bfloat16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="of a job, after its warm-up (10)")
    parser.add_argument("--batch", type=int, default=16_000)
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), default=("float32", "bfloat16"))
    parser.add_argument("--quick", action="store_true", help="1 round of 2 steps at batch 1,000")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.batch = 1, 2, 1_000
    precisions = [p for p in options.precisions if p == "float32" or cpu_flags() & BFLOAT16_FLAGS]
    load = os.getloadavg()[0]
    workloads = [Workload(batch_size=options.batch, precision=precision) for precision in precisions]
    results = [measure(workload, options.rounds, options.steps) for workload in workloads]
    print(json.dumps({"machine": machine(), "arguments": vars(options), "load_before": load, "results": results}))


if __name__ == "__main__":
    main()
