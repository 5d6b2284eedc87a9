"""Draw report sections on a run's speed: the time of a training step by its parts (such as lookup and update), the
memory, and the growth of the embedding tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from app.run.logs import PROFILED_STEPS
from app.run.record import RunRecord
from app.run.report.quality import MOST_BESIDE, label, lines, overlay, step_axis
from common.html.charts import Axis, Bars, Chart, Series, bar_chart
from common.html.page import PagePart, Section

PART = "_ms"  # Ending of the keys in metrics.jsonl that hold the time of one part of a step.
SHOWN_OPS = 15
OPERATOR_COLUMNS = [("operator", "text"), ("runs in", "text"), ("runs", "number"), ("total time", "seconds"),
                    ("share of all", "share")]  # fmt: skip
PROFILE_NOTE = (
    f"Sums over up to {PROFILED_STEPS} steps from the second on. Operators may run side by side, and the profiler "
    "slows these steps. Custom is the dense layer of app/model/csrc."
)
WARM_UP_NOTE = (
    "The first interval of each launch is left out: it compiles the graph. “wait” is waiting for batches. Evaluations "
    "and saves do not count."
)
NOT_LOGGED = "Not logged yet: a line comes every train.log_every_steps steps."


def samples_per_second(run: RunRecord) -> float | None:
    """Return the mean training speed in rows per second, or None if metrics.jsonl has no training speed.

    Each line of metrics.jsonl has the speed over the same number of steps (train.log_every_steps), so the mean over all
    steps is the harmonic mean of these speeds.
    """
    speeds = [line["samples_per_second"] for line in run.steady_lines()]
    return round(len(speeds) / sum(1 / speed for speed in speeds)) if speeds else None


def parts_of(line: dict, batch_size: int) -> dict[str, float]:
    """Return, for each part of a training step by name, its mean seconds in the steps that one line of metrics.jsonl
    covers.

    The parts are the measured ones (such as lookup and update), "wait" (for batches), and "other" (the rest of a step).
    """
    whole = batch_size / line["samples_per_second"]
    parts = {"wait": line["wait_share"] * whole}
    parts |= {key.removesuffix(PART): value / 1000 for key, value in line.items() if key.endswith(PART)}
    return {**parts, "other": max(whole - sum(parts.values()), 0.0)}


def parts_over_steps(run: RunRecord) -> dict[str, list[float]]:
    """Return, for each part of a training step (such as lookup) by name, the list of its mean seconds per step in each
    interval of steps for which metrics.jsonl has a line.

    The first interval after each start of the training is left out (`RunRecord.steady_lines`).
    """
    parts_by_line = [parts_of(line, run.config["train"]["batch_size"]) for line in run.steady_lines()]
    names = dict.fromkeys(name for parts in parts_by_line for name in parts)
    return {name: [parts.get(name, 0.0) for parts in parts_by_line] for name in names}


def time_and_memory(runs: Sequence[RunRecord]) -> Section:
    """Return the report's section on the time of a training step by its parts, the training speed and the memory."""
    title = "Time and memory"
    if not any(run.steady_lines() for run in runs):
        return Section(title, note=NOT_LOGGED)
    steps = [[line["step"] for line in run.steady_lines()] for run in runs]
    parts = [parts_over_steps(run) for run in runs]
    names = list(dict.fromkeys(name for of_run in parts for name in of_run))
    means = [[fmean(of_run.get(name, [0.0])) for name in names] for of_run in parts]
    bars = [Bars(label(runs, run, "mean"), mean) for run, mean in zip(runs, means, strict=True)]
    # For several runs, draw the time of whole steps. For a single run, draw the time of each part of a step.
    if len(runs) > 1:
        whole = [[sum(each) for each in zip(*of_run.values(), strict=True)] for of_run in parts]
        over_steps = overlay(runs, "", list(zip(steps, whole, strict=True)), dots=False)
    else:
        over_steps = [Series(name, steps[0], each) for name, each in parts[0].items()]
    speeds = [[line["samples_per_second"] for line in run.steady_lines()] for run in runs]
    speed = overlay(runs, "samples/s", list(zip(steps, speeds, strict=True)), dots=False)
    memory = overlay(runs, "resident memory", [run.points("memory_bytes") for run in runs], dots=False)
    x = step_axis(runs)
    charts = [
        bar_chart("Time per step by part", names, bars, Axis("time", "seconds"), "half"),
        lines("Time per step", over_steps, x, Axis("time", "seconds", log=True, clip=True), NOT_LOGGED),
        lines("Samples per second", speed, x, Axis("samples/s", low=0), NOT_LOGGED),
        lines("Resident memory of the process", memory, x, Axis("memory", "bytes", low=0), NOT_LOGGED),
    ]
    columns = [pair for run in runs for pair in ((label(runs, run, "time per step"), "seconds"), ("share", "share"))]
    shares = [[part / (sum(mean) or 1) for part in mean] for mean in means]
    of_runs = [cells for pair in zip(means, shares, strict=True) for cells in pair]
    rows = list(zip(names, *of_runs, strict=True))
    table = PagePart("table", [("part", "text"), *columns], rows)
    if len(runs) > MOST_BESIDE:
        by_run = [[run.name, *mean] for run, mean in zip(runs, means, strict=True)]
        table = PagePart("table", [("time per step", "text"), *((name, "seconds") for name in names)], by_run)
    return Section(title, PagePart("charts", charts), table, note=WARM_UP_NOTE)


def operators(runs: Sequence[RunRecord]) -> Section:
    """Return the report's section with a table of the slowest operators in the profiled steps of each run."""
    title, profiled = "Slowest operators", [run for run in runs if run.op_times]
    if not profiled:
        return Section(title, note="Not profiled: train with train.profile=true.")
    tables = []
    for run in profiled:
        whole = sum(each["ms"] for each in run.op_times)
        rows = [
            [each["op"], each["where"], each["runs"], each["ms"] / 1000, each["ms"] / whole]
            for each in run.op_times[:SHOWN_OPS]
        ]
        tables.append(PagePart("table", OPERATOR_COLUMNS, rows, label(runs, run, "")))
    return Section(title, *tables, note=PROFILE_NOTE)


def embedding_tables(runs: Sequence[RunRecord]) -> Section:
    """Return the report's section on the embedding tables, which has two charts. Each shows a figure that the training
    logs whenever it saves a checkpoint.

    The two figures are the share of embedding rows that training has updated so far, and the norm of these rows.
    """
    touched = overlay(runs, "touched rows", [run.points("touched_share") for run in runs])
    norms = [
        Series(f"{run.name} {name}" if len(runs) > 1 else name, *run.points(f"{name}_row_norm"), points=True)
        for run in runs
        for name in ("deep", "wide")
    ]
    of_vocabulary = Axis("share of the vocabulary", "percent", low=0, high=1)
    charts = [
        lines("Rows touched so far", touched, step_axis(runs), of_vocabulary),
        lines("Norm of the touched rows", norms, step_axis(runs), Axis("root mean square", log=True)),
    ]
    if not any(line.x for line in touched):
        charts = [Chart("Touched rows and norms", "wide", "Nothing was saved yet: each save logs them.")]
    return Section("Embedding tables", PagePart("charts", charts))
