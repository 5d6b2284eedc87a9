"""Describe charts for HTML pages: data, axes and hover texts. charts.js draws them with Bokeh in the browser.

    line_chart("Loss", [Series("train", steps, losses)], Axis("step"), Axis("log loss"))
    bar_chart("Distinct values", names, [Bars("in the log", counts)], Axis("values", log=True))
    histogram("Scores", edges, [Density("clicks", shares)], Axis("score"))

Bokeh's Python models are not used, because they take 50 ms per chart, and a page has a hundred charts. Texts are
formatted here, so that numbers look the same in charts and tables. A value that is not finite is drawn as a gap.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from common.text import Unit, number_text, readable_unit, shortened

Size = Literal["wide", "half", "small"]
# Maximum number of positions on the x axis at which the mouse shows a text, by the size of the chart.
_MOST_HOVERED: dict[Size, int] = {"wide": 120, "half": 60, "small": 30}
_MOST_POINTS = 400  # A line with more points than this is drawn with only about this many of them. Its peaks are kept.
# Labels of bars with more letters than this are cut. The text that the mouse shows has the full label.
_LABEL_LETTERS = 11
# A chart with `Axis.clip` leaves out values far from nearly all others only if it has at least this many values.
_FEW = 20
# A chart with `Axis.clip` leaves out values above the 98th percentile times this factor, and values below the 2nd
# percentile divided by it.
_FAR = 3.0
_MOST_NOTED = 2  # The note of a chart lists at most this many of the values that are not drawn.


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    `label` names the quantity. `low` and `high` are the values at the two ends of the axis; where one is None, the data
    decide.
    """

    label: str = ""
    unit: Unit = "number"
    log: bool = False  # Whether the axis is logarithmic. Values that are not positive are then left out.
    # Whether values far from nearly all others are left out of a logarithmic axis, and listed below the chart.
    clip: bool = False
    low: float | None = None
    high: float | None = None
    labels: Sequence[str] = ()  # Labels of the positions 0, 1, …, shown instead of numbers.


@dataclass(frozen=True)
class Series:
    """One line of a chart, through the points (x, y), with x ascending.

    A line with an empty name is not in the legend.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    points: bool = False  # True draws a dot at each point of the line.
    # True draws the line thin and grey, as a reference with which the other lines are compared.
    reference: bool = False
    line: bool = True  # False draws dots only. Then several points may have the same x.


@dataclass(frozen=True)
class Bars:
    """The bars of one colour in a bar chart: their name in the legend, and the height of the bar over each label."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Density:
    """One distribution in a histogram: `shares` has, for each bin, the fraction of the values that lie in it.

    A fraction is drawn as the area over its bin, so bins may differ in width.
    """

    name: str
    shares: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """A chart in a page: a title, a note below it, and a drawing.

    `drawing` is the data from which charts.js draws the chart, or None if only the note is shown.
    """

    title: str
    size: Size
    note: str = ""
    drawing: dict[str, Any] | None = None


