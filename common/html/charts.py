"""Charts as inline SVG, for pages that need no script, no font and no network (`html/page.py`).

    line_chart("Loss", [Series("train", steps, losses), Series("valid", steps, valid)], Axis("step"), Axis("log loss"))
    bar_chart("Distinct values", names, [Bars("in the log", counts)], Axis("values", log=True))
    histogram("Score", edges, [Density("clicks", shares)], Axis("score"))

`Axis(label, unit, log, low, high)` says what an axis shows; units are number, percent (of fractions), bytes,
seconds.
Each gives one `<figure>`: a title, a legend where there is more than one series, the drawing. What lies under the
mouse is told in full by its hover title. Series differ in colour and in dashes; the colours (M. Okabe, K. Ito, "Color
universal design", 2008, and lighter ones for dark pages) are the style sheet's. A value that is not finite is a gap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from common.html.axes import Axis, Scale, make_scale, number_text

__all__ = ["Axis", "Bars", "Density", "Html", "Series", "bar_chart", "histogram", "line_chart"]

Size = Literal["wide", "half", "small"]
NUM_COLOURS = 8
# Width, height in the drawing's own units, in which text is 11 high; and how many places react to the mouse.
_SIZES: dict[Size, tuple[int, int, int]] = {"wide": (920, 280, 120), "half": (450, 230, 60), "small": (290, 170, 30)}
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 20, 38
_MAX_POINTS = 400  # of a line; more are thinned, peaks stay
_KEYS = {"line": "M1 4H21", "area": "M5 0H17V8H5Z", "bar": "M7 0H15V8H7Z"}  # a series' mark in the legend
_TEXT_WIDTH = 6.2  # of a character, about


class Html(str):
    """Text that is HTML already; all other text is escaped where it goes into a page."""

    __slots__ = ()


def text(content: object) -> Html:
    """Any text, safe in a page."""
    return content if isinstance(content, Html) else Html(escape(str(content)))


@dataclass(frozen=True)
class Series:
    """A line through the points (x, y), x ascending; without a name it has no place in the legend."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    points: bool = False  # dots too
    reference: bool = False  # thin and grey: something to compare the others with


