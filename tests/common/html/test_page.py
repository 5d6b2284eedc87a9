import re

import pytest

from common.html.charts import Axis, Bars, Density, Series, bar_chart, histogram, line_chart
from common.html.page import PagePart, Section, render_page

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
