"""Write the page of a sweep: a table of all runs, charts of the metric by setting, and the best runs overlaid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.evaluation.metrics import METRICS, as_score
from app.run.record import read_run
from app.run.report.quality import evaluations, learning, metrics_over_steps
from app.run.report.run_report import settings_section
from app.run.report.speed import embedding_tables, time_and_memory
from common.files import write_whole
from common.html.charts import Axis, Chart, Series, line_chart
from common.html.page import PagePart, Section, render_page
from common.settings import setting_text

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
