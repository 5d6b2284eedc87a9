"""Draw the report's sections on the model: its losses, learning rates and metrics over steps, the curves of one
evaluation, and how much each column of a log changes the logit.

This module also holds the functions that all sections draw with. If a chart shows several runs, each line is named
after its run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import itemgetter
from shlex import quote
from typing import Any

import numpy as np

from app.evaluation.metrics import MEASURED, METRICS, few_clicks_note
from app.evaluation.results import name_in_group
from app.run.record import Points, RunRecord
from common.html.charts import Axis, Bars, Chart, Density, Series, Size, bar_chart, histogram, line_chart
from common.html.page import PagePart, Section
from common.packages import python_command
from common.text import number_text

SLICES_TITLE = "Where the model is wrong: parts of the rows"
SLICE_COLUMNS = [("by", "text"), ("rows with", "text"), ("rows", "number"), ("clicks", "number"), ("AUC", "right"),
                 ("95 % interval", "right"), ("log loss", "right"), ("mean score / click rate", "right"),
                 ("95 % interval", "right"), ("scores", "text")]  # fmt: skip
NOT_EVALUATED = "No evaluation yet: one follows each epoch, and every eval.every_steps steps."
MOST_MEANS = 200  # The line of the training loss has at most this many points.
MOST_DOTS = 60  # In a chart, a line with more points than this is drawn without a dot at each point.

# Up to this number of runs, a table of figures has a column for each run. For more runs, it has a row for each, without
# confidence intervals.
MOST_BESIDE = 3

# Pairs of a run and the content of that run's evaluation file whose curves are drawn.
Evaluated = Sequence[tuple[RunRecord, dict[str, Any]]]


def lines(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    otherwise: str = "",
    size: Size = "half",
    note: str = "",
) -> Chart:
    """Return a chart with a line for each of `series`. If no line has points, apart from reference lines, the chart
    shows the text `otherwise` instead.
    """
    if not any(len(line.x) and not line.reference for line in series):
        return Chart(title, size, otherwise)
    # Lines without points are passed on too, so that every run has the same colour in all charts.
    return line_chart(title, series, x, y, size, note)


def overlay(runs: Sequence[RunRecord], name: str, points: Sequence[Points], dots: bool = True) -> list[Series]:
    """Return lines for one chart, one line for each run. `points` has the points of each run's line, in the order of
    `runs`. With `dots`, a short line also gets a dot at each point.

    The line of a single run is called `name`. If there are several runs, each line has the name of its run.
    """
    return [
        Series(label(runs, run, name), x, y, points=dots and len(x) <= MOST_DOTS)
        for run, (x, y) in zip(runs, points, strict=True)
    ]


def label(runs: Sequence[RunRecord], run: RunRecord, name: str) -> str:
    """Return the name of a line in a chart: the run's name if there are several runs, otherwise `name`."""
    return run.name if len(runs) > 1 else name


def step_axis(runs: Sequence[RunRecord]) -> Axis:
    """Return an x axis for training steps, from 0 to the number of steps of the longest of the runs."""
    return Axis("step", low=0, high=max([1, *(run.steps for run in runs)]))


