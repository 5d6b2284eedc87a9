"""The ways in which a log writes times: numbers since 1970, ISO 8601, or a form with codes such as %Y."""

from __future__ import annotations

import functools
import re
from datetime import datetime, timedelta

SECONDS, ISO = "seconds", "iso"
# Units of numbers since 1970, with the power of ten by which one is longer than a millisecond.
UNITS = {SECONDS: 3, "milliseconds": 0, "microseconds": -3, "nanoseconds": -6}
# Times that logs are likely to have, in seconds: 1989 to 2099. A number that is such a time in a coarser unit than its
# column's is rejected: it would be a time of early 1970, while seconds in place of milliseconds are a common slip.
LIKELY_SECONDS = range(600_000_000, 4_100_000_000)
MONTHS: tuple[str, ...] = ("january", "february", "march", "april", "may", "june", "july")
MONTHS += ("august", "september", "october", "november", "december")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# The patterns of a form's codes. Parts of two digits may have one digit, or a blank in place of their zero, where no
# digit can stand beside them: see `time_pattern`.
_NAMES = {
    code: "(?i:" + "|".join(f"{name[:3]}(?:{name[3:]})?+" for name in names) + ")"
    for code, names in (("b", MONTHS), ("a", WEEKDAYS))
}
_ZONE = "(?:Z|UTC|GMT|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?+)"
TIME_CODES = {"Y": "[0-9]{4}", "y": "[0-9]{2}", "f": "[0-9]{1,9}+", **dict.fromkeys("mdHIMS", "[0-9]{2}")}
TIME_CODES |= {**_NAMES, "p": "[aApP][mM]", "z": _ZONE}
_WITHOUT_ZERO = "(?:[0-9]{1,2}+| [0-9])"
_DIGITS = "[0-9]|%[^abpz]"  # a part of a form that may be digits


def time_range(form: str) -> tuple[int, int]:
    """Return the first and the last millisecond since 1970 of the years that a form can give."""
    return (-31_536_000_000, 3_124_223_999_999) if "%y" in form else (-62_135_596_800_000, 253_402_300_799_999)


def has_zone(form: str) -> bool:
    """Return True if cells of this form say where on Earth their clock is, or may say it."""
    return form == ISO or form in UNITS or "%z" in form


@functools.lru_cache(maxsize=64)
def time_pattern(form: str) -> re.Pattern[bytes]:
    """Return the pattern of a form of times that is not a unit: its codes become groups with their letters as names.

    A part of two digits may be one digit long if no digit can stand beside it, as in 1/2/2014, but not in 20140102.
    The fraction in %S.%f, %S,%f or %S%f may be missing, with its mark.
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
    """Return a time since 1970 (UTC) as a cell. A time that the form cannot write becomes a bad cell."""
    if form in UNITS:
        power = UNITS[form]
        return str(milliseconds * 10**-power if power < 0 else milliseconds // 10**power)
    first, last = time_range(form)
    if not first <= milliseconds <= last:
        return f"{milliseconds} ms"
    moment = datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)
    form = "%Y-%m-%d %H:%M:%S.%fZ" if form == ISO else form
    # strftime writes names of months and days in the language of the machine, and years before 1000 without zeros.
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
