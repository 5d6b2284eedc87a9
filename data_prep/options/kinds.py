"""Describe the kinds of columns of a log, and the forms in which a timestamp is written.

A time is written as a number since 1970, as ISO 8601, or in a form with codes such as %Y.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

Kind = Literal[
    "label", "integer", "float", "timestamp", "boolean", "hex32", "string", "list", "weight", "id", "ignored"
]

_ANY_VALUE = {"type": ["string", "number", "null"]}
_INTEGERS = tuple(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
_NUMBERS = ("BOOL", *_INTEGERS, "FP32", "FP64")


SECONDS, ISO = "seconds", "iso"
# Units of a number since 1970. A unit is 10 to the given power milliseconds.
UNITS = {SECONDS: 3, "milliseconds": 0, "microseconds": -3, "nanoseconds": -6}
# Times that are likely in logs, in seconds since 1970: the years 1989 to 2099. If a number is such a time in a coarser
# unit than that of its column, its line is rejected. In the column's unit the number would be a time of early 1970,
# while seconds in place of milliseconds are a common slip.
LIKELY_SECONDS = range(600_000_000, 4_100_000_000)
MONTHS: tuple[str, ...] = ("january", "february", "march", "april", "may", "june", "july")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# Regular expressions of the names of months and weekdays, which may be cut to three letters.
_NAMES = {
    code: "(?i:" + "|".join(f"{name[:3]}(?:{name[3:]})?+" for name in names) + ")"
    for code, names in (("b", MONTHS), ("a", WEEKDAYS))
}
_ZONE = "(?:Z|UTC|GMT|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?+)"
# Regular expression of each code of a form. `time_pattern` also allows some codes to have a digit less.
TIME_CODES = {"Y": "[0-9]{4}", "y": "[0-9]{2}", "f": "[0-9]{1,9}+", **dict.fromkeys("mdHIMS", "[0-9]{2}")}
_WITHOUT_ZERO = "(?:[0-9]{1,2}+| [0-9])"
_DIGITS = "[0-9]|%[^abpz]"  # Matches an element of a form that stands for digits: a digit or a code of numbers.


@dataclass(frozen=True)
class ColumnKind:
    """The properties of a kind of column. The defaults are those of a kind whose cells are text.

    A "table" is a Parquet file, JSON file or data frame, whose columns have types.
    """

    # Role of the column as an input of the model, or "" if the model does not see it.
    role: Literal["", "numeric", "categorical"] = ""
    # Array of LogKernelsRows that the native parser writes the cells to, or "" if the kind has its own array.
    array: Literal["", "integers", "values", "floats", "times", "strings"] = ""
    native: str = ""  # Name of the kind in LogKernelsKind, or "" if it is the same name.
    reason: str = "categorical"  # Reason that is recorded if a bad cell of this kind rejects a line.
    # Cells that stand for true and false in a table, or () if a table must not have booleans in such a column.
    booleans: tuple[str, ...] = ("1", "0")
    has_hex_digits: bool = False  # Whole numbers of a table are written as eight hex digits.
    is_exact: bool = False  # Numbers that differ in any digit are different values, as in ids. No digit may be lost.
    keeps_zeros: bool = False  # Decimals of a table keep trailing zeros, as in 1.50.
    # Types that a table may have besides text and numbers: times (all types), moments (types with a date), lists.
    arrow: tuple[str, ...] = ()
    value: Callable[[str], Any] = str  # Converts a cell that is not missing to a Python value.
    datatype: str = "BYTES"  # Type that a V2 inference service declares for the column's tensor.
    datatypes: tuple[str, ...] = ("BYTES", *_NUMBERS)  # Types of tensors that a V2 request may have.
    # Makes a cell from any number. If the values of the kind are integers, the cell stands for this number.
    made_up: Callable[[int], str] = "outside-{}".format
    # JSON schema of the column's value in a request.
    json_schema: Mapping[str, Any] = field(default_factory=_ANY_VALUE.copy)


KINDS: dict[Kind, ColumnKind] = {
    "label": ColumnKind(reason="label"),
    "integer": ColumnKind(
        "numeric",
        "integers",
        reason="integer",
        value=int,
        datatype="FP64",
        json_schema={"type": ["integer", "null"], "minimum": -(2**63), "maximum": 2**63 - 1},
    ),
    "float": ColumnKind(
        "numeric", "floats", reason="float", value=float, datatype="FP64", json_schema={"type": ["number", "null"]}
    ),
    "timestamp": ColumnKind("numeric", "times", reason="timestamp", booleans=(), arrow=("moments",)),
    "boolean": ColumnKind(
        "categorical",
        "values",
        datatype="BOOL",
        made_up=lambda number: ("0", "1")[number % 2],
        json_schema={"type": ["boolean", "null"]},
    ),
    "hex32": ColumnKind(
        "categorical",
        "values",
        booleans=(),
        has_hex_digits=True,
        is_exact=True,
        datatypes=("BYTES", "INT32", "UINT32", "INT64"),  # Other types cannot be written as eight hex digits.
        made_up="{:08x}".format,
        json_schema={"type": ["string", "null"], "pattern": "^[0-9a-f]{8}$"},
    ),
    "string": ColumnKind(
        "categorical",
        "strings",
        is_exact=True,
        keeps_zeros=True,
        arrow=("times",),
        datatypes=("BYTES", *_INTEGERS),
        json_schema={"type": ["string", "null"], "pattern": "^[A-Za-z0-9 _.:/-]*$"},
    ),
    "list": ColumnKind("categorical", "strings", native="string", is_exact=True, arrow=("lists",)),
    "weight": ColumnKind(reason="weight"),
    "id": ColumnKind(array="strings", is_exact=True),
    "ignored": ColumnKind(),
}
NUMERIC_KINDS: tuple[Kind, ...] = tuple(name for name, kind in KINDS.items() if kind.role == "numeric")
_CATEGORICAL = {name: kind for name, kind in KINDS.items() if kind.role == "categorical"}
TEXT_KINDS: tuple[Kind, ...] = tuple(name for name, kind in _CATEGORICAL.items() if kind.array == "strings")
VALUE_KINDS: tuple[Kind, ...] = tuple(name for name, kind in _CATEGORICAL.items() if kind.array == "values")
FIELD_KINDS: tuple[Kind, ...] = tuple(name for name, kind in KINDS.items() if kind.role)  # Kinds that a model sees.


MONTHS += ("august", "september", "october", "november", "december")
TIME_CODES |= {**_NAMES, "p": "[aApP][mM]", "z": _ZONE}


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
