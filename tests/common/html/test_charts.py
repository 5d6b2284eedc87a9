import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from common.html.charts import Axis, Bars, Density, Series, bar_chart, histogram, line_chart


def drawing(figure):
    """The chart's svg as XML: what is not well-formed fails here."""
    return ElementTree.fromstring(figure).find("./svg[@role]")


def paths(figure, kind):
    return [path.get("d") for path in drawing(figure).iter("path") if path.get("class").split()[0] == kind]


def test_lines_go_through_their_points():
    figure = line_chart("t", [Series("a", [0, 5, 10], [0, 10, 5])], Axis(low=0, high=10), Axis(low=0, high=10))
    (path,) = paths(figure, "line")
    (x0, y0), (x1, y1), (x2, y2) = [tuple(map(float, point.split())) for point in path[1:].split("L")]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y0 - y1 == pytest.approx(2 * (y0 - y2), abs=0.11) and y0 > y2 > y1


def test_a_value_that_is_not_finite_is_a_gap():
    values = [1, 2, math.nan, 3, 4, math.inf, 5]
    figure = line_chart("t", [Series("a", range(7), values)], Axis(), Axis())
    assert paths(figure, "line")[0].count("M") == 2
    assert any(circle.get("r") == "2.6" for circle in drawing(figure).iter("circle"))  # the lone last point


def test_a_long_line_is_thinned_and_keeps_its_peaks():
    values = [0.0] * 100_000
    values[54_321], values[77_777] = 9.0, -9.0
    axis = Axis(low=-9, high=9)
    (path,) = paths(line_chart("t", [Series("a", range(len(values)), values)], Axis(), axis), "line")
    heights = [float(point.split()[1]) for point in path[1:].split("L")]
    assert len(heights) < 900
    assert (min(heights), max(heights)) == (20, 242)  # top and bottom of the drawing


def test_a_histogram_draws_areas_as_large_as_shares():
    (path,) = paths(histogram("t", [0, 1, 3], [Density("a", [0.5, 0.5])], Axis("x")), "area")
    bottom = float(re.match(r"M\S+ (\S+?)L", path)[1])
    tops = [float(y) for y in re.findall(r"L\S+ (\S+?)H", path)]
    assert bottom - tops[0] == pytest.approx(2 * (bottom - tops[1]), abs=0.11)


def test_bars_are_as_long_as_their_values():
    figure = bar_chart("t", ["a", "b", "c"], [Bars("x", [1, 4, math.nan])], Axis(high=4))
    bars = [rect for rect in drawing(figure).iter("rect") if rect.get("class")]
    assert len(bars) == 2
    assert float(bars[1].get("height")) == pytest.approx(4 * float(bars[0].get("height")), abs=0.11)


def test_long_labels_stand_aslant_within_the_drawing():
    names = [f"device_connection_{i}" for i in range(30)]
    long, short = (drawing(bar_chart("t", labels, [Bars("x", [1] * 30)], Axis())) for labels in (names, ["C1"] * 30))
    assert float(long.get("viewBox").split()[3]) > float(short.get("viewBox").split()[3])
    labels = [text for text in long.iter("text") if text.get("transform")]
    assert len(labels) == 30 and labels[0].text == "device_con…"
    assert not [text for text in short.iter("text") if text.get("transform")]


def test_the_mouse_is_told_every_value():
    figure = line_chart(
        "t", [Series("train", [1, 2], [0.5, 0.25]), Series("valid", [2], [0.125])], Axis("step"), Axis()
    )
    assert [title.text for title in drawing(figure).iter("title")] == [
        "step 1\ntrain: 0.5",
        "step 2\ntrain: 0.25\nvalid: 0.125",
    ]


def test_names_are_escaped_wherever_they_stand():
    name = "<i>&\"'"
    for figure in (
        line_chart(name, [Series(name, [1], [1]), Series("b", [1], [2])], Axis(name), Axis(name), note=name),
        bar_chart(name, [name], [Bars(name, [1]), Bars("b", [1])], Axis(name)),
        histogram(name, [0, 1], [Density(name, [1]), Density("b", [1])], Axis(name)),
    ):
        drawing(figure)
        assert "<i>&" not in figure


@pytest.mark.parametrize("size", ["wide", "half", "small"])
def test_charts_without_data_have_their_frame_and_no_mark(size):
    empty = (
        line_chart("t", [Series("a", [], [])], Axis(), Axis(log=True), size),
        bar_chart("t", [], [Bars("a", [])], Axis(), size),
        histogram("t", [0, 1], [Density("a", [0.0])], Axis(), size),
    )
    for figure in empty:
        assert paths(figure, "axis") and paths(figure, "grid")
        assert "nan" not in figure and "inf" not in figure
        assert not paths(figure, "line")
        assert not [rect for rect in drawing(figure).iter("rect") if rect.get("class")]
    heights = re.findall(r"[ V]([\d.]+)", paths(empty[2], "area")[0])
    assert len(set(map(float, heights))) == 1  # nothing is above the axis
    assert next(text.text for text in drawing(empty[2]).iter("text") if text.get("x") == "52") == "0"
