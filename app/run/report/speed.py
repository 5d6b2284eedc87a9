"""Where a run's time and memory went, and how its tables grew."""

from __future__ import annotations

from collections.abc import Sequence

from app.run.logs import PROFILED_STEPS
from app.run.record import Points, RunRecord
from app.run.report.parts import absent, chart, label, overlay, step_axis
from common.html.axes import Axis
from common.html.charts import Bars, Html, Series, bar_chart
from common.html.page import amount, grid, section, share, table

PART = "_ms"  # how the keys of a step's parts end
SHOWN_OPS = 15
NOT_LOGGED = "Not logged yet: every train.log_every_steps steps."


def time_section(runs: Sequence[RunRecord]) -> Html:
    """A step's parts, speed and memory over steps."""
    if not any(run.steady_lines() for run in runs):
        return section("Time and memory", note=NOT_LOGGED)
    speed = chart(
        "Samples per second",
        overlay(runs, "all steps between two lines", [_speed_points(run) for run in runs], dots=False),
        step_axis(runs),
        Axis("samples/s", low=0),
        NOT_LOGGED,
    )
    memory = chart(
        "Memory of the process",
        overlay(runs, "resident", [run.points("memory_bytes") for run in runs], dots=False),
        step_axis(runs),
        Axis("", "bytes", low=0),
        NOT_LOGGED,
    )
    note = (
        "Without the first interval of each launch, in which the graph is compiled. To wait is to wait for batches; "
        "evaluations and saves do not count."
    )
    return section(
        "Time and memory", grid(_bars(runs), _over_steps(runs), speed, memory), _parts_table(runs), note=note
    )


def parts_of(line: dict, batch_size: int) -> dict[str, float]:
    """Milliseconds a step, by part: what was measured, the wait for batches, and what is left."""
    whole = 1000 * batch_size / line["samples_per_second"]
    parts = {"wait": line["wait_share"] * whole}
    parts |= {key.removesuffix(PART): value for key, value in line.items() if key.endswith(PART)}
    return {**parts, "other": max(whole - sum(parts.values()), 0.0)}


def mean_parts(run: RunRecord) -> dict[str, float]:
    """The mean of each part over the steady lines, milliseconds a step; nothing where there are none."""
    lines = [parts_of(line, run.config["train"]["batch_size"]) for line in run.steady_lines()]
    names = list(dict.fromkeys(name for line in lines for name in line))
    return {name: sum(line.get(name, 0.0) for line in lines) / len(lines) for name in names}


def _bars(runs: Sequence[RunRecord]) -> Html:
    means = [mean_parts(run) for run in runs]
    names = list(dict.fromkeys(name for parts in means for name in parts))
    series = [
        Bars(label(runs, run, "mean"), [parts.get(name, 0.0) / 1000 for name in names])
        for run, parts in zip(runs, means, strict=True)
    ]
    return bar_chart("A step by its parts", names, series, Axis("", "seconds"), "half")


def _over_steps(runs: Sequence[RunRecord]) -> Html:
    """With one run a line a part; with several the whole step."""
    if len(runs) > 1:
        series = overlay(runs, "", [_part_points(run, None) for run in runs], dots=False)
    else:
        series = [Series(name, *_part_points(runs[0], name)) for name in mean_parts(runs[0])]
    return chart("Time of a step", series, step_axis(runs), Axis("", "seconds", low=0), NOT_LOGGED)


def _speed_points(run: RunRecord) -> Points:
    lines = run.steady_lines()
    return [line["step"] for line in lines], [line["samples_per_second"] for line in lines]


def _part_points(run: RunRecord, part: str | None) -> Points:
    lines = run.steady_lines()
    parts = [parts_of(line, run.config["train"]["batch_size"]) for line in lines]
    seconds = [(sum(each.values()) if part is None else each.get(part, 0.0)) / 1000 for each in parts]
    return [line["step"] for line in lines], seconds


def _parts_table(runs: Sequence[RunRecord]) -> Html:
    means = [mean_parts(run) for run in runs]
    names = list(dict.fromkeys(name for parts in means for name in parts))
    rows: list[list[object]] = []
    for name in names:
        row: list[object] = [name]
        for parts in means:
            row += [
                amount(parts.get(name, 0.0) / 1000, "seconds"),
                share(parts.get(name, 0.0) / (sum(parts.values()) or 1)),
            ]
        rows.append(row)
    head = [word for run in runs for word in (label(runs, run, "a step"), "share")]
    return table(["part", *head], rows)


def ops_section(runs: Sequence[RunRecord]) -> Html:
    """The slowest operators of the profiled steps."""
    profiled = [run for run in runs if run.op_times]
    if not profiled:
        return section("Slowest operators", note="Not profiled: train with train.profile=true.")
    tables = []
    for run in profiled:
        whole = sum(each["ms"] for each in run.op_times)
        rows = [
            [
                each["op"],
                each["where"],
                amount(each["runs"]),
                amount(each["ms"] / 1000, "seconds"),
                share(each["ms"] / whole),
            ]
            for each in run.op_times[:SHOWN_OPS]
        ]
        tables.append(
            table(["operator", "runs in", "runs", "together", "share of all"], rows, "" if len(runs) == 1 else run.name)
        )
    note = (
        f"The sum over up to {PROFILED_STEPS} steps from the second on; operators may run side by side, and the "
        "profiler itself slows these steps. Custom is the dense layer of app/model/csrc."
    )
    return section("Slowest operators", *tables, note=note)


def tables_section(runs: Sequence[RunRecord]) -> Html:
    """How many rows were touched and how large they are, at each save."""
    unsaved = "Nothing was saved yet: a save notes it."
    share_points = [run.points("touched_share") for run in runs]
    touched = overlay(runs, "touched rows", share_points)
    if not any(line.x for line in touched):
        return section("Tables", absent("Touched rows and norms", unsaved, "wide"))
    norms = [
        Series(label(runs, run, name, also=True), *run.points(f"{name}_row_norm"), points=True)
        for run in runs
        for name in ("deep", "wide")
    ]
    of_vocabulary = Axis("of the vocabulary", "percent", low=0, high=1)
    return section(
        "Tables",
        grid(
            chart("Share of the rows that were touched", touched, step_axis(runs), of_vocabulary, unsaved),
            chart("Norm of a touched row", norms, step_axis(runs), Axis("root mean square", log=True), unsaved),
        ),
    )
