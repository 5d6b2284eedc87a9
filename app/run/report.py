"""Assemble the report page of one or several runs, or of a sweep, with key figures, warnings and settings, and draw its
sections on speed: the time of a training step by its parts (such as lookup and update), the memory, and the growth of
the embedding tables. `app.run.quality` draws the sections on the model.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any

from app.evaluation.metrics import METRICS, as_score
from app.run.folder import PROFILED_STEPS
from app.run.quality import (
    MOST_BESIDE,
    effects,
    evaluations,
    label,
    learning,
    lines,
    metrics_over_steps,
    overlay,
    step_axis,
)
from app.run.record import RunRecord, read_run, read_runs
from common.files import message_of, write_whole
from common.html.charts import Axis, Bars, Chart, Series, bar_chart, line_chart
from common.html.page import PagePart, Section, render_page
from common.packages import python_command
from common.settings import flatten, setting_text
from common.text import number_text
from common.yaml_settings import dump_yaml

log = logging.getLogger("app")

REPORT_FILE = "report.html"
NOT_WRITTEN = 3  # Exit status if the report could not be written.
OVERVIEW = [("run", "text"), ("status", "text"), ("steps", "number"), ("best step", "number"), ("valid AUC", "right"),
            ("valid log loss", "right"), ("test AUC", "right"), ("95 % interval", "right"), ("samples/s", "number"),
            ("time", "seconds")]  # fmt: skip


def write_report(runs: Sequence[Path], output: Path) -> None:
    """Write the report page of the given run folders to `output` atomically.

    Raise FileNotFoundError if one of the folders holds no run.
    """
    write_whole(output, report_page(read_runs(runs)))


def leave_report(run: Path) -> list[str]:
    """Write the report of a run into the run's folder. Return the names of the files that could not be written: [], or
    after an error, which is logged, a list with the name of the report.
    """
    try:
        write_report([run], run / REPORT_FILE)
    except OSError as error:
        log.error("error: no %s: %s", REPORT_FILE, message_of(error))
        return [REPORT_FILE]
    log.info("report: %s", run / REPORT_FILE)
    return []


def report_page(runs: Sequence[RunRecord]) -> str:
    """Return the report page on one run as HTML, or a page that compares several `runs`."""
    several = len(runs) > 1
    title = f"{len(runs)} runs side by side" if several else f"Run {runs[0].name}"
    warnings = [
        PagePart("warning", f"{run.name}: {text}" if several else text) for run in runs for text in _warnings(run)
    ]
    overview = Section("Runs", PagePart("table", OVERVIEW, [_overview(run) for run in runs]), *warnings)
    figures = [PagePart("tiles", _key_figures(runs[0])), *warnings]
    sections = [
        learning,
        metrics_over_steps,
        evaluations,
        effects,
        time_and_memory,
        operators,
        embedding_tables,
        settings_section,
    ]
    return render_page(
        title,
        "; ".join(_subtitle(run, several) for run in runs),
        [] if several else figures,
        [*([overview] if several else []), *(section(runs) for section in sections)],
    )


def _subtitle(run: RunRecord, with_name: bool) -> str:
    rows = run.state.get("rows", {}).get("train")
    of = f" of {number_text(rows)} training rows" if rows else ""
    epochs = f"{run.steps:,} steps of batch {run.config['train']['batch_size']:,}{of}"
    return f"{f'{run.name}: ' if with_name else ''}{run.state['status']}, {epochs}"


def _key_figures(run: RunRecord) -> list[tuple[str, str, str]]:
    """Return the figures at the top of the page, such as the AUC, as (quantity, number, explanation).

    An unknown number is a dash.
    """
    best, test = run.best_evaluation(), run.test_evaluation()
    of_best = f"best by {run.metric}, step {best['step']:,}" if best else "not evaluated yet"
    figures = [("valid AUC", _digits(best, "auc"), of_best), ("valid log loss", _digits(best, "log_loss"), of_best)]
    if test:
        for key, name in (("auc", "test AUC"), ("log_loss", "test log loss")):
            interval = f", 95 % interval {_interval(test, key)}" if key in test["intervals"] else ""
            scores = ", calibrated scores" if test.get("calibrated") else ""
            figures.append((name, _digits(test["metrics"], key), f"step {test['step']:,}{scores}{interval}"))
    else:
        command = python_command(f"app evaluate --run {quote(run.name)}")
        figures.append(("on the test rows", "–", f"evaluate them with: {command}"))
    memory = run.points("memory_bytes")[1]
    whole = f", {number_text(run.seconds, 'seconds')} with evaluations and saves"
    return [
        *figures,
        ("samples/s", number_text(samples_per_second(run)), f"{run.steps:,} steps{whole}"),
        ("peak memory", number_text(max(memory, default=None), "bytes"), "resident memory of the process"),
    ]


def _digits(values: dict | None, name: str) -> str:
    value = values.get(name) if values else None
    return "–" if value is None else f"{value:.4f}"


def _interval(evaluation: dict | None, name: str) -> str:
    interval = evaluation["intervals"].get(name) if evaluation else None
    return f"{interval[0]:.4f} … {interval[1]:.4f}" if interval else "–"


def _overview(run: RunRecord) -> list[object]:
    best, test = run.best_evaluation(), run.test_evaluation()
    figures = [_digits(best, "auc"), _digits(best, "log_loss"), _digits(test["metrics"] if test else None, "auc")]
    step = best["step"] if best else None
    quality = [step, *figures, _interval(test, "auc")]
    return [run.name, run.state["status"], run.steps, *quality, samples_per_second(run), run.seconds]


def _warnings(run: RunRecord) -> list[str]:
    status = {
        "failed": "The run failed; the page shows how far it came.",
        "stopped": "The run was stopped and can be resumed; the page shows how far it came.",
        "running": "The run is running, or was killed; the page shows how far it came.",
    }
    notes = [status[run.state["status"]]] if run.state["status"] in status else []
    notes += [str(line["stopped_early"]) for line in run.lines if "stopped_early" in line]
    # Use a mapping by step, so that a step counts once: the checkpoint of the last step is tried twice.
    errors = {line["step"]: line["save_error"] for line in run.lines if "save_error" in line}
    last = next(reversed(errors.values()), "")
    return [*notes, f"{len(errors)} checkpoint(s) could not be written: {last}"] if errors else notes


def settings_section(runs: Sequence[RunRecord]) -> Section:
    """Return the report's section with the settings that differ between runs, and each run's command, data and machine.

    It also has all settings of the first run.
    """
    several, compared = len(runs) > 1, []
    if several:
        rows, columns = differences(runs), [("setting", "text"), *((run.name, "text") for run in runs)]
        same = PagePart("paragraph", "All settings are the same.")
        compared = [PagePart("table", columns, rows, "Settings that differ") if rows else same]
    described = [
        PagePart("definitions", ({"run": run.name} if several else {}) | _described(run), ["command"]) for run in runs
    ]
    first = PagePart("folded", f"All settings of {runs[0].name}", dump_yaml(runs[0].config))
    return Section("Settings, command and machine", *compared, *described, first)


def differences(runs: Sequence[RunRecord]) -> list[list[str]]:
    """Return a table row for each setting that differs between the runs: its name, and its value in each run.

    A value is "–" if the run does not have this setting.
    """
    flat = [flatten(run.config) for run in runs]
    names = dict.fromkeys(name for each in flat for name in each)
    rows = [[name, *(setting_text(each.get(name, "–")) for each in flat)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def _described(run: RunRecord) -> dict[str, str]:
    state = run.state
    rows = ", ".join(f"{name} {count:,}" for name, count in state.get("rows", {}).items())
    ids = state.get("identity", {}).get("data", {}).get("vocabulary_size", 0)
    versions = ", ".join(f"{name} {number}" for name, number in state.get("versions", {}).items())
    return {
        "command": state.get("command", "unknown"),
        "status": state["status"],
        "data": f"rows: {rows or 'unknown'}; {ids:,} ids",
        "machine": state.get("machine", "unknown"),
        "versions": f"Python {state.get('python', 'unknown')}, {versions}",
        "commit": state.get("commit", "unknown"),
    }


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


MOST_OVERLAID = 8  # Charts show at most this many runs, so that their lines can be told apart.
RUN = "run"  # Key in a `Result` whose value is the path of the run folder.

# What is known about one run of a sweep, by name: its folder, settings, metric, epochs, status and seconds.
Result = Mapping[str, Any]


def write_sweep_report(
    results: Sequence[Result], tried: Mapping[str, Sequence[Any]], metric: str, output: Path
) -> None:
    """Write the page of a sweep to `output`.

    `results` has a mapping for each run (see `Result`), the best run first. `tried` maps the name of each setting to
    the values that the sweep tried.
    """
    varied = {name: _in_order(values) for name, values in tried.items() if len(values) > 1 or len(tried) == 1}
    names = short_names([[result[name] for name in varied] for result in results])
    pairs = [(result, name) for result, name in zip(results, names, strict=True) if result["status"]]
    runs = [read_run(Path(result[RUN]), name) for result, name in pairs[:MOST_OVERLAID]]
    of = "" if len(results) <= MOST_OVERLAID else f", the best {len(runs)} of them overlaid"
    sections = [_results(results, names, list(varied), metric), _against_settings(results, varied, metric)]
    overlaid = [learning, metrics_over_steps, evaluations, time_and_memory, embedding_tables]
    sections += [section(runs) for section in overlaid if runs]
    sections += [settings_section([replace(runs[0], name=f"the best run, {names[0]}")])] if runs else []
    subtitle = f"Runs are named by {' · '.join(varied)}{of}"
    write_whole(output, render_page(f"Sweep of {len(results)} runs", subtitle, [], sections))


def short_names(points: Sequence[Sequence[Any]]) -> list[str]:
    """Return a name for each run of a sweep, made of the values of its settings, such as "0.01 · 64-32".

    `points` has the values of each run. If several runs have the same values, the place of each run in the list is
    added to its name, such as "0.01 #3".
    """
    names = [" · ".join(map(value_text, point)) for point in points]
    counts = Counter(names)
    return [f"{name} #{place}" if counts[name] > 1 else name for place, name in enumerate(names, 1)]


def value_text(value: Any) -> str:
    """Return a setting's value as a short text for names and tables. A list of integers becomes, for example, 64-32."""
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return "-".join(map(str, value)) or "[]"
    return f"{value:g}" if isinstance(value, float) else setting_text(value)


