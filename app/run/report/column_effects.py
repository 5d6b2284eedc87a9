"""Draw how much each column of a log changes the logit, on average over the rows and by the column's value."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import itemgetter
from shlex import quote
from typing import Any

from app.run.record import RunRecord
from app.run.report.quality import label
from common.html.charts import Axis, Bars, Chart, bar_chart
from common.html.page import PagePart, Section
from common.packages import python_command

TITLE = "Effects of the columns"
NOTE = (
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
        return Section(TITLE, note=f"No table of effects: {command} writes one.")
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
    return Section(
        TITLE, PagePart("charts", charts), note=f"{NOTE} {' '.join(_source(runs, run) for run in explained)}"
    )


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