def line_chart(title: str, series: Sequence[Series], x: Axis, y: Axis, size: Size = "half", note: str = "") -> Chart:
    """Return a chart with one line for each element of `series`, over a common axis `x`.

    With `y.clip`, values far from nearly all others are not drawn; the note of the chart lists the farthest of them.
    """
    inside, beyond = _split_far(series) if y.clip else ([value for line in series for value in line.y], [])
    x_shown, y_shown = _Scale(x, [value for line in series for value in line.x]), _Scale(y, inside)
    note = " ".join(filter(None, [note, _note_beyond(beyond, x, y)]))
    colours = itertools.count()
    lines = []
    for line in series:
        points = thin(list(zip(line.x, line.y, strict=True)))
        shown = {"x": x_shown.values(p[0] for p in points), "y": y_shown.values(p[1] for p in points)}
        drawn = {"name": line.name, "dots": line.points, "colour": None if line.reference else next(colours)}
        drawn |= {} if line.line else {"bare": True}
        # Leave out a line without any point that can be drawn, because its name would still be in the legend.
        lines += [drawn | shown] if any(value is not None for value in shown["y"]) else []
    places = sorted({place for line in series for place in line.x})
    places = places[:: -(-len(places) // _MOST_HOVERED[size]) or 1]
    values = [(line.name, dict(zip(line.x, line.y, strict=True))) for line in series if line.name and line.line]
    texts = []
    for place in places:
        rows = [f"{name}: {number_text(at[place], y.unit)}" for name, at in values if place in at]
        text = x.labels[int(place)] if x.labels else number_text(place, x.unit)
        texts.append("\n".join([f"{x.label} {text}".strip(), *rows]))
    middles = [(a + b) / 2 for a, b in itertools.pairwise(places)]
    edges = [*places[:1], *middles, *places[-1:]]
    return _chart(title, size, note, x_shown, y_shown, edges, texts, lines=lines)


def _split_far(series: Sequence[Series]) -> tuple[list[float], list[tuple[str, float, float]]]:
    """Divide the points of the lines `series` in two for a chart with a logarithmic y axis. Return the y values that
    the axis must cover, and the points whose y is far from nearly all others.

    A point is (name of the line, x, y). The farthest point is first.
    """
    points = [(line.name, *point) for line in series for point in zip(line.x, line.y, strict=True)]
    positive = [value for _, _, value in points if value > 0 and math.isfinite(value)]
    if len(positive) < _FEW:
        return positive, []
    low = np.quantile(positive, 0.02, method="higher") / _FAR
    high = np.quantile(positive, 0.98, method="lower") * _FAR
    inside = [value for value in positive if low <= value <= high]
    middle = math.sqrt(inside[0] * inside[-1])
    beyond = [point for point in points if math.isfinite(point[2]) and not low <= point[2] <= high]
    return inside, sorted(beyond, key=lambda point: -abs(math.log(max(point[2], 1e-300) / middle)))


def _note_beyond(beyond: Sequence[tuple[str, float, float]], x: Axis, y: Axis) -> str:
    """Return a sentence that names the first of the points `beyond`, which a chart leaves out, or "" if there are none.

    `beyond` is the list of far points that `_split_far` returns.
    """
    named = [
        f"{name} {number_text(value, y.unit)} at {x.label} {number_text(place, x.unit)}"
        for name, place, value in beyond
    ]
    return f"Beyond the axis: {shortened(named, _MOST_NOTED)}." if named else ""


def histogram(title: str, edges: Sequence[float], series: Sequence[Density], x: Axis, size: Size = "half") -> Chart:
    """Return a histogram with one distribution for each element of `series`, drawn as areas over common bins.

    Over the bin from edges[i] to edges[i + 1], the area of a distribution is its shares[i].
    """
    heights = [np.asarray(part.shares, float) / np.diff(np.asarray(edges, float)) for part in series]
    x_shown = _Scale(Axis(x.label, x.unit, low=edges[0], high=edges[-1]), edges)
    y_shown = _Scale(Axis("density", low=0), [float(each.max(initial=0)) for each in heights])
    areas = [
        {"name": part.name, "edges": x_shown.values(edges), "tops": y_shown.values(tops)}
        for part, tops in zip(series, heights, strict=True)
    ]
    texts = []
    for place, (first, end) in enumerate(itertools.pairwise(edges)):
        rows = [f"{part.name}: {number_text(part.shares[place], 'percent')}" for part in series]
        texts.append("\n".join([f"{number_text(first, x.unit)} to {number_text(end, x.unit)}", *rows]))
    return _chart(title, size, "", x_shown, y_shown, edges, texts, areas=areas)


def bar_chart(
    title: str, labels: Sequence[str], series: Sequence[Bars], y: Axis, size: Size = "wide", below: Sequence[str] = ()
) -> Chart:
    """Return a bar chart that shows, side by side over each label, one bar of each element of `series`.

    Bars start at 0, or at the low end of a logarithmic axis. `below` has the texts below the bars if they are not
    `labels`.
    """
    x_shown = _Scale(Axis(low=0, high=len(labels) or 1), [])
    values = [value for bars in series for value in bars.values]
    y_shown = _Scale(y if y.log or min(values, default=0) < 0 else replace(y, low=0), values)
    floor = (y_shown.axis.low or 1.0 if y.log else 0.0) / y_shown.divisor
    bars = [{"name": each.name, "tops": y_shown.values(each.values), "floor": floor} for each in series]
    texts = [
        "\n".join([label, *(f"{each.name}: {number_text(each.values[place], y.unit)}" for each in series)])
        for place, label in enumerate(labels)
    ]
    edges = range(len(labels) + 1)
    return _chart(title, size, "", x_shown, y_shown, edges, texts, bars=bars, labels=short_labels(below or labels))


def short_labels(labels: Sequence[str]) -> list[str]:
    """Return the labels, each shortened to at most `_LABEL_LETTERS` letters, so that labels that differ still differ.

    A label is cut at its end. If other labels then look the same, its middle is cut, so that its last letters stay. If
    that does not help either, the label stays whole.
    """
    cut = {label: [f"{label[: _LABEL_LETTERS - 1]}…", f"{label[:3]}…{label[4 - _LABEL_LETTERS :]}"] for label in labels}
    forms = {label: [*cut[label], label] if len(label) > _LABEL_LETTERS else [label] for label in cut}
    counts = Counter(form for of_label in forms.values() for form in of_label)
    return [next(form for form in forms[label] if counts[form] == 1 or form == label) for label in labels]


class _Scale:
    """An axis of a chart, prepared for drawing: its ends, its ticks, and the unit in which its values are shown."""

    def __init__(self, axis: Axis, values: Iterable[float]) -> None:
        values = [*values, axis.low or 0.0, axis.high or 0.0]
        drawable = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)]
        self._is_whole = axis.unit == "number" and all(float(value).is_integer() for value in drawable)
        self.ticks: list[float] = []
        if axis.labels:
            self.ticks, axis = list(range(len(axis.labels))), replace(axis, low=-0.5, high=len(axis.labels) - 0.5)
        if axis.log and drawable:
            self.ticks = _log_ticks(min(drawable), max(drawable))
            low, high = (self.ticks[0], self.ticks[-1]) if self.ticks else (0.97 * min(drawable), 1.03 * max(drawable))
            axis = replace(
                axis, low=low if axis.low is None else axis.low, high=high if axis.high is None else axis.high
            )
        self.axis = axis
        self.largest = max(map(abs, drawable), default=0.0)
        self.divisor, self._suffix = readable_unit(self.largest, axis.unit)

    def values(self, values: Iterable[float]) -> list[float | None]:
        """Return `values` in the form in which charts.js draws them: divided by the axis's unit.

        A value that cannot be drawn becomes None, which is a gap.
        """
        return [
            float(f"{value / self.divisor:.9g}") if math.isfinite(value) and (value > 0 or not self.axis.log) else None
            for value in values
        ]

    def described(self) -> dict[str, Any]:
        """Return the description of the axis that charts.js takes: label, ends, ticks, and format of the numbers.

        The format is a pattern for Bokeh's NumeralTickFormatter, or None for Bokeh's default. The entry `whole` is True
        if all values are whole numbers, such as numbers of training steps. Ticks must then be whole numbers too,
        because there is no step 1.5.
        """
        axis, numeral = self.axis, None
        if axis.unit == "percent":
            numeral = "0.[0] %" if self.largest > 0.02 else "0.[000] %"
        elif self.largest / self.divisor >= 1e4 and not axis.log:
            numeral = "0.[00]a"
        ends = [None if end is None else end / self.divisor for end in (axis.low, axis.high)]
        label = f"{axis.label} ({self._suffix})" if axis.label and self._suffix else axis.label or self._suffix
        shown = [float(f"{tick / self.divisor:.9g}") for tick in self.ticks]
        ticks = [(tick, number_text(tick) if tick < 1e6 else f"{tick / 1e6:,g} M") for tick in shown]
        ticks = list(zip(shown, short_labels(axis.labels), strict=True)) if axis.labels else ticks
        shown_axis = {"label": label, "log": axis.log, "low": ends[0], "high": ends[1], "format": numeral}
        return {**shown_axis, "ticks": ticks, "whole": self._is_whole}


