"""Small texts in messages and reports: the name that was meant, long lists, the order in which people number names, and
numbers as people read them: "45,840,617", "25.6 %", "3.1 GiB", "2.5 min".
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

Unit = Literal["number", "percent", "bytes", "seconds"]  # percent: of fractions, 0.25 is "25 %"

_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SECONDS = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (1e-6, 1e-6, "µs"))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`, or ""."""
    return "".join(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5))


def shortened(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first `most` texts, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def natural_order(name: str) -> list[tuple[int, str]]:
    """Key of a sort in which day_2 comes before day_10."""
    parts = re.split(r"([0-9]+)", name)  # text and number by turns
    return [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)]


def number_text(value: float | None, unit: Unit = "number") -> str:
    """Return four significant digits and the unit. None and what is not finite are a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "percent":
        return f"{100 * value:.2f} %" if value == 0 or abs(value) >= 1e-4 else f"{100 * value:.2g} %"
    if unit == "number":
        return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1e5 else _digits(value)
    divisor, suffix = readable_unit(abs(value), unit)
    return f"{_digits(value / divisor)} {suffix}"


def readable_unit(largest: float, unit: Unit) -> tuple[float, str]:
    """Return (divisor, suffix) of the unit in which values up to `largest` read well: (1024, "KiB")."""
    if unit == "bytes":
        return next(((float(size), suffix) for size, suffix in _BYTES if largest >= size), (1.0, "B"))
    if unit == "seconds":
        return next(((size, suffix) for least, size, suffix in _SECONDS if largest >= least), (1.0, "s"))
    return 1.0, ""


def _digits(value: float) -> str:
    """Format without trailing zeros, and without an exponent between 0.0001 and a million."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        places = 3 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.3g}"
