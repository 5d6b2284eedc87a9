"""A page of charts and tables in one file: light or dark as the reader's system is, and fit to be printed.

    page("Run 7", "what it is of", [section("Losses", line_chart(…), table(["step", "loss"], rows)), …])

Parts are what `charts.py` and this file's functions return; all other text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from common.html.axes import Unit, number_text
from common.html.charts import Html, text

_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b0508c", "#b07800", "#2b8fc4", "#7a4fb5", "#5c5c5c")
_DARK = ("#56b4e9", "#ff9248", "#2fcf9f", "#e79ac6", "#f0c04a", "#9ad8ff", "#b79af0", "#b8b8b8")
_DASHES = ("", "", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2")


def page(title: str, subtitle: str, parts: Sequence[Html]) -> str:
    """The whole file; sections among the parts are listed at the top."""
    names = [name for part in parts for name in re.findall(r'<section id="[^"]*"><h2>(.*?)</h2>', part)]
    links = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name in names)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_style()}</style></head>\n'
        f"<body><header><h1>{text(title)}</h1><p>{text(subtitle)}</p><nav>{links}</nav></header>\n<main>"
        + "\n".join(parts)
        + "</main></body></html>\n"
    )


def section(title: str, *parts: Html, note: str = "") -> Html:
    """A part of the page with a heading of its own, and what a reader has to know of it."""
    told = f'<p class="note">{text(note)}</p>' if note else ""
    name = text(title)
    return Html(f'<section id="{_anchor(name)}"><h2>{name}</h2>{told}{"".join(parts)}</section>')


def grid(*figures: Html) -> Html:
    """Charts side by side, as many as the window has room for."""
    return Html(f'<div class="figures">{"".join(figures)}</div>')


def tiles(figures: Iterable[tuple[str, str, str]]) -> Html:
    """The few numbers that matter most: (what, number, a word on it)."""
    cards = (
        f"<div><b>{text(number)}</b><span>{text(what)}</span><small>{text(word)}</small></div>"
        for what, number, word in figures
    )
    return Html(f'<div class="tiles">{"".join(cards)}</div>')


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> Html:
    """Numbers (and what `share` and `amount` make) stand to the right, text to the left."""
    contents = [[_number_or_text(content) for content in row] for row in rows]
    aside = [all(_is_number(row[i]) for row in contents) for i in range(len(head))]
    names = "".join(
        f"<th{' class=right' if right else ''}>{text(name)}</th>" for name, right in zip(head, aside, strict=True)
    )
    cells = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in contents)
    return Html(
        '<div class="scroll"><table>'
        + (f"<caption>{text(caption)}</caption>" if caption else "")
        + f"<thead><tr>{names}</tr></thead><tbody>{cells}</tbody></table></div>"
    )


def share(fraction: float, of: float = 1.0) -> Html:
    """A fraction for a table's cell: in per cent, with a bar that is full at `of`."""
    width = 100 * min(max(fraction / of, 0.0), 1.0) if fraction == fraction and of else 0.0
    return Html(
        f'<i class="number">{text(number_text(fraction, "percent"))}</i>'
        f'<i class="share"><i style="width:{width:.1f}%"></i></i>'
    )


def amount(value: float, unit: Unit = "number") -> Html:
    """A number with its unit for a table's cell."""
    return Html(f'<i class="number">{text(number_text(value, unit))}</i>')


def code(content: str) -> Html:
    """Text as a program has it."""
    return Html(f"<code>{text(content)}</code>")


def unbroken(content: str) -> Html:
    """Text that stays in one line, as in a narrow table."""
    return Html(f'<span class="unbroken">{text(content)}</span>')


def definitions(entries: Mapping[str, object]) -> Html:
    """Names and what they stand for."""
    return Html(
        "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in entries.items()) + "</dl>"
    )


def warning(content: str) -> Html:
    """What a reader should not miss."""
    return Html(f'<p class="warning">{text(content)}</p>')


def _number_or_text(content: object) -> Html:
    if isinstance(content, (int, float)) and not isinstance(content, bool):
        return amount(content)
    return text(content)


def _is_number(content: Html) -> bool:
    return content.startswith('<i class="number">')


