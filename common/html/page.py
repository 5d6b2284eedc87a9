"""A page of charts and tables in one file that loads nothing from outside: Jinja2 templates and Bokeh's script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.number_text import number_text

TEMPLATES = Path(__file__).parent / "templates"


def render_page(template: Path, title: str, subtitle: str, **values: Any) -> str:
    """Return the HTML of `template`, which imports parts.html, within page.html; all values are escaped."""
    from bokeh.resources import Resources
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folders = [template.parent, TEMPLATES]
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["text"] = number_text
    # `tojson` escapes what could end the <script> that it stands in.
    environment.policies["json.dumps_function"] = _compact_json
    headings: list[str] = []  # noted by the macro `section`, listed at the top
    body = environment.get_template(template.name).render(values, headings=headings)
    bokeh = "\n".join(Resources(mode="inline", components=["bokeh", "bokeh-api"], log_level="warn").js_raw)
    page = environment.get_template("page.html")
    return page.render(title=title, subtitle=subtitle, body=body, headings=headings, bokeh=bokeh)


def _compact_json(value: Any, **options: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