def _log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis for values from `low` to `high`.

    The first tick is the largest one that is not above `low`, and the last tick is the smallest one that is not below
    `high`. Ticks are powers of ten, or 1, 2 and 5 times these if `high` is below 1,000 · `low`. The list is empty if
    `high` is below 2 · `low`: the ticks of a linear axis fit better then.
    """
    if high < 2 * low and high != low:
        return []
    steps = (1.0, 2.0, 5.0) if high < 1_000 * low else (1.0,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{step}e{power}") for power in powers for step in steps]
    first = max((place for place, tick in enumerate(ticks) if tick <= low), default=0)
    last = next(place for place, tick in enumerate(ticks) if tick >= high)
    return ticks[first : max(last, first + 1) + 1]


def _chart(
    title: str, size: Size, note: str, x: _Scale, y: _Scale, edges: Sequence[float], texts: list[str], **marks: Any
) -> Chart:
    """Return a chart that consists of two axes, `marks` (the lines, areas or bars to draw), and hover texts.

    texts[i] is shown when the mouse is between edges[i] and edges[i + 1] on the x axis.
    """
    hover = {"edges": x.values(edges), "texts": texts}
    return Chart(title, size, note, {"x": x.described(), "y": y.described(), "hover": hover, **marks})


def thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return about `_MOST_POINTS` of the points (x, y) of a line, or all points if there are no more than that.

    The line is divided into stretches of equally many points. The points with the lowest and the highest y of each
    stretch are kept, and the last point of the line.
    """
    stretch = -(-2 * len(points) // _MOST_POINTS)
    if stretch <= 2:
        return points
    extremes = []
    for first in range(0, len(points), stretch):
        part = points[first : first + stretch]
        finite = [i for i in range(len(part)) if math.isfinite(part[i][1])]
        ends = {min(finite, key=lambda i: part[i][1]), max(finite, key=lambda i: part[i][1])} if finite else {0}
        extremes += [part[i] for i in sorted(ends)]
    return [*extremes, points[-1]] if extremes[-1] != points[-1] else extremes
