import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.html.charts import Axis, Bars, Density, Series, bar_chart, histogram, line_chart, thin


def test_a_line_has_its_points_and_a_gap_where_a_value_is_not_finite():
    drawing = line_chart("t", [Series("a", [1, 2, 3, 4], [1, math.nan, math.inf, 4])], Axis(), Axis()).drawing
    assert drawing["lines"][0]["x"] == [1, 2, 3, 4] and drawing["lines"][0]["y"] == [1, None, None, 4]


def test_a_logarithmic_axis_leaves_out_what_is_not_positive_and_ends_at_powers_of_ten():
    drawing = line_chart("t", [Series("a", [1, 2, 3], [0, 0.03, 70])], Axis(), Axis(log=True)).drawing
    assert drawing["lines"][0]["y"] == [None, 0.03, 70]
    assert (drawing["y"]["low"], drawing["y"]["high"]) == (0.01, 100)
    assert drawing["y"]["ticks"] == [
        (10.0**power, text) for power, text in zip(range(-2, 3), ("0.01", "0.1", "1", "10", "100"), strict=True)
    ]


@given(st.floats(1e-12, 1e12), st.floats(1, 1e9))
def test_a_logarithmic_axis_has_ticks_around_its_values_or_those_of_a_linear_one(low, ratio):
    y = line_chart("t", [Series("a", [1, 2], [low, low * ratio])], Axis(), Axis(log=True)).drawing["y"]
    assert y["low"] <= low * (1 + 1e-6) and y["high"] >= low * ratio * (1 - 1e-6) and y["low"] < y["high"]
    ticks = [tick for tick, _ in y["ticks"]]
    assert ticks == sorted({*ticks}) and len({text for _, text in y["ticks"]}) == len(ticks)
    assert len(ticks) >= 2 if ratio >= 2 else len(ticks) in (0, 2)
    assert y["high"] / y["low"] <= 100 * max(ratio, 10)


def test_far_values_are_beyond_a_clipped_axis_and_the_note_names_them():
    steps = list(range(100))
    times = [0.004 + 0.00001 * step for step in steps]
    times[3], times[50], times[70] = 2.0, 0.0, 9.0
    chart = line_chart("t", [Series("tower", steps, times)], Axis("step"), Axis("s", "seconds", log=True, clip=True))
    assert chart.drawing["y"]["high"] < 0.02 / 0.001  # ms
    assert chart.note == "Beyond the axis: tower 0 s at step 50, tower 9 s at step 70 and 1 more."
    assert chart.drawing["lines"][0]["y"][3] == 2000  # it leaves the frame
    steady = line_chart("t", [Series("tower", steps, [0.1] * 100)], Axis("step"), Axis(log=True, clip=True))
    assert not steady.note


def test_a_long_line_is_thinned_and_keeps_its_peaks():
    values = [0.0] * 100_000
    values[54_321], values[77_777] = 9.0, -9.0
    points = thin(list(enumerate(values)))
    assert len(points) < 900 and points == sorted(points)
    assert {(54_321, 9.0), (77_777, -9.0), (99_999, 0.0)} <= set(points)
    assert thin([(i, math.nan) for i in range(1_000)])


def test_axes_name_the_unit_that_values_are_drawn_in():
    drawing = line_chart("t", [Series("a", [0, 1], [1 << 30, 3 << 30])], Axis("step"), Axis("memory", "bytes")).drawing
    assert drawing["y"]["label"] == "memory (GiB)" and drawing["lines"][0]["y"] == [1, 3]
    bars = bar_chart("t", ["lookup"], [Bars("mean", [0.012])], Axis("time", "seconds")).drawing
    assert bars["y"]["label"] == "time (ms)" and bars["bars"][0]["tops"] == [12]
    assert line_chart("t", [Series("a", [0], [0.5])], Axis(), Axis("clicks", "percent")).drawing["y"]["format"]


