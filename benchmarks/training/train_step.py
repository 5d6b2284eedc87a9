"""Compare the training step with MindSpore's own host operators, PyTorch, and its matrix products alone.

    python -m benchmarks.training.train_step           batch 16,000, D 80, V 200,000, 26 + 13 fields, tower 1024 to 128
    python -m benchmarks.training.train_step --quick   the same at batch 1,000 and few rounds: does everything work?

    as users find it    the peers look up 39 fields, in the environment as it is
    best form           all fold the 13 numeric fields into the first layer (the same function, 27 % of the
                        tower's work less), and malloc keeps its pages. Beside them the tower's matrix products
                        alone, forward and backward, in PyTorch: what the step would take if all else were free
    small batch         256 rows, best form: how much of a step does not shrink with the batch
    log as users find it, log best form, log smaller batch
                        with ids as in Criteo's log, the last at 5/16 of the batch: those of a synthetic log of 5 M
                        rows at min_count 10. The others' ids follow a power law over one vocabulary that all fields
                        share: 34 % of a batch's positions are distinct, and 82 % of those of a field
native_distinct multiplies each distinct row once in the first layer (model.first_layer).

native is this project's step as `make train` takes it, stock the same with MindSpore's own operators for tables
and tower, pytorch that of peers/pytorch_wide_deep.py. MindSpore's CPU operators multiply bfloat16 only if the
processor has AMX. Otherwise stock's figure for bfloat16 is that of its float32 products, which nothing in MindSpore
beats. A contender takes `--steps` steps a turn, in a process of its own. Those of a group are measured in turns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from app.config.config import FirstLayer
from app.config.device import BFLOAT16_FLAGS, Precision, cpu_flags
from benchmarks.harness.contender import KEEP_PAGES, Contender
from benchmarks.harness.timing import Timing, new_parser, print_result, side_by_side
from benchmarks.harness.workload import Workload, distinct_share
from common.packages import require

AS_FOUND, BEST_FORM, SMALL_BATCH = "as users find it", "best form", "small batch"
LOG_AS_FOUND, LOG_BEST_FORM, LOG_SMALLER_BATCH = "log as users find it", "log best form", "log smaller batch"
FORMS = (AS_FOUND, BEST_FORM, SMALL_BATCH, LOG_AS_FOUND, LOG_BEST_FORM, LOG_SMALLER_BATCH)
WARM_UP_TURNS = 2
MINDSPORE, PYTORCH = "benchmarks.training.mindspore_contender", "benchmarks.peers.pytorch_wide_deep"
# The two contenders on native tables, and the value of model.first_layer that each has.
WAYS: dict[str, FirstLayer] = {"native": "direct", "native_distinct": "distinct"}


@dataclass(frozen=True)
class Group:
    """Contenders that take the same form of the step (one of FORMS) and are measured in turns.

    `workload` is the peers' workload. This project's contenders differ from it as `start` says.
    """

    form: str
    workload: Workload
    contenders: tuple[str, ...]

    @property
    def title(self) -> str:
        share = f", {distinct_share(self.workload):.1%} distinct" if self.workload.ids == "log" else ""
        return f"{self.form}, {self.workload.precision}, batch {self.workload.batch_size:,}{share}"

    def start(self, name: str) -> Contender:
        """Start the process of one contender. native always folds the numeric fields: it has no other form."""
        kind, workload = name, self.workload
        if name in WAYS:
            kind, workload = "native", replace(workload, fold_numeric=True, first_layer=WAYS[name])
        environment = {"OMP_NUM_THREADS": str(workload.threads), "GLOG_v": "3"}
        if self.workload.fold_numeric:
            environment |= KEEP_PAGES
        return Contender(name, PYTORCH if name.endswith("pytorch") else MINDSPORE, (kind, workload), environment)


def make_groups(batch_size: int, precisions: tuple[Precision, ...]) -> list[Group]:
    """Return all groups of contenders, in the order of the report."""
    steps, on_log, matmuls = ("native", "stock", "pytorch"), (*WAYS, "pytorch"), "matmuls_pytorch"
    groups = []
    for precision in precisions:
        best = Workload(batch_size=batch_size, precision=precision)
        log = replace(best, ids="log")
        groups += [
            Group(AS_FOUND, replace(best, fold_numeric=False), steps),
            Group(BEST_FORM, best, (*steps, matmuls)),
            Group(SMALL_BATCH, replace(best, batch_size=256), (*steps, matmuls)),
            Group(LOG_AS_FOUND, replace(log, fold_numeric=False), on_log),
            Group(LOG_BEST_FORM, log, (*on_log, matmuls)),
            Group(LOG_SMALLER_BATCH, replace(log, batch_size=batch_size * 5 // 16), on_log),
        ]
    return sorted(groups, key=lambda group: FORMS.index(group.form))


def measure(group: Group, rounds: int, steps: int) -> dict[str, Any]:
    """Measure the contenders of a group. Return the seconds of a step of each, and figures about it.

    The figures are quartiles, the seconds of parts, ratios to native and peak memory.
    """
    print(f"\n== {group.title}", flush=True)
    with ExitStack() as running:
        contenders = [running.enter_context(closing(group.start(name))) for name in group.contenders]
        for contender in contenders:
            contender.wait_until_ready()
        turns: dict[str, Callable[[], object]] = {c.name: partial(c.take_steps, steps) for c in contenders}
        timings = side_by_side(turns, rounds, WARM_UP_TURNS)
        results = {c.name: describe(c, timings[c.name], timings["native"], steps, group) for c in contenders}
    for name, result in results.items():
        print(one_line(name, result), f"  {result['peak_memory_mib']:,.0f} MiB")
    return {"form": group.form, "workload": asdict(group.workload), "steps": results}


def describe(contender: Contender, timing: Timing, native: Timing, steps: int, group: Group) -> dict[str, Any]:
    counted = contender.parts[WARM_UP_TURNS:]
    return {
        "median": timing.median / steps,
        "lower": timing.lower / steps,
        "upper": timing.upper / steps,
        "samples_per_second": group.workload.batch_size * steps / timing.median,
        "over_native": timing.median / native.median,
        "parts": {part: float(np.median([turn[part] for turn in counted])) / steps for part in counted[0]},
        "peak_memory_mib": contender.peak_memory_mib,
    }


def one_line(name: str, result: dict[str, Any]) -> str:
    """Return the line of a contender's result: its median time per step and quartiles, speed, and time of each part.

    Such as `native  612.0 ms [600.1 … 630.9]  26,144 samples/s  1.00 × native   lookup 9.1, tower 560.2, update 40.0`.
    """
    median, lower, upper = (1e3 * result[key] for key in ("median", "lower", "upper"))
    parts = ", ".join(f"{part} {1e3 * seconds:.1f}" for part, seconds in result["parts"].items())
    return (
        f"{name:16} {median:8.1f} ms [{lower:.1f} … {upper:.1f}] {result['samples_per_second']:8,.0f} samples/s "
        f"{result['over_native']:6.2f} × native   {parts}"
    )


def main() -> None:
    require("torch")
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=2, help="of a contender's turn (2)")
    parser.add_argument("--batch", type=int, default=16_000)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="only these")
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), default=("float32", "bfloat16"))
    parser.add_argument("--quick", action="store_true", help="3 rounds of 1 step at batch 1,000")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.batch = 3, 1, 1_000
    precisions = tuple(options.precisions)
    if "bfloat16" in precisions and not cpu_flags() & BFLOAT16_FLAGS:
        print("warning: this processor has no bfloat16 products; float32 alone is measured")
        precisions = ("float32",)
    groups = make_groups(options.batch, precisions)
    chosen = [group for group in groups if group.form in options.forms]
    load = os.getloadavg()[0]
    results = [measure(group, options.rounds, options.steps) for group in chosen]
    print_result(options, load_before=load, groups=results)


if __name__ == "__main__":
    main()
