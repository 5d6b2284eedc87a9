import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.html.charts import Axis, Bars, Density, Series, bar_chart, histogram, line_chart, thin
from common.html.page import PagePart, Section, render_page


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


HOSTILE = '</script><script>alert(1)</script><img src="https://example.org/x"> $$x^2$$ \\(y\\)'


def draw(name):
    """A page with one of everything; `name` stands wherever a text can."""
    line = line_chart(name, [Series(name, [1, 2], [3, 2]), Series("b", [1], [2])], Axis(name), Axis(name), note=name)
    bars = bar_chart(name, [name, "b"], [Bars(name, [8, 1]), Bars("b", [8, 1])], Axis(name))
    areas = histogram(name, [0, 1], [Density(name, [1]), Density("b", [1])], Axis(name))
    columns = [[name, "text"], ["lines", "number"], ["share", "share"], ["size", "bytes"], ["line", "code"]]
    rows = [[name, 12_345, 0.25, 7 << 10, ["a\tb", name]], ["b", None, float("nan"), "none", name]]
    top = [PagePart("tiles", [("rows", "9", name)]), PagePart("warning", name)]
    texts = [
        PagePart("paragraph", name),
        PagePart("note", name),
        PagePart("definitions", {"seed": name}),
        PagePart("folded", name, name),
    ]
    sections = [
        Section("Losses, all", PagePart("charts", [line, bars, areas]), note=name),
        Section("Rejects", PagePart("table", columns, rows, name), *texts, PagePart("folded", name, name)),
    ]
    return render_page(name, name, top, sections)


def of_us(page):
    """A page without Bokeh's script."""
    return re.sub(r"<script>(?!// Draw).*?</script>", "", page, flags=re.DOTALL)


def test_a_page_loads_nothing_from_outside_and_is_small():
    page = draw("plain")
    assert "default-src 'none'; script-src 'unsafe-inline'" in page  # the browser refuses what Bokeh might ask for
    assert not re.findall(r"https?://|src=|@import|url\(|<link", of_us(page))
    assert not re.findall(r"<script[^>]+src=|<link[^>]+href=", page)
    assert len(page.encode()) < 1_500_000


def test_no_text_becomes_markup():
    page = of_us(draw(HOSTILE))
    assert "<script>alert" not in page and "<img" not in page
    assert page.count("&lt;img") > 8 and page.count("\\u003cimg") > 8


def test_sections_are_listed_at_the_top():
    page = draw("plain")
    assert '<a href="#losses-all">Losses, all</a><a href="#rejects">Rejects</a>' in page and 'id="losses-all"' in page


def test_cells_are_shown_by_the_kind_of_their_column():
    page = draw("plain")
    assert '<th>plain</th><th class="right">lines</th><th class="right">share</th>' in page
    for cell in ("12,345</td>", "width:25.0%", "25.00 %", "7 KiB</td>", "<code>a\tb</code><br><code>plain</code>"):
        assert cell in page, cell
    assert '<td class="right" data-name="size">none</td>' in page and ">–</td>" in page


def test_a_browser_that_does_not_tell_when_it_prints_takes_the_drawings_of_the_window(tmp_path, print_page):
    whole = draw("plain")
    untold = whole.replace('addEventListener("beforeprint"', 'addEventListener("never"')
    assert untold != whole
    (tmp_path / "untold.html").write_text(untold)
    sheets = print_page(tmp_path / "untold.html", 60_000)
    assert sum(sheet.count(" Do\n") for sheet in sheets) >= 3, sheets  # pictures: the window is drawn in pixels


def test_print_has_a_table_of_many_long_names_whole(tmp_path, print_page):
    """A sheet is as small as the widest content asks, but within a limit: what is beyond is cut off."""
    names = [f"deep_optimizer.schedule.{word}_steps" for word in ("warmup", "decay", "hold", "cycle", "tail", "rest")]
    columns = [*((name, "right") for name in names), *((f"valid log loss {number}", "right") for number in range(4))]
    table = PagePart("table", columns, [["0.12345"] * len(columns)])
    (tmp_path / "wide.html").write_text(render_page("Sweep", "", [], [Section("Results", table)]))
    (sheet,) = print_page(tmp_path / "wide.html")
    scale = float(re.search(r"\nq\n(\S+) 0 0 ", sheet)[1])
    assert scale > 2.6, scale  # 3.125 of a narrow page, 2.34 at the limit


@pytest.mark.parametrize("name", ["plain", HOSTILE])
def test_a_browser_draws_every_chart_without_complaint(tmp_path, render, name):
    path = tmp_path / "page.html"
    path.write_text(draw(name), encoding="utf-8")
    shown = render(path, ["bk-Figure"])
    assert shown.count("<section") == 2 and shown.count("bk-Figure") == 3


@pytest.mark.parametrize(("log", "end"), [(False, 1), (True, 1), (False, None)])
def test_a_dot_at_the_end_of_an_axis_is_whole(tmp_path, render, log, end):
    """An end that is fixed has room beyond it, because a browser cuts off what is not inside."""
    x, y = Axis("step", low=1, high=100, log=log), Axis("rows", low=1, high=end and 3_000, log=log)
    chart = line_chart("t", [Series("a", [1, 100], [1, 3_000], points=True)], x, y)
    page = render_page("t", "", [], [Section("s", PagePart("charts", [chart]))])
    script = """<script>setInterval(() => {
      const {x_range, y_range, left, center} = Bokeh.documents.at(0)?.roots()[0] ?? {};
      if (!x_range) return;
      document.body.dataset.room = [x_range.start < 1, x_range.end > 100, y_range.start < LOW, y_range.end > 3000,
        center.some((grid) => grid.ticker === left[0].ticker)]; // each line of the grid is labelled
    }, 100)</script></body>""".replace("LOW", "1" if log else "-30")
    (tmp_path / "dots.html").write_text(page.replace("</body>", script))
    render(tmp_path / "dots.html", ['data-room="true,true,true,true,true"'])