@dataclass(frozen=True)
class Bars:
    """A bar for each label of a bar chart."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Density:
    """A share of all for each bin of a histogram; areas are drawn, so bins may differ in width."""

    name: str
    shares: Sequence[float]


@dataclass(frozen=True)
class _Plot:
    """The area between the axes."""

    size: Size
    x: Scale
    y: Scale
    room_below: int = 0  # more of it under the axis

    @property
    def width(self) -> int:
        return _SIZES[self.size][0]

    @property
    def height(self) -> int:
        return _SIZES[self.size][1] + self.room_below

    @property
    def bottom(self) -> int:
        return self.height - self.room_below - _BOTTOM

    def across(self, value: float) -> float:
        return _LEFT + self.x.place(value) * (self.width - _LEFT - _RIGHT)

    def up(self, value: float) -> float:
        """Within the drawing, where an axis ends before the data."""
        return self.bottom - min(max(self.y.place(value), 0.0), 1.0) * (self.bottom - _TOP)

    def has(self, x: float, y: float) -> bool:
        return self.x.has(x) and self.y.has(y)


def line_chart(title: str, series: Sequence[Series], x: Axis, y: Axis, size: Size = "wide", note: str = "") -> Html:
    """Lines laid over one another."""
    plot = _Plot(
        size,
        make_scale(x, (value for line in series for value in line.x), _ticks_across(size)),
        make_scale(y, (value for line in series for value in line.y), 5),
    )
    drawn = [_line(plot, line, colour) for line, colour in zip(series, _colours(series), strict=True)]
    body = [_frame(plot), *drawn, _cursors(plot, series)]
    return _figure(title, "line", [line.name for line in series], _colours(series), plot, body, note)


def histogram(
    title: str, edges: Sequence[float], series: Sequence[Density], x: Axis, size: Size = "half", note: str = ""
) -> Html:
    """Areas: of a bin from edges[i] to edges[i + 1] as much as its share."""
    widths = [end - first for first, end in itertools.pairwise(edges)]
    heights = [[share / width for share, width in zip(line.shares, widths, strict=True)] for line in series]
    plot = _Plot(
        size,
        make_scale(Axis(x.label, x.unit, low=edges[0], high=edges[-1]), edges, _ticks_across(size)),
        make_scale(Axis("density", low=0), (height for line in heights for height in line), 4),
    )
    colours = list(range(len(series)))
    areas = [_area(plot, edges, line, colour) for line, colour in zip(heights, colours, strict=True)]
    strips = []
    for place, (first, end) in enumerate(itertools.pairwise(edges)):
        told = [f"{line.name}: {number_text(line.shares[place], 'percent')}" for line in series]
        where = f"{number_text(first, x.unit)} to {number_text(end, x.unit)}"
        strips.append(_strip(plot.across(first), plot.across(end), plot, "\n".join([where, *told])))
    return _figure(title, "area", [line.name for line in series], colours, plot, [_frame(plot), *areas, *strips], note)


def bar_chart(
    title: str, labels: Sequence[str], series: Sequence[Bars], y: Axis, size: Size = "wide", note: str = ""
) -> Html:
    """Bars side by side over each label; on a logarithmic axis they start at its low end."""
    low = None if y.log else min([0.0, *(value for bars in series for value in bars.values if math.isfinite(value))])
    axis = Axis(y.label, y.unit, y.log, low if y.low is None else y.low, y.high)
    places = Axis(low=0, high=len(labels))
    are_slanted = _are_slanted(labels, size)
    plot = _Plot(
        size,
        Scale(places, 0, max(len(labels), 1), ()),
        make_scale(axis, (value for bars in series for value in bars.values), 5),
        room_below=20 * are_slanted,
    )
    body = [_frame(plot), _labels(plot, labels, are_slanted)]
    for place, label in enumerate(labels):
        body += [_bar(plot, place, number, len(series), bars.values[place]) for number, bars in enumerate(series)]
        told = "\n".join(f"{bars.name}: {number_text(bars.values[place], y.unit)}" for bars in series)
        body.append(_strip(plot.across(place), plot.across(place + 1), plot, f"{label}\n{told}"))
    return _figure(title, "bar", [bars.name for bars in series], list(range(len(series))), plot, body, note)


def _figure(
    title: str,
    mark: Literal["line", "area", "bar"],
    names: Sequence[str],
    colours: Sequence[int | None],
    plot: _Plot,
    body: Iterable[str],
    note: str,
) -> Html:
    legend = "".join(
        f'<span><svg class="key" viewBox="0 0 22 8" aria-hidden="true"><path class="{mark} {_class(colour)}" '
        f'd="{_KEYS[mark]}"/></svg>{text(name)}</span>'
        for name, colour in zip(names, colours, strict=True)
        if name
    )
    return Html(
        f'<figure class="chart {plot.size}"><figcaption><b>{text(title)}</b>'
        + (f'<span class="legend">{legend}</span>' if len(names) > 1 else "")
        + f'</figcaption><svg viewBox="0 0 {plot.width} {plot.height}" role="img" aria-label="{text(title)}">'
        + "".join(body)
        + "</svg>"
        + (f'<p class="note">{text(note)}</p>' if note else "")
        + "</figure>"
    )


def _frame(plot: _Plot) -> str:
    """Grid, ticks and what the axes are called."""
    parts = []
    for tick in plot.y.ticks:
        at = plot.up(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{plot.width - _RIGHT}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{at + 3.5:.1f}" text-anchor="end">')
        parts.append(f"{text(plot.y.tick_text(tick))}</text>")
    for tick in plot.x.ticks:
        at = plot.across(tick)
        parts.append(f'<path class="mark" d="M{at:.1f} {plot.bottom}v4"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{plot.bottom + 16}" text-anchor="middle">')
        parts.append(f"{text(plot.x.tick_text(tick))}</text>")
    parts.append(f'<path class="axis" d="M{_LEFT} {plot.bottom}H{plot.width - _RIGHT}"/>')
    parts.append(f'<text class="label" x="4" y="11">{text(plot.y.axis.label)}</text>')
    parts.append(f'<text class="label" x="{plot.width - _RIGHT}" y="{plot.height - 6}" text-anchor="end">')
    parts.append(f"{text(plot.x.axis.label)}</text>")
    return "".join(parts)


def _line(plot: _Plot, line: Series, colour: int | None) -> str:
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in _thin(list(zip(line.x, line.y, strict=True))):
        if plot.has(x, y):
            runs[-1].append((plot.across(x), plot.up(y)))
        elif runs[-1]:
            runs.append([])
    paths = "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run) for run in runs if len(run) > 1)
    dots = runs if line.points else [run for run in runs if len(run) == 1]  # a lone point has no line to be seen by
    circles = "".join(
        f'<circle class="dot {_class(colour)}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for run in dots for x, y in run
    )
    return (f'<path class="line {_class(colour)}" d="{paths}"/>' if paths else "") + circles


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about `_MAX_POINTS` of the points: of each stretch the lowest and the highest, in their order."""
    stretch = -(-2 * len(points) // _MAX_POINTS)
    if stretch <= 2:
        return points
    kept = []
    for first in range(0, len(points), stretch):
        part = range(first, min(first + stretch, len(points)))
        finite = [i for i in part if math.isfinite(points[i][1])]
        if not finite:
            kept.append(points[first])
            continue
        by_value = sorted(finite, key=lambda i: points[i][1])
        kept += [points[i] for i in sorted({by_value[0], by_value[-1]})]
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept


def _area(plot: _Plot, edges: Sequence[float], heights: Sequence[float], colour: int) -> str:
    steps = [
        f"L{plot.across(edges[i]):.1f} {plot.up(height):.1f}H{plot.across(edges[i + 1]):.1f}"
        for i, height in enumerate(heights)
    ]
    start = f"M{plot.across(edges[0]):.1f} {plot.bottom}"
    return f'<path class="area {_class(colour)}" d="{start}{"".join(steps)}V{plot.bottom}Z"/>'


def _bar(plot: _Plot, place: int, number: int, num_series: int, value: float) -> str:
    if not plot.y.has(value):
        return ""
    slot = plot.across(1) - plot.across(0)
    width = 0.76 * slot / num_series
    left = plot.across(place) + 0.12 * slot + number * width
    base = plot.bottom if plot.y.axis.log else plot.up(0)
    top, end = sorted((plot.up(value), base))
    return (
        f'<rect class="bar {_class(number)}" x="{left:.1f}" y="{top:.1f}" width="{max(width - 0.6, 0.6):.1f}" '
        f'height="{max(end - top, 0.6):.1f}"/>'
    )


def _are_slanted(labels: Sequence[str], size: Size) -> bool:
    """Whether the labels are too long to stand side by side."""
    slot = (_SIZES[size][0] - _LEFT - _RIGHT) / max(len(labels), 1)
    return max(map(len, labels), default=0) * _TEXT_WIDTH > slot


def _labels(plot: _Plot, labels: Sequence[str], are_slanted: bool) -> str:
    """Names under the bars: aslant where they are too long, every second or third where there are too many."""
    slot = plot.across(1) - plot.across(0)
    every = max(1, math.ceil(12 / slot)) if are_slanted else 1
    parts = []
    for place in range(0, len(labels), every):
        at, down = plot.across(place + 0.5), plot.bottom + 14
        turn = f' transform="rotate(-35 {at:.1f} {down})" text-anchor="end"' if are_slanted else ' text-anchor="middle"'
        shown = labels[place] if len(labels[place]) <= 11 else f"{labels[place][:10]}…"
        parts.append(f'<text class="tick" x="{at:.1f}" y="{down}"{turn}>{text(shown)}</text>')
    return "".join(parts)


def _cursors(plot: _Plot, series: Sequence[Series]) -> str:
    """Where the mouse is: a line, a dot on each series, and what their values are."""
    places = sorted({x for line in series for x in line.x if plot.x.has(x)})
    every = -(-len(places) // _SIZES[plot.size][2]) or 1
    places = places[::every]
    middles = [(plot.across(a) + plot.across(b)) / 2 for a, b in itertools.pairwise(places)]
    bounds = [_LEFT, *middles, plot.width - _RIGHT]
    values = [dict(zip(line.x, line.y, strict=True)) for line in series]
    coloured = list(zip(series, values, _colours(series), strict=True))
    parts = []
    for i, x in enumerate(places):
        found = [(line, at_x[x], colour) for line, at_x, colour in coloured if x in at_x]
        told = [f"{line.name}: {number_text(y, plot.y.axis.unit)}" for line, y, _ in found if line.name]
        at = plot.across(x)
        marks = f'<path class="cursor" d="M{at:.1f} {_TOP}V{plot.bottom}"/>' + "".join(
            f'<circle class="dot {_class(colour)}" cx="{at:.1f}" cy="{plot.up(y):.1f}" r="3"/>'
            for _, y, colour in found
            if plot.has(x, y)
        )
        where = f"{plot.x.axis.label} {number_text(x, plot.x.axis.unit)}".strip()
        parts.append(_strip(bounds[i], bounds[i + 1], plot, "\n".join([where, *told]), marks))
    return "".join(parts)


def _strip(first: float, end: float, plot: _Plot, title: str, marks: str = "") -> str:
    """A part of the drawing, from top to bottom, that tells `title` and shows `marks` under the mouse."""
    return (
        f'<g class="hit"><rect x="{first:.1f}" y="{_TOP}" width="{max(end - first, 0.5):.1f}" '
        f'height="{plot.bottom - _TOP}"/>{marks}<title>{text(title)}</title></g>'
    )


def _colours(series: Sequence[Series]) -> list[int | None]:
    """A colour's number for each line; None for those to compare with."""
    numbers = iter(range(len(series)))
    return [None if line.reference else next(numbers) for line in series]


def _class(colour: int | None) -> str:
    return "reference" if colour is None else f"s{colour % NUM_COLOURS}"


def _ticks_across(size: Size) -> int:
    return {"wide": 10, "half": 6, "small": 4}[size]