def means(values: np.ndarray) -> tuple[Points, int]:
    """Average the values of steps 1, 2, … over intervals of equal length, so that at most MOST_MEANS points remain.

    Return the points, each at the last step of its interval, and the number of steps in an interval.
    """
    every = max(-(-len(values) // MOST_MEANS), 1)
    starts = np.arange(0, len(values), every)
    if not len(starts):
        return ([], []), every
    sizes = np.diff([*starts, len(values)])
    ends = starts + sizes
    return (ends.astype(float).tolist(), (np.add.reduceat(values, starts) / sizes).tolist()), every


def learning(runs: Sequence[RunRecord]) -> Section:
    """Return the report's section with charts of the losses on training and valid rows, and of the learning rates."""
    series, note, one = [], "", runs[0]
    for run in runs:
        (x, y), every = means(run.wide_losses)
        name = "training" if every == 1 else f"training, mean of {every:,} steps"
        series.append(Series(label(runs, run, name), x, y))
    # For a single run, also draw the loss on the rows of the split valid in this chart. For several runs, the next
    # section of the page shows this loss.
    if len(runs) == 1 and one.points("log_loss", "valid")[0]:
        series.append(Series("valid", *one.points("log_loss", "valid"), points=True))
    # State the first and the last loss in words. The loss of a step is computed before the step's update, so the first
    # one is that of the untrained model.
    if len(runs) == 1 and one.steps:
        first, last = one.wide_losses[0], one.wide_losses[-1]
        note = f"The wide_loss of loss.log: {first:.4f} at the first step, {last:.4f} at the last."
    title = "Loss" if len(runs) == 1 else "Training loss"
    otherwise = "No step was logged yet: loss.log is empty."
    losses = lines(title, series, step_axis(runs), Axis("cross-entropy per row"), otherwise, "wide", note)
    return Section("Learning", PagePart("charts", [losses, *_learning_rates(runs)]))


def _learning_rates(runs: Sequence[RunRecord]) -> list[Chart]:
    """Return the charts of the optimizers' learning rates over the training steps. If all rates are constant, return a
    single chart that only states them as text.
    """
    keys = list(dict.fromkeys(key for run in runs for key in run.keys("learning_rate")))
    if all(len(set(run.points(key)[1])) <= 1 for run in runs for key in keys):
        rates = [_constant_rates(run) for run in runs]
        of_runs = [f"{run.name}: {words}" for run, words in zip(runs, rates, strict=True)] if len(runs) > 1 else rates
        return [Chart("Learning rates", "wide", f"Constant: {'; '.join(of_runs)}.")]
    names = {key: key.removesuffix("learning_rate").replace("_", " ").strip() or "all" for key in keys}
    rate = Axis("learning rate", log=True, clip=True)
    if len(runs) == 1:
        series = [Series(names[key], *runs[0].points(key)) for key in keys]
        return [lines("Learning rates", series, step_axis(runs), rate, size="wide")]
    over = {key: overlay(runs, key, [run.points(key) for run in runs], dots=False) for key in keys}
    return [lines(f"Learning rate: {names[key]}", over[key], step_axis(runs), rate) for key in keys]


def _constant_rates(run: RunRecord) -> str:
    rates = {
        name.removesuffix("_optimizer"): options["learning_rate"]
        for name, options in run.config.items()
        if isinstance(options, dict) and "learning_rate" in options
    }
    return ", ".join(f"{name} {rate:g}" for name, rate in rates.items())


def metrics_over_steps(runs: Sequence[RunRecord]) -> Section:
    """Return the report's section with a chart for each metric: its values on the valid rows by training step."""
    title = "Metrics over steps"
    if not any(run.points("auc", "valid")[0] or run.points("log_loss", "valid")[0] for run in runs):
        return Section(title, note=NOT_EVALUATED)
    charts = []
    for key, metric in METRICS.items():
        series = overlay(runs, "valid", [run.points(key, "valid") for run in runs])
        steps = [x for line in series for x in line.x]
        if metric.in_groups and not steps:  # No run has set eval.group_field.
            continue
        lacking = [line.name for line in series if not line.x]
        if metric.at_one and steps:
            series.append(Series(metric.at_one, [0, max(steps)], [1.0, 1.0], reference=True))
        note = f"Not evaluated: {', '.join(lacking)}." if lacking else ""
        name = f"{metric.title[0].upper()}{metric.title[1:]} on valid rows"
        charts.append(lines(name, series, step_axis(runs), Axis(metric.title), NOT_EVALUATED, note=note))
    return Section(title, PagePart("charts", charts))


def evaluations(runs: Sequence[RunRecord]) -> Section:
    """Return the report's section on one evaluation of each run, which `RunRecord.shown_evaluation` chooses.

    The section shows metrics, ROC, precision and recall, calibration, a histogram of scores, slices of the rows, and
    groups.
    """
    title = "Ranking and calibration"
    pairs = [(run, content) for run in runs if (content := run.shown_evaluation())]
    if not pairs:
        return Section(title, note=NOT_EVALUATED)
    several = len(runs) > 1
    prefixes = [f"{run.name}: " if several else "" for run, _ in pairs]
    each = [(prefix, content) for prefix, (_, content) in zip(prefixes, pairs, strict=True)]
    rows = [f"{prefix}{number_text(of['metrics']['rows'])} {of['split']} rows" for prefix, of in each]
    models = [f"the model of step {of['step']:,}" for _, of in each]
    columns = [(word, "right") for run, _ in pairs for word in (label(runs, run, "value"), "95 % interval")]
    scores = [_scores(f": {run.name}" if several else "", content) for run, content in pairs]
    scores = scores if len(pairs) <= MOST_BESIDE else []
    columns, cells = [("metric", "text"), *columns, ("best possible", "right")], _metric_rows(pairs)
    used = [place for place in range(len(columns)) if any(row[place] != "–" for row in cells)]
    table = PagePart("table", [columns[place] for place in used], [[row[place] for place in used] for row in cells])
    table = table if len(pairs) <= MOST_BESIDE else _metrics_by_run(pairs)
    calibrated = [f"{run.name}: {content['calibrated']}" for run, content in pairs if content.get("calibrated")]
    return Section(
        title,
        table,
        PagePart("charts", [_roc(runs, pairs), _precision_recall(runs, pairs), _calibration(runs, pairs), *scores]),
        *(PagePart("paragraph", f"Calibrated scores: {words}") for words in calibrated),
        *(
            PagePart("table", SLICE_COLUMNS, _slice_rows(of["slices"]), f"{prefix}{SLICES_TITLE}")
            for prefix, of in each
            if of.get("slices")
        ),
        *(PagePart("paragraph", note) for _, of in each if (note := _few_clicks(of))),
        *(_group_table(prefix, of["groups"], of["metrics"]) for prefix, of in each if of.get("groups")),
        note="; ".join(map(", ".join, zip(rows, models, strict=True))),
    )


def _few_clicks(content: dict[str, Any]) -> str:
    parts = [content, *content.get("slices", [])]
    return few_clicks_note(
        [(of["metrics"]["rows"], of["metrics"]["click_rate"]) for of in parts if of.get("intervals")]
    )


def _metric_rows(pairs: Evaluated) -> list[list[str]]:
    """Return the rows of the table of metrics, each a list of texts.

    A row has the metric's title, its value and 95 % interval in each run, and the best possible value, which is only
    known for synthetic logs.
    """
    rows = []
    for key, metric in METRICS.items():
        if metric.in_groups and not any(content["groups"] for _, content in pairs):
            continue
        row = [metric.title]
        for _, content in pairs:
            value, interval = content["metrics"].get(key), content["intervals"].get(key)
            unknown = "–" if metric.in_groups and not content["groups"] else "undefined"
            within = f"{interval[0]:.5f} … {interval[1]:.5f}" if interval else "–"
            row += [unknown if value is None else f"{value:.5f}", within]
        best = {content["best_possible"][key] for _, content in pairs if key in (content["best_possible"] or {})}
        rows.append([*row, " / ".join(f"{value:.5f}" for value in sorted(best)) or "–"])
    return rows


def _metrics_by_run(pairs: Evaluated) -> PagePart:
    rows = [
        [run.name, *("–" if (value := of["metrics"].get(key)) is None else f"{value:.5f}" for key in MEASURED)]
        for run, of in pairs
    ]
    return PagePart("table", [("run", "text"), *((METRICS[key].title, "right") for key in MEASURED)], rows)


def _roc(runs: Sequence[RunRecord], pairs: Evaluated) -> Chart:
    series = [
        Series(label(runs, run, "model"), content["roc"]["false_positive_rate"], content["roc"]["true_positive_rate"])
        for run, content in pairs
        if "roc" in content
    ]
    chance = Series("by chance", [0, 1], [0, 1], reference=True)
    x, y = (Axis(f"{rate} positive rate", "percent", low=0, high=1) for rate in ("false", "true"))
    return lines("ROC curve", [*series, chance], x, y, "The rows have one class only.")


def _precision_recall(runs: Sequence[RunRecord], pairs: Evaluated) -> Chart:
    series, rates = [], set()
    for run, content in pairs:
        if points := content.get("precision_recall"):
            series.append(Series(label(runs, run, "model"), points["recall"], points["precision"]))
            rates.add(round(content["metrics"]["click_rate"], 4))
    chance = [Series(f"by chance ({rate:.2%})", [0, 1], [rate, rate], reference=True) for rate in sorted(rates)]
    x, y = Axis("recall", "percent", low=0, high=1), Axis("precision", "percent", low=0, high=1)
    return lines("Precision and recall", [*series, *chance], x, y, "The rows have one class only.")


def _calibration(runs: Sequence[RunRecord], pairs: Evaluated) -> Chart:
    series, most = [], 0.0
    for run, content in pairs:
        predicted = [part["mean_prediction"] for part in content["calibration"]]
        clicked = [part["click_rate"] for part in content["calibration"]]
        most = max([most, *predicted, *clicked])
        series.append(Series(label(runs, run, "a tenth of the rows each"), predicted, clicked, points=True))
    ideal = Series("predicted as often as clicked", [0, most], [0, most], reference=True)
    x, y = Axis("mean prediction", "percent", low=0), Axis("click rate", "percent", low=0)
    return lines("Calibration by decile", [*series, ideal], x, y, "No rows.")


def _scores(of_run: str, content: dict[str, Any]) -> Chart:
    counts = content["histogram"]
    bins = len(counts["negatives"])
    edges = [i / bins for i in range(bins + 1)]
    sums = {"rows without a click": counts["negatives"], "clicks": counts["positives"]}
    series = [Density(name, [count / sum(values) for count in values]) for name, values in sums.items() if sum(values)]
    return histogram(f"Scores by label{of_run}", edges, series, Axis("predicted click probability", "percent"))


def _slice_rows(slices: list[dict[str, Any]]) -> list[list[Any]]:
    """Return the rows of the table of slices (parts of the evaluated rows), with the columns SLICE_COLUMNS.

    The last cell says "too high" or "too low" if the 95 % interval of the calibration does not contain 1.
    """
    rows = []
    for each in slices:
        metrics, intervals = each["metrics"], each["intervals"]
        low, high = intervals.get("calibration", (None, None))
        off = "too high" if low is not None and low > 1 else "too low" if high is not None and high < 1 else ""
        auc, calibration = (
            "undefined" if metrics[name] is None else f"{metrics[name]:.4f}" for name in ("auc", "calibration")
        )
        within = ["–" if name not in intervals else "{:.4f} … {:.4f}".format(*intervals[name])
                  for name in ("auc", "calibration")]  # fmt: skip
        counts = [metrics["rows"], round(metrics["rows"] * metrics["click_rate"])]
        cells = [auc, within[0], f"{metrics['log_loss']:.4f}", calibration, within[1], off]
        rows.append([each["by"], each["name"], *counts, *cells])
    return rows


def _group_table(of_run: str, groups: dict[str, Any], means: dict[str, Any]) -> PagePart:
    metrics = {key: metric.title_in_group for key, metric in METRICS.items() if metric.in_groups and key in means}
    keys = list(map(name_in_group, metrics))
    rows = [
        [
            value["value"],
            value["rows"],
            value["click_rate"],
            *("one class" if (cell := value.get(key)) is None else f"{cell:.5f}" for key in keys),
        ]
        for value in groups["values"]
    ]
    mean_of = [
        f"{title} per value of {groups['field']}: mean {'undefined' if (mean := means[key]) is None else f'{mean:.5f}'}"
        for key, title in metrics.items()
    ]
    caption = (
        f"{of_run}{', '.join(mean_of)}, weighted by rows, over {groups['rows_covered']:.1%} "
        f"of the rows; the {len(rows)} most frequent of {groups['num_values']:,} values"
    )
    if left_out := groups.get("share_left_out"):
        caption += f"; {left_out:.1%} of the rows, whose value is missing or has no id of its own, are left out"
    columns = [(groups["field"], "text"), ("rows", "number"), ("click rate", "share")]
    return PagePart("table", [*columns, *((title, "right") for title in metrics.values())], rows, caption)


EFFECTS_TITLE = "Effects of the columns"
EFFECTS_NOTE = (
    "The effect of a cell is the change of the logit against a blank cell, as in the explanation of a row. A cross "
    "counts in each of its columns. +0.7 doubles the odds of a click."
)
MOST_COLUMNS = 60
# Maximum number of columns that get a chart of their own: those with the strongest effects.
MOST_CURVES = 24
DIVISIONS = {"range": "by range", "hour": "by hour", "weekday": "by weekday", "value": "its strongest values"}
CHANGE = Axis("mean change of the logit")


def effects(runs: Sequence[RunRecord]) -> Section:
    """Return the report's section on the effects of columns. An effect is the change of the logit that a cell causes.

    The section has a chart of the mean absolute effect of each column. For a single run, it also has charts for each of
    the columns with the strongest effects. They show the mean effect by ranges of a number, or by value.
    """
    explained = [run for run in runs if run.effects[1]]
    if not explained:
        output = f"{runs[0].name if len(runs) == 1 else 'RUN'}/effects.parquet"
        command = python_command(f"app bundle effects BUNDLE LOG --output {quote(output)}")
        return Section(EFFECTS_TITLE, note=f"No table of effects: {command} writes one.")
    whole = [
        {line["column"]: line["mean_absolute_change"] for line in run.effects[1] if line["cells"] == "all"}
        for run in explained
    ]
    columns = list(dict.fromkeys(name for of_run in whole for name in of_run))[:MOST_COLUMNS]
    bars = [
        Bars(label(runs, run, "mean absolute change"), [of_run.get(name, 0.0) for name in columns])
        for run, of_run in zip(explained, whole, strict=True)
    ]
    charts = [bar_chart("Mean absolute change by column", columns, bars, Axis("change of the logit"))]
    if len(runs) == 1:
        by_column = itertools.groupby(runs[0].effects[1], itemgetter("column"))
        charts += [
            chart for name, lines in itertools.islice(by_column, MOST_CURVES) for chart in _of_column(name, lines)
        ]
    measured = " ".join(_source(runs, run) for run in explained)
    return Section(EFFECTS_TITLE, PagePart("charts", charts), note=f"{EFFECTS_NOTE} {measured}")


def _of_column(name: str, lines: Any) -> list[Chart]:
    """Return bar charts of a column's mean effect on the logit: one chart for each way to divide the column's cells (a
    key of DIVISIONS), such as by ranges of their numbers.

    `lines` are the lines about this column in the table of effects. Return [] if none of them is about a part of the
    cells.
    """
    charts = []
    for cells, parts in itertools.groupby((line for line in lines if line["value"] is not None), itemgetter("cells")):
        texts, changes = zip(*((part["value"], part["mean_change"]) for part in parts), strict=True)
        # The label below a bar has no room for both ends of a range, so it shows only the upper end.
        below = [f"≤ {text.split(' to ')[1]}" if " to " in text else text for text in texts] if cells == "range" else ()
        title = f"{name}: {DIVISIONS[cells]}"
        charts.append(bar_chart(title, texts, [Bars("mean change", changes)], CHANGE, "half", below))
    return charts


def _source(runs: Sequence[RunRecord], run: RunRecord) -> str:
    about = run.effects[0]
    sample = f"drawn from {about['lines']:,} by seed {about['seed']}, " if about["drawn"] < about["lines"] else ""
    return f"{label(runs, run, 'Measured')}: {about['rows']:,} rows, {sample}the model of step {about['step']:,}."
