"""Format small texts in messages and reports.

The functions find the name that was meant, shorten long lists, sort names with numbers, and format numbers for
people: "45,840,617", "25.6 %", "3.1 GiB", "2.5 min".
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal, TextIO

# Pattern of control characters: those that move the cursor, clear the screen or change the direction of writing, except
# for line feeds and tabs.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# Kind of a number. "percent" is for fractions: 0.25 is shown as "25 %".
Unit = Literal["number", "percent", "bytes", "seconds"]

_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SECONDS = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (1e-6, 1e-6, "µs"))


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error, or "" if it has none."""
    return (str(error).splitlines() or [""])[0]


def printable(text: str) -> str:
    """Return a text with its control characters written as in Python source, such as `\\x1b`.

    Thus a value in a log cannot, for example, clear the terminal when it is printed.
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def show(text: object = "", end: str = "\n", file: TextIO | None = None) -> None:
    """Print a text with its control characters escaped. All commands print their results with this function."""
    print(printable(str(text)), end=end, file=file)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the name in `known` that is most similar to `name`, or "" if none is similar."""
    return "".join(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5))


def shortened(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first `most` texts, joined by `between`. If there are N more texts, add " and N more"."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return the sort key of a name, such that numbers in names are compared by value: day_2 comes before day_10."""
    parts = re.split(r"([0-9]+)", name)  # The elements of the list are text and number in turn.
    return [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)]


def number_text(value: float | None, unit: Unit = "number") -> str:
    """Return a number as text for people, with about four significant digits and its unit, such as "3.1 GiB".

    None, NaN and infinity become a dash. Large numbers without a unit are shown as whole numbers.
    """
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "percent":
        return f"{100 * value:.2f} %" if value == 0 or abs(value) >= 1e-4 else f"{100 * value:.2g} %"
    if unit == "number":
        return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1e5 else _digits(value)
    divisor, suffix = readable_unit(abs(value), unit)
    return f"{_digits(value / divisor)} {suffix}"


def readable_unit(largest: float, unit: Unit) -> tuple[float, str]:
    """Return the unit in which values up to `largest` are easy to read, as (divisor, suffix) such as (1024, "KiB").

    If the kind `unit` is number or percent, return (1, "").
    """
    if unit == "bytes":
        return next(((float(size), suffix) for size, suffix in _BYTES if largest >= size), (1.0, "B"))
    if unit == "seconds":
        return next(((size, suffix) for least, size, suffix in _SECONDS if largest >= least), (1.0, "s"))
    return 1.0, ""


def _digits(value: float) -> str:
    """Return a number as text with about four significant digits and without trailing zeros.

    Numbers between 0.0001 and a million are written without an exponent.
    """
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        places = 3 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.3g}"
