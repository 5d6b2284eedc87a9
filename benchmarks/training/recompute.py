"""Measure memory saved and time lost by recomputed layers (`parallel.recompute`).

    python -m benchmarks.training.recompute [--layers 8] [--width 512] [--batch 16000] [--dropout 0.1] [--activation
    gelu]

Each is a process of its own, in turn: the step's graph on random rows, without tables. Memory is the most that the
process held (VmHWM) above what it held before its first step. Both must end at the same loss, to the last bit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.harness.timing import machine, memory_mib

EMBEDDING_DIM, FIELDS, NUMERIC = 16, 8, 3
KINDS = {"kept": "[]", "recomputed": "[all]"}


def main() -> None:
    """See the top of the file."""
    options = _options()
    if options.kind:
        print(json.dumps(measure(options)))
        return
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind, results in found.items():
            command = [sys.executable, "-m", "benchmarks.training.recompute", *sys.argv[1:], "--kind", kind]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results.append(json.loads(output.splitlines()[-1]))
            print(f"{kind:<11}", results[-1])
    sizes = {key: value for key, value in vars(options).items() if key != "kind"}
    losses = {result["loss"] for results in found.values() for result in results}
    if len(losses) > 1:
        raise SystemExit(f"error: the losses differ: {losses}")
    figures = {
        f"{kind}_{key}": float(np.median([result[key] for result in results]))
        for kind, results in found.items()
        for key in ("peak_mib", "step_ms")
    }
    print(json.dumps({"machine": machine(), "arguments": sizes, "results": figures}))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train in this process; return peak memory, median step time and last loss."""
    from app.config.config import Config
    from app.device import prepare_environment, select_device
    from common import settings

    words = [
        "device.target=CPU",
        f"parallel.recompute={KINDS[options.kind]}",
        f"train.batch_size={options.batch}",
        f"model.hidden_widths={[options.width] * options.layers}",
        f"model.embedding_dim={EMBEDDING_DIM}",
        f"model.dropout={options.dropout}",
        f"model.activation={options.activation}",
    ]
    config = settings.override(Config(), words)
    prepare_environment(config.device)
    select_device(config.device)
    step = _step(config)
    before = memory_mib("VmRSS")
    seconds, loss = [], 0.0
    for _ in range(options.steps + 1):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    return {
        "peak_mib": round(memory_mib("VmHWM") - before),
        "step_ms": round(1e3 * float(np.median(seconds[1:])), 1),  # the first one compiles
        "loss": loss,
    }


def _step(config: Any) -> Any:
    """Takes one step on the same random rows each time, and gives its loss."""
    from mindspore import Tensor

    from app.config.parallel import recomputed_runs
    from app.device import deprecations_silenced
    from app.model.dropout import DropoutNoise
    from app.model.graph import DeviceGraph, ForwardBackward
    from app.model.native_layer import dense_layer
    from app.model.optimizers import DenseOptimizers
    from app.model.wide_deep import Tower, WideDeep

    model, rng, rows = config.model, np.random.default_rng(1), config.train.batch_size
    runs = recomputed_runs(config.parallel.recompute, len(model.hidden_widths))
    layer = dense_layer(config.device, model.activation)
    tower = Tower(FIELDS, NUMERIC, EMBEDDING_DIM, model.hidden_widths, 1, 0.01, layer, recompute=runs)
    cells = WideDeep(tower)
    with deprecations_silenced():
        optimizers = DenseOptimizers(cells, config.wide_optimizer, config.tower_optimizer, config.loss.loss_scale)
    graph = DeviceGraph(ForwardBackward(cells, config.loss, drops=model.dropout > 0), optimizers)
    shapes = (rows, FIELDS * EMBEDDING_DIM), (rows,), (rows, NUMERIC)
    values = [Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]
    labels = Tensor((rng.random(rows) < 0.3).astype(np.float32))
    weights = Tensor(np.full(rows, 1 / rows, np.float32))
    noise = Tensor(DropoutNoise(1, model.dropout, len(model.hidden_widths)).of_step(1))
    return lambda: float(graph(*values, labels, weights, noise)[0].asnumpy())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="memory and time of recomputed layers")
    parser.add_argument("--layers", type=int, default=8, help="hidden layers (8)")
    parser.add_argument("--width", type=int, default=512, help="of each of them (512)")
    parser.add_argument("--batch", type=int, default=16_000, help="rows (16000)")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of units dropped (0)")
    parser.add_argument("--activation", default="relu", help="relu (a kernel), or gelu, tanh, … of operators (relu)")
    parser.add_argument("--steps", type=int, default=5, help="steps a process, besides the first (5)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind (3)")
    parser.add_argument("--kind", choices=tuple(KINDS), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
