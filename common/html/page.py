"""A page of charts and tables in one file that loads nothing from outside: Jinja2 templates and Bokeh's script.

render_page("Run 1", "finished", [Part("warning", "slow")], [Section("Learning", Part("charts", charts))])
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


class Part:
    """A part of a section, or of the top of a page: a macro of parts.html and its arguments, which are escaped."""

    def __init__(self, macro: str, *arguments: Any) -> None:
        self.macro, self.arguments = macro, arguments


class Section:
    """A section of the page, listed at its top. `note` is what to know before reading it."""

    def __init__(self, title: str, *parts: Part, note: str = "") -> None:
        self.title, self.parts, self.note = title, parts, note


def render_page(title: str, subtitle: str, top: Sequence[Part], sections: Sequence[Section]) -> str:
    """Return the HTML of a page, whose `top` stands before its sections."""
    # BokehJS from the files of Bokeh's package: importing that takes half a second.
    package = importlib.util.find_spec("bokeh")
    assert package is not None and package.origin is not None
    folder = Path(package.origin).parent / "server" / "static" / "js"
    scripts = [(folder / f"{name}.min.js").read_text(encoding="utf-8") for name in ("bokeh", "bokeh-api")]
    bokeh = "\n".join([*scripts, 'Bokeh.set_log_level("warn");'])
    page = _environment().get_template("page.html")
    return page.render(title=title, subtitle=subtitle, top=top, sections=sections, bokeh=bokeh)


@functools.cache  # it keeps the templates that it has compiled
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
    # `tojson` escapes what could end the <script> that it stands in.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return environment
