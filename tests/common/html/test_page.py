import re

from common.html.charts import Axis, Bars, Series, bar_chart, line_chart
from common.html.page import amount, code, definitions, grid, page, section, share, table, tiles, warning


def whole_page():
    """A page with one of everything."""
    line = line_chart("Loss", [Series("train", [1, 2, 3], [3, 2, 1])], Axis("step"), Axis("loss"))
    bars = bar_chart("Rows", ["train", "test"], [Bars("rows", [8, 1])], Axis("rows"), "half")
    rows = [["integer", 12_345, share(0.25), code("a\tb<c>")], ["label", 3, amount(7, "bytes"), ""]]
    return page(
        "A <title>",
        "of a & b",
        [
            tiles([("rows", "9", "all of them")]),
            section("Losses & more", line, grid(bars), note="x < y"),
            section(
                "Rejects", table(["reason", "lines", "share", "line"], rows), definitions({"seed": 1}), warning("!")
            ),
        ],
    )


def test_a_page_needs_nothing_from_outside():
    content = whole_page()
    assert not re.findall(r"https?://|src=|<script|@import|url\(", content)


def test_sections_are_listed_and_text_is_escaped():
    content = whole_page()
    assert '<a href="#losses-amp-more">Losses &amp; more</a>' in content and 'id="losses-amp-more"' in content
    assert "A &lt;title&gt;" in content and "x &lt; y" in content and "b&lt;c&gt;" in content


def test_columns_of_numbers_stand_to_the_right():
    content = whole_page()
    assert "<th>reason</th><th class=right>lines</th><th class=right>share</th><th>line</th>" in content
    assert "12,345" in content and "width:25.0%" in content


def test_a_browser_shows_the_page_without_complaint(tmp_path, render):
    path = tmp_path / "page.html"
    path.write_text(whole_page(), encoding="utf-8")
    shown = render(path)
    assert shown.count("<figure") == 2 and shown.count("<section") == 2 and shown.count("<td") == 8
