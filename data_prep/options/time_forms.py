"""Describe how a log writes times: as a number since 1970, as ISO 8601, or in a form with codes such as %Y."""

from __future__ import annotations

import functools
import re
from datetime import datetime, timedelta

SECONDS, ISO = "seconds", "iso"
# Units of a number since 1970. A unit is 10 to the given power milliseconds.
UNITS = {SECONDS: 3, "milliseconds": 0, "microseconds": -3, "nanoseconds": -6}
# Times that are likely in logs, in seconds since 1970: the years 1989 to 2099. If a number is such a time in a coarser
# unit than that of its column, its line is rejected. In the column's unit the number would be a time of early 1970,
# while seconds in place of milliseconds are a common slip.
LIKELY_SECONDS = range(600_000_000, 4_100_000_000)
MONTHS: tuple[str, ...] = ("january", "february", "march", "april", "may", "june", "july")
MONTHS += ("august", "september", "october", "november", "december")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# Regular expressions of the names of months and weekdays, which may be cut to three letters.
_NAMES = {
    code: "(?i:" + "|".join(f"{name[:3]}(?:{name[3:]})?+" for name in names) + ")"
    for code, names in (("b", MONTHS), ("a", WEEKDAYS))
}
_ZONE = "(?:Z|UTC|GMT|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?+)"
# Regular expression of each code of a form. `time_pattern` also allows some codes to have a digit less.
TIME_CODES = {"Y": "[0-9]{4}", "y": "[0-9]{2}", "f": "[0-9]{1,9}+", **dict.fromkeys("mdHIMS", "[0-9]{2}")}
TIME_CODES |= {**_NAMES, "p": "[aApP][mM]", "z": _ZONE}
_WITHOUT_ZERO = "(?:[0-9]{1,2}+| [0-9])"
_DIGITS = "[0-9]|%[^abpz]"  # Matches an element of a form that stands for digits: a digit or a code of numbers.


def time_range(form: str) -> tuple[int, int]:
    """Return the first and the last time that a form can express, in milliseconds since 1970.

    These are the years 1 to 9999, or 1969 to 2068 for a form with a year of two digits.
    """
    return (-31_536_000_000, 3_124_223_999_999) if "%y" in form else (-62_135_596_800_000, 253_402_300_799_999)


def has_zone(form: str) -> bool:
    """Return True if a cell of this form determines a time independently of a time zone, or may contain a zone."""
    return form == ISO or form in UNITS or "%z" in form


@functools.lru_cache(maxsize=64)
def time_pattern(form: str) -> re.Pattern[bytes]:
    """Return a regular expression for cells of a form that is not a unit. Each code becomes a group of its name.

    A code of two digits also matches one digit, or a blank and a digit, unless its neighbour stands for digits. So
    1/2/2014 matches a form with slashes, but 20140102 needs all digits. The fraction in %S.%f, %S,%f or %S%f may be
    missing, together with its point or comma.
    """
    if form != ISO:
        return re.compile(_pattern(form).encode())
    date, clock, seconds, zone = map(_pattern, ("%Y-%m-%d", "%H:%M", ":%S.%f", "%z"))
    return re.compile(f"{date}(?:[T ]{clock}(?:{seconds})?+(?: ?{zone})?+)?+".encode())


def _pattern(form: str) -> str:
    def part(match: re.Match[str]) -> str:
        fraction, code = match["mark"], match["code"]
        if fraction is not None:
            return f"(?:{re.escape(fraction)}(?P<f>{TIME_CODES['f']}))?+"
        if code is None:
            return re.escape(match[0])
        before, after = form[: match.start()], form[match.end() :]
        is_free = not re.search(f"({_DIGITS})$", before) and not re.match(_DIGITS, after)
        return f"(?P<{code}>{_WITHOUT_ZERO if is_free and code in 'mdHIMS' else TIME_CODES[code]})"

    return re.sub("(?<=%S)(?P<mark>[.,]?)%f|%(?P<code>[a-zA-Z])|.", part, form, flags=re.DOTALL)


def time_text(milliseconds: int, form: str) -> str:
    """Write a time in milliseconds since 1970 (UTC) as a cell of the given form.

    A time that the form cannot express becomes a cell that the parser rejects.
    """
    if form in UNITS:
        power = UNITS[form]
        return str(milliseconds * 10**-power if power < 0 else milliseconds // 10**power)
    first, last = time_range(form)
    if not first <= milliseconds <= last:
        return f"{milliseconds} ms"
    moment = datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)
    form = "%Y-%m-%d %H:%M:%S.%fZ" if form == ISO else form
    # These codes are not left to strftime, because it writes names of months and days in the language of the machine,
    # and years before 1000 without leading zeros.
    for code, text in (
        ("%Y", f"{moment.year:04}"),
        ("%f", f"{milliseconds % 1000:03}"),
        ("%z", "+0000"),
        ("%b", MONTHS[moment.month - 1][:3].capitalize()),
        ("%a", WEEKDAYS[moment.weekday()][:3].capitalize()),
        ("%p", "PM" if moment.hour >= 12 else "AM"),
    ):
        form = form.replace(code, text)
    return moment.strftime(form)