def _in_order(values: Sequence[Any]) -> list[Any]:
    """Return the distinct values: sorted if all are numbers, otherwise in the given order."""
    distinct = [value for place, value in enumerate(values) if value not in values[:place]]
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct)
    return sorted(distinct) if are_numbers else distinct


def _results(results: Sequence[Result], names: Sequence[str], varied: Sequence[str], metric: str) -> Section:
    names_of_metrics = dict.fromkeys([metric, "auc", "log_loss"])
    columns = [("", "number"), *((name, "right") for name in varied)]
    columns += [*((f"valid {METRICS[key].title}", "right") for key in names_of_metrics), ("epoch", "number")]
    columns += [("epochs trained", "number"), ("time", "seconds"), ("status", "text")]
    rows = [
        [
            place,
            *(value_text(result[name]) for name in varied),
            *("–" if result[key] is None else f"{result[key]:.5f}" for key in names_of_metrics),
            *(result[key] for key in ("epoch", "epochs", "seconds")),
            result["status"] or "did not start",
        ]
        for place, result in enumerate(results, 1)
    ]
    note = f"The best first: by {METRICS[metric].title} on valid at the run's best epoch."
    return Section("Results", PagePart("table", columns, rows), note=note)


def _against_settings(results: Sequence[Result], varied: Mapping[str, Sequence[Any]], metric: str) -> Section:
    title = METRICS[metric].title
    charts = [_against(name, values, results, metric) for name, values in varied.items()]
    note = (
        f"A dot is a run, the line joins the best runs. Compare {title} of runs with as many epochs: losers stop early."
    )
    return Section("The metric against each setting", PagePart("charts", charts), note=note)


def _against(name: str, values: Sequence[Any], results: Sequence[Result], metric: str) -> Chart:
    measured = [(values.index(result[name]), result) for result in results if result[metric] is not None]
    best: dict[int, float] = {}
    for place, result in measured:
        best[place] = max(best.get(place, result[metric]), result[metric], key=lambda value: as_score(metric, value))
    series = [Series("best run", sorted(best), [best[place] for place in sorted(best)])]
    for epochs in sorted({result["epochs"] for _, result in measured}):
        dots = sorted((place, result[metric]) for place, result in measured if result["epochs"] == epochs)
        x_of, y_of = zip(*dots, strict=True)
        series.append(Series(f"{epochs} epoch{'s' * (epochs > 1)}", x_of, y_of, points=True, line=False))
    x, y = Axis(name, labels=[value_text(value) for value in values]), Axis(f"valid {METRICS[metric].title}")
    if not measured:
        return Chart(name, "half", "No run has a result.")
    return line_chart(f"{METRICS[metric].title} by {name}", series, x, y, "half")