def _cell(content: Html) -> str:
    return f"<td{' class=right' if _is_number(content) else ''}>{content}</td>"


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _style() -> str:
    series = "".join(
        f".s{i}{{--c:var(--s{i})}}path.line.s{i}{{stroke-dasharray:{dash or 'none'}}}" for i, dash in enumerate(_DASHES)
    )
    light = "".join(f"--s{i}:{colour};" for i, colour in enumerate(_LIGHT))
    dark = "".join(f"--s{i}:{colour};" for i, colour in enumerate(_DARK))
    return (
        f":root{{color-scheme:light dark;{light}--ink:#1b1f24;--soft:#5d6670;--line:#e2e6ea;--paper:#fff;"
        f"--card:#f6f8fa;--warn:#fff4d6}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}--ink:#e6e9ec;"
        f"--soft:#9aa4af;--line:#30363d;--paper:#14171b;--card:#1d2126;--warn:#3d3212}}}}{_STYLE}{series}"
    )


_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
header,main{max-width:1180px;margin:0 auto;padding:0 24px}
header{padding-top:36px}
h1{font-size:28px;margin:0;letter-spacing:-.01em}
header p{color:var(--soft);margin:4px 0 16px}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;border-bottom:1px solid var(--line);padding-bottom:12px;font-size:14px}
a{color:var(--s0);text-decoration:none}a:hover{text-decoration:underline}
section{margin:40px 0}
h2{font-size:20px;margin:0 0 6px}
.note{color:var(--soft);margin:2px 0 14px;font-size:14px;max-width:86ch}
.warning{background:var(--warn);border-left:4px solid var(--s4);padding:10px 14px;border-radius:4px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:14px;margin:24px 0}
.tiles div{background:var(--card);border-radius:10px;padding:14px 16px;display:flex;flex-direction:column}
.tiles b{font-size:24px;line-height:1.2;font-variant-numeric:tabular-nums}
.tiles span{font-size:14px}.tiles small{color:var(--soft);font-size:12.5px}
.figures{display:flex;flex-wrap:wrap;gap:18px}
figure{margin:0 0 16px;background:var(--card);border-radius:10px;padding:12px 14px 6px}
figure.wide{width:100%}
figure.half{flex:1 1 440px;max-width:calc(50% - 9px);min-width:min(100%,340px)}
figure.small{flex:1 1 250px;max-width:calc(25% - 14px);min-width:min(100%,240px)}
@media(max-width:900px){figure.half,figure.small{max-width:100%}}
@media(max-width:600px){header,main{padding:0 14px}.tiles{grid-template-columns:repeat(2,1fr);gap:10px}
figure.wide,figure.half{overflow-x:auto}
figure.wide svg:not(.key){min-width:640px}figure.half svg:not(.key){min-width:440px}
figcaption{position:sticky;left:0}}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:2px 16px;font-size:14px;margin-bottom:4px}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;color:var(--soft);font-size:13px}
.legend span{display:inline-flex;align-items:center;gap:6px}
svg{display:block;width:100%;height:auto;overflow:visible}svg.key{width:22px;height:8px}
svg text{font-size:11px;fill:var(--soft);font-variant-numeric:tabular-nums}
figure.small svg text{font-size:10.5px}
path{fill:none}.grid{stroke:var(--line)}.axis,.mark{stroke:var(--soft)}
.line{stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}
.reference{--c:var(--soft)}path.line.reference{stroke-width:1.1;stroke-dasharray:3 3}
.area{fill:var(--c);fill-opacity:.22;stroke:var(--c);stroke-width:1.2}
.bar,path.bar,.dot{fill:var(--c)}
.hit rect{fill:transparent}.hit .cursor{stroke:var(--soft);stroke-dasharray:2 2}
.hit>path,.hit>circle{opacity:0}.hit:hover>path,.hit:hover>circle{opacity:1}
.hit:hover rect{fill:var(--soft);fill-opacity:.1}
.scroll{overflow-x:auto;margin:0 0 18px}
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums;min-width:50%}
caption{text-align:left;font-weight:600;font-size:14px;padding:4px 0}
th{text-align:left;font-weight:600;color:var(--soft);border-bottom:1px solid var(--soft);padding:4px 16px 4px 0;
white-space:nowrap}
td{border-bottom:1px solid var(--line);padding:3px 16px 3px 0;vertical-align:top}
td.right{white-space:nowrap;text-align:right}th.right{text-align:right}
i{font-style:normal}td.right>i.number{display:inline-block;min-width:5.5em;text-align:right}
i.share{display:inline-block;width:90px;height:8px;background:var(--line);border-radius:4px;margin-left:10px;overflow:hidden}
i.share i{display:block;height:100%;background:var(--s0)}
.unbroken{white-space:nowrap}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 20px;font-size:14px;margin:0 0 18px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
code{font:12.5px ui-monospace,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere;white-space:pre-wrap}
@media print{body{font-size:11px}main,header{max-width:none;padding:0}nav{display:none}
figure,tr,.tiles div,dl{break-inside:avoid}section{margin:18px 0}h2{break-after:avoid}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