def test_a_histogram_draws_areas_as_large_as_shares():
    drawing = histogram("t", [0, 1, 3], [Density("a", [0.5, 0.5])], Axis("x")).drawing
    assert drawing["areas"][0]["tops"] == [0.5, 0.25] and drawing["areas"][0]["edges"] == [0, 1, 3]


def test_bars_begin_at_zero_or_at_the_low_end_of_a_logarithmic_axis():
    assert bar_chart("t", ["a"], [Bars("x", [4])], Axis()).drawing["bars"][0]["floor"] == 0
    drawing = bar_chart("t", ["a"], [Bars("x", [4])], Axis(log=True, low=1)).drawing
    assert drawing["bars"][0]["floor"] == 1 and drawing["y"]["ticks"][0] == (1, "1")


def test_a_line_without_values_is_not_in_the_legend():
    series = [Series("a", [], []), Series("b", [1, 2], [math.nan, -1]), Series("c", [1], [2])]
    (line,) = line_chart("t", series, Axis(), Axis(log=True)).drawing["lines"]
    assert (line["name"], line["colour"]) == ("c", 2)


def test_hovering_shows_every_value():
    series = [Series("train", [1, 2], [0.5, 0.25]), Series("valid", [2], [0.125]), Series("", [1], [3])]
    hover = line_chart("t", series, Axis("step"), Axis()).drawing["hover"]
    assert hover == {"edges": [1, 1.5, 2], "texts": ["step 1\ntrain: 0.5", "step 2\ntrain: 0.25\nvalid: 0.125"]}
    long = "device_connection_type"
    bars = bar_chart("t", [long], [Bars("x", [1]), Bars("y", [0.25])], Axis(unit="percent")).drawing
    assert bars["labels"] == ["device_con…"] and bars["hover"]["texts"] == [f"{long}\nx: 100.00 %\ny: 25.00 %"]
    shares = histogram("t", [0, 0.5, 1], [Density("clicks", [0.25, 0.75])], Axis("", "percent")).drawing["hover"]
    assert shares["texts"][0] == "0.00 % to 50.00 %\nclicks: 25.00 %"


@pytest.mark.parametrize("size", ["wide", "half", "small"])
def test_charts_without_data_can_be_drawn(size):
    for chart in (
        line_chart("t", [Series("a", [], [])], Axis(), Axis(log=True), size),
        bar_chart("t", [], [Bars("a", [])], Axis(), size),
        histogram("t", [0, 1], [Density("a", [0.0])], Axis(), size),
    ):
        assert chart.drawing["hover"]["edges"] in ([], [0], [0, 1])


@given(
    labels=st.lists(
        st.text(min_size=1, max_size=9).map(lambda end: f"timestamp_{end}") | st.text(max_size=25), unique=True
    )
)
def test_labels_that_differ_stay_different(labels):
    """A label as it is drawn may be a cut one, but never that of another bar."""
    shown = bar_chart("t", labels, [Bars("x", [1] * len(labels))], Axis()).drawing["labels"]
    assert len(set(shown)) == len(shown)
    assert [a for a, b in zip(labels, shown, strict=True) if len(a) <= 11 and a != b] == []


def test_similar_long_labels_keep_their_ends():
    drawing = bar_chart("t", ["timestamp_hour", "timestamp_weekday"], [Bars("x", [1, 2])], Axis()).drawing
    assert drawing["labels"] == ["tim…mp_hour", "tim…weekday"]


@pytest.mark.parametrize(
    ("values", "axis", "is_whole"),
    [([1, 2], Axis("part"), True), ([1, 2.5], Axis(), False), ([0, 1], Axis("share", "percent"), False)],
)
def test_an_axis_of_whole_numbers_says_so(values, axis, is_whole):
    assert line_chart("t", [Series("a", values, [0.5, 0.25])], axis, Axis()).drawing["x"]["whole"] == is_whole
