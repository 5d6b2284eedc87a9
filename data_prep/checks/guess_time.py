"""Decide whether a column of a log holds times, and in which form they are written.

The values of the column, their range and the column's name decide.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from data_prep.checks.first_rows import Column
from data_prep.kernels.times import parse_times
from data_prep.options.kinds import ISO, LIKELY_SECONDS, SECONDS, UNITS, time_pattern

_TIME_NAMES = re.compile(
    r"(^|[_ .-])(time|timestamp|ts|date|datetime|at|when|seen|day|hour|time_?stamp|epoch|unixtime|dt|created|updated)"
    r"([_ ]?(ms|us|ns|s|sec|seconds|millis|micros|nanos|utc|gmt|local|unix|epoch))?$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]*)?([eE][-+]?[0-9]{1,2})?")
_NO_TIMES = ("0", "-1", "0.0", "-1.0")
_MOST_TIMES = 2_000  # At most this many distinct values of a column are read as times to find their form.
# A form of times (such as %Y-%m-%d) is first tried with this many values, because they already exclude most forms.
_FEW_TIMES = 50
# A column counts as times although up to this fraction of its distinct values are not written in the common form.
_SLIP_SHARE = 0.001
# A column counts as times although up to this fraction of its rows have 0 or -1 instead of a time.
_MOST_NO_TIMES = 0.5
# Numbers in a column that is not named like a time count as times only if the first and the last are at most
# `_MOST_SPREAD` seconds apart. The numbers must also be sorted, or have more distinct values than the fraction
# `_LEAST_DISTINCT` of the rows.
_MOST_SPREAD = 3 * 365 * 86_400
_LEAST_DISTINCT = 0.5
_EXCEL = range(25_000, 75_000)  # Excel counts times in days since 1899-12-30. These days are in 1968 to 2105.
_OF_EXCEL = "; if it is a time of Excel, write dates, in pandas by to_datetime(f[{!r}], unit='D', origin='1899-12-30')"
_TIME_OF_DAY = re.compile(r"[0-2]?[0-9]:[0-5][0-9](:[0-5][0-9]([.,][0-9]+)?)?( ?[AaPp][Mm])?")
# If this many distinct numbers or more are all valid dates with a year of two digits, that is hardly chance.
_FEW_DAYS = 24
# Forms of dates without punctuation, by their number of digits. `_digit_form` demands more evidence for forms with a
# year of two digits.
_DATES_OF_DIGITS = {
    6: ("%y%m%d",),
    8: ("%Y%m%d", "%y%m%d%H"),
    10: ("%Y%m%d%H", "%y%m%d%H%M"),
    12: ("%Y%m%d%H%M", "%y%m%d%H%M%S"),
    14: ("%Y%m%d%H%M%S",),
    17: ("%Y%m%d%H%M%S%f",),
    20: ("%Y%m%d%H%M%S%f",),
}
# Possible orders of year, month and day in a date. `_WITH_MONTH` is for dates whose month is a name: its place is
# known, so it has only the orders of day and year. `_WITHOUT_MONTH` is for dates whose month is a number.
_WITH_MONTH = ("dY", "Yd", "dy", "yd")
_WITHOUT_MONTH = ("mdY", "dmY", "Ymd", "Ydm", "mdy", "dmy", "ymd", "ydm")
_WITH_HOUR = ("YmdH", "YmdHM", "YmdHMS")  # Dates with a time without colons, as in 2024-05-07-22.
_MONTH = "(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_WEEKDAY = "(?i:mon|tue|wed|thu|fri|sat|sun)[a-z]*"
_LIKE_A_MOMENT = re.compile(
    rf".*([0-9]|{_MONTH})[-/. ,]+([0-9]{{1,2}}|{_MONTH})[-/. ,T].*[0-9]:[0-9]{{2}}.*|[0-9]+([-/.])[0-9]+\3[0-9]{{4}}"
)


def time_form(column: Column, is_code: bool) -> tuple[str, str]:
    """Return the form in which the times of a column are written, or "" if it does not hold times.

    Also return a remark or "". A form is a unit such as seconds, codes such as %Y-%m-%d, or iso. The remark names
    another reading of the values that is nearly as likely, and the setting for it. `is_code` is True if the name of the
    column says that it holds identifiers. Numbers in such a column count as times only if the name also says time.
    """
    is_named = bool(_TIME_NAMES.search(column.plain_name))
    values = [value for value in column.values if value not in _NO_TIMES]
    num_without = column.count_of(_NO_TIMES)
    if not values or num_without > _MOST_NO_TIMES * column.num_present:
        return "", ""
    few = values[:: -(-len(values) // _MOST_TIMES) or 1]
    if not column.all_match(_NUMBER):
        form, strays = next(_forms_of_text(few, is_named), ("", []))
        if form and column.count_of(strays) <= _SLIP_SHARE * column.num_present:
            return form, _order_of_date(form)
        return "", _mixed_times(column)
    if is_code and not is_named:
        return "", ""
    if form := _digit_form(few, is_named):
        if num_without <= _SLIP_SHARE * column.num_present:
            return form, ""
        return "", f"; timestamps: {form} if cells without a time are empty, or in missing"
    return _unit(column, values, is_named)


def _digit_form(values: Sequence[str], is_named: bool) -> str:
    """Return the form of dates of digits only, such as %Y%m%d for 20240507, or "" if one of `values` is no date.

    All values must have the same number of digits. `is_named` is True if the column is named like a time.
    """
    end = ".0" if values[0].endswith(".0") else ""
    digits = [value.removesuffix(end) for value in values]
    if len({*map(len, digits)}) > 1 or not all(value.endswith(end) for value in values):
        return ""
    for form in _DATES_OF_DIGITS.get(len(digits[0]), ()):
        # Dates are tried before numbers of seconds. As seconds, 2026112714 would be a time in 2034, but numbers of
        # seconds are hardly ever all valid dates.
        if form.startswith("%Y"):
            is_likely = all("1950" <= value[:4] <= "2100" for value in digits)
        else:
            is_likely = all(value[:2] < "40" for value in digits)
            is_likely &= is_named or (len(form) > len("%y%m%d") and len(digits) >= _FEW_DAYS)
        if is_likely and _strays(values, form + end) is not None:
            return form + end
    return ""


def _unit(column: Column, values: Sequence[str], is_named: bool) -> tuple[str, str]:
    """Return the unit (such as seconds) of numbers that count time since 1970, or "" if they do not seem to be times.

    Also return a remark about another reading of the numbers, or "". The range of the numbers in `values` decides, and
    whether the column is named like a time (`is_named`).
    """
    numbers = np.array(values, np.float64)
    for form, power in UNITS.items():
        seconds = numbers / 10 ** (3 - power)
        if not ((seconds >= LIKELY_SECONDS.start) & (seconds < LIKELY_SECONDS.stop)).all():
            continue
        # The numbers are converted to longdouble, because float64 would round numbers of 19 digits: close ones would
        # become equal and look sorted.
        steps = np.diff(np.array(column.values, np.longdouble)[column.codes[column.codes >= 0]])
        is_sorted = bool((steps >= 0).all() or (steps <= 0).all())
        is_spread = np.ptp(seconds) < _MOST_SPREAD and (is_sorted or len(values) > _LEAST_DISTINCT * column.num_present)
        is_exact = form != SECONDS or any(number % 1 for number in numbers)
        if is_named or (is_spread and is_exact and len(values) > 1):
            return form, "" if is_named else "; string if these are codes"
        return "", f"; timestamp, with timestamps: {form}, if these are times"
    are_excels = is_named and any(numbers % 1) and ((numbers >= _EXCEL.start) & (numbers < _EXCEL.stop)).all()
    return "", _OF_EXCEL.format(column.name) * bool(are_excels)


def _strays(values: Sequence[str], form: str) -> list[str] | None:
    """Return those of `values` that are not times in the form `form`, such as %Y-%m-%d, or None if they are more than
    0.1 % of the values.
    """
    strays: list[str] = []
    for some in (values[:_FEW_TIMES], values):
        _, present, good = parse_times([value.encode() for value in some], form, "")
        strays = list(itertools.compress(some, ~good))
        if not present.any() or len(strays) > max(_SLIP_SHARE * len(some), len(some) > _FEW_DAYS):
            return None
    return strays if len(strays) <= _SLIP_SHARE * len(values) else None


def _forms_of_text(values: Sequence[str], is_named: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the forms in which nearly all values can be read as times, the likeliest form first.

    With each form, yield a list of the few values that are not times in this form.
    """
    # Derive the possible forms from the longest value: if some values have fractions of a second, the longest has them.
    longest = max(values[:: len(values) // _FEW_TIMES + 1], key=len)
    if re.match(r"[0-9]{4}-[0-9]", longest) and (strays := _strays(values, ISO)) is not None:
        yield ISO, strays
    all_strays = {form: _strays(values, form) for form in _forms_like(longest, is_named)}
    found = [(form, strays) for form, strays in all_strays.items() if strays is not None]
    # A log has fewer distinct years than months, and fewer months than days. Therefore the form with the fewest years
    # and then months is the likeliest: 20-05-07 to 20-05-27 are days of May 2020, and not the 20th of May in several
    # years.
    yield from sorted(found, key=lambda form_strays: _num_distinct(values, form_strays[0])) if found[1:] else found


def _num_distinct(values: Sequence[str], form: str) -> tuple[int, int]:
    """Return how many distinct years, and how many distinct months, `values` have if read in the given form."""
    matches = [time_pattern(form).fullmatch(value.encode()) for value in values]
    groups = [match.groupdict() for match in matches if match]
    return tuple(len({group.get(codes[0]) or group.get(codes[1]) for group in groups}) for codes in ("Yy", "mb"))  # type: ignore[return-value]


def _forms_like(text: str, is_named: bool) -> Iterator[str]:
    """Yield the possible forms of `text`, which may be a time, as strptime codes such as %Y-%m-%d.

    `is_named` is True if the column of the text is named like a time.
    """
    # If a leading zero is written as a blank ("May  7"), remove the blank.
    text = re.sub("  (?=[0-9](?![0-9]))", " ", text)
    clock = re.search(r"(?<![0-9])[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?([.,][0-9]{1,9})?( ?[AaPp][Mm])?(?![0-9:])", text)
    clock = clock or re.search(r"((?<=[0-9]T)|(?<=[0-9]{8}[_ -]))([0-9]{2}){2,3}(?![0-9])", text)
    before, after, of_clock = text, "", ""
    if clock:
        before, after = text[: clock.start()], text[clock.end() :]
        of_clock = _form_of_clock(clock[0])
        after = re.sub("^( ?)(Z|UTC|GMT|[+-][0-9]{2}(:?[0-9]{2})?)(?![0-9])", r"\1%z", after)
    parts = f"{before}\0{after}"
    parts = re.sub(_WEEKDAY + r"(?=[ ,.])", "%a", parts, count=1)
    parts = re.sub(f"(?<![a-zA-Z%]){_MONTH}", "%b", parts, count=1)
    parts = re.sub(r"(?<![0-9])[0-9]{8}(?![0-9])", "%Y%m%d", parts)
    numbers = re.findall("[0-9]+", parts)
    if re.search("[a-zA-Z]", re.sub("%[a-zA-Z]|T(?=\0)| at ", "", parts)):
        return  # No form fits a text with words that are no names of months or days.
    for codes in [[]] if not numbers and "%d" in parts else _date_codes(numbers, "%b" in parts, is_named, bool(clock)):
        of_each = iter(codes)
        form = re.sub("[0-9]+", lambda _: next(of_each), parts)  # noqa: B023
        yield form.replace("\0", of_clock)


def _form_of_clock(clock: str) -> str:
    if clock.isdigit():
        return "%H%M%S"[: len(clock)]
    half = re.search(" ?[AaPp][Mm]$", clock)
    fraction = re.search("[.,](?=[0-9])", clock)
    form = ":".join(("%I" if half else "%H", "%M", "%S")[: clock.count(":") + 1])
    return form + (f"{fraction[0]}%f" if fraction else "") + (" " * half[0].startswith(" ") + "%p" if half else "")


def _date_codes(numbers: Sequence[str], has_month: bool, is_named: bool, has_clock: bool) -> Iterator[list[str]]:
    """Yield the possible orders of year, month, day and hour for the numbers that occur in a date.

    Each order is a list with one % code for each of `numbers`, the digits that were found in a text. A year of two
    digits is only accepted if the month is written as a name (`has_month`), if a clock such as 12:30 follows the date
    (`has_clock`), or if the column is named like a time (`is_named`).
    """
    for order in _WITH_MONTH if has_month else _WITHOUT_MONTH if has_clock else _WITHOUT_MONTH + _WITH_HOUR:
        pairs = [*zip(order, map(len, numbers), strict=False)]
        fits = len(order) == len(numbers) and all(size == 4 if code == "Y" else size <= 2 for code, size in pairs)
        if fits and ("Y" in order or has_month or is_named or has_clock):
            yield [f"%{code}" for code in order]


def _order_of_date(form: str) -> str:
    """Return a remark that says which of day, month and year comes first in dates of a form.

    Return "" if the order cannot be mistaken, that is, if the form starts with a year of four digits or writes the
    month as a name. In all other forms, the numbers of a date may fit another order of day, month and year too.
    """
    first, *others = re.findall("%[dmyY]", form) or [""]
    word = {"%d": "day", "%m": "month", "%y": "year"}.get(first)
    return f"; the {word} is first: {form}" if word and len(others) == 2 else ""


def _mixed_times(column: Column) -> str:
    """Return a remark if a column has times without a date, times in several forms, or names of time zones.

    Otherwise return "".
    """
    if column.all_match(_TIME_OF_DAY):
        return "; times of day: join them with their dates, as 2024-05-07T22:08:37, to have a timestamp"
    if not all(map(_LIKE_A_MOMENT.fullmatch, itertools.islice(column.values, _FEW_TIMES))):
        return ""
    return "; times of several forms or zones: write all alike, as 2024-05-07T22:08:37+02:00, to have a timestamp"
