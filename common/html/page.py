"""Render a page of charts and tables as one HTML file that loads nothing from outside, with Jinja2 and Bokeh's script.

render_page("Run 1", "finished", [PagePart("warning", "slow")], [Section("Learning", PagePart("charts", charts))])
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.text import number_text

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


class PagePart:
    """A part of a section, or of the top of a page: the name of a macro in templates/parts.html, and its arguments.

    The template escapes the arguments when it calls the macro.
    """

    def __init__(self, macro: str, *arguments: Any) -> None:
        self.macro, self.arguments = macro, arguments


class Section:
    """A section of a page: a title, parts and a note. All titles are listed at the top of the page.

    `note` is a text that is shown between the title and the parts.
    """

    def __init__(self, title: str, *parts: PagePart, note: str = "") -> None:
        self.title, self.parts, self.note = title, parts, note


def render_page(title: str, subtitle: str, top: Sequence[PagePart], sections: Sequence[Section]) -> str:
    """Return the HTML of a page. The parts in `top` come after the title and subtitle, and before the sections."""
    # Bokeh's scripts are read from its package's files, because importing Bokeh takes half a second.
    package = importlib.util.find_spec("bokeh")
    assert package is not None and package.origin is not None
    folder = Path(package.origin).parent / "server" / "static" / "js"
    scripts = [(folder / f"{name}.min.js").read_text(encoding="utf-8") for name in ("bokeh", "bokeh-api")]
    bokeh = "\n".join([*scripts, 'Bokeh.set_log_level("warn");'])
    page = _environment().get_template("page.html")
    return page.render(title=title, subtitle=subtitle, top=top, sections=sections, bokeh=bokeh)


@functools.cache  # All pages use the same Jinja2 environment, so each template is compiled only once.
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["text"] = number_text
    # The templates' filter `tojson` writes charts as JSON into a <script>. With these options it still escapes all
    # characters that could end the <script>.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return environment
