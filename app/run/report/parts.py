"""What every section draws with: lines of one run or of several, and plain words where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.run.record import Points, RunRecord
from common.html.axes import Axis
from common.html.charts import Html, Series, Size, line_chart, text

MEANS = 200  # points of a line that stands for the losses of all steps
FEW = 60


def absent(title: str, words: str, size: Size = "half") -> Html:
    """In a chart's place: what is not there, and how to get it."""
    caption = f"<figcaption><b>{text(title)}</b></figcaption>"
    return Html(f'<figure class="chart {size} absent">{caption}<p class="note">{text(words)}</p></figure>')


def chart(
    title: str, series: Sequence[Series], x: Axis, y: Axis, without: str, size: Size = "half", note: str = ""
) -> Html:
    """Lines, or the words `without` where no line has a point."""
    if not any(len(line.x) and not line.reference for line in series):
        return absent(title, without, size)
    return line_chart(title, series, x, y, size, note)  # a run without points keeps its colour from the others


def overlay(runs: Sequence[RunRecord], name: str, points: Sequence[Points], dots: bool = True) -> list[Series]:
    """A line for the points of each run, called `name` where there is one run, else as the run; few have dots."""
    return [
        Series(label(runs, run, name), x, y, points=dots and len(x) <= FEW)
        for run, (x, y) in zip(runs, points, strict=True)
    ]


def step_axis(runs: Sequence[RunRecord]) -> Axis:
    """Steps, as many as the longest run took."""
    return Axis("step", low=0, high=max([1, *(run.steps for run in runs)]))


def label(runs: Sequence[RunRecord], run: RunRecord, name: str, also: bool = False) -> str:
    """What a line is called: with several runs after its run, and with `also` by its name too."""
    if len(runs) == 1:
        return name
    return f"{run.name} {name}" if also else run.name


def means(values: np.ndarray) -> tuple[Points, int]:
    """The values of steps 1, 2, … as at most MEANS means of as many steps each, at their last step; and how many."""
    every = max(-(-len(values) // MEANS), 1)
    starts = np.arange(0, len(values), every)
    if not len(starts):
        return ([], []), every
    sizes = np.diff([*starts, len(values)])
    ends = starts + sizes
    return (ends.astype(float).tolist(), (np.add.reduceat(values, starts) / sizes).tolist()), every
