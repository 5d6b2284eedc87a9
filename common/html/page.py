"""A page of charts and tables in one file that loads nothing from outside: Jinja2 templates and Bokeh's script."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from common.text import number_text

TEMPLATES = Path(__file__).parent / "templates"


def render_page(template: Path, title: str, subtitle: str, **values: Any) -> str:
    """Return the HTML of `template`, which imports parts.html, within page.html; all values are escaped."""
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
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    # BokehJS from the files of Bokeh's package: importing that takes half a second.
    package = importlib.util.find_spec("bokeh")
    assert package is not None and package.origin is not None
    folder = Path(package.origin).parent / "server" / "static" / "js"
    scripts = [(folder / f"{name}.min.js").read_text(encoding="utf-8") for name in ("bokeh", "bokeh-api")]
    bokeh = "\n".join([*scripts, 'Bokeh.set_log_level("warn");'])
    headings: list[str] = []  # noted by the macro `section`, listed at the top
    body = environment.get_template(template.name).render(values, headings=headings)
    page = environment.get_template("page.html")
    return page.render(title=title, subtitle=subtitle, body=body, headings=headings, bokeh=bokeh)
