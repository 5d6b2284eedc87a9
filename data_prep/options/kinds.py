"""Define the kinds of columns that a log may have, such as string or float, and the forms of written timestamps.

A time is written as a number since 1970, in ISO 8601, or in a form with codes such as %Y.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

Kind = Literal[
    "label", "integer", "float", "timestamp", "boolean", "hex32", "string", "list", "vector", "weight", "id", "ignored"
]

_INTEGERS = tuple(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
_NUMBERS = ("BOOL", *_INTEGERS, "FP32", "FP64")


SECONDS, ISO = "seconds", "iso"
# Units of timestamps that are written as numbers since 1970. A unit is 10 ** x milliseconds, where x is the value given
# here.
UNITS = {SECONDS: 3, "milliseconds": 0, "microseconds": -3, "nanoseconds": -6}
# Times that are likely in logs, in seconds since 1970: the years 1989 to 2099. If a number is such a time in a coarser
# unit than the unit of its column, its line is rejected: in the unit of the column the number would be a time of early
# 1970, while seconds are often written by mistake where milliseconds are expected.
LIKELY_SECONDS = range(600_000_000, 4_100_000_000)
MONTHS: tuple[str, ...] = ("january", "february", "march", "april", "may", "june", "july")
MONTHS += ("august", "september", "october", "november", "december")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# Regular expressions for the names of months and weekdays, which may be shortened to three letters.
_NAMES = {
    code: "(?i:" + "|".join(f"{name[:3]}(?:{name[3:]})?+" for name in names) + ")"
    for code, names in (("b", MONTHS), ("a", WEEKDAYS))
}
_ZONE = "(?:Z|UTC|GMT|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?+)"
# Regular expression for each code in the forms of times, such as Y for %Y. `time_pattern` also lets some codes match
# one digit less.
TIME_CODES = {"Y": "[0-9]{4}", "y": "[0-9]{2}", "f": "[0-9]{1,9}+", **dict.fromkeys("mdHIMS", "[0-9]{2}")}
TIME_CODES |= {**_NAMES, "p": "[aApP][mM]", "z": _ZONE}
_WITHOUT_ZERO = "(?:[0-9]{1,2}+| [0-9])"
# Matches a part of a form such as %Y-%m-%d that stands for digits in the written time: a digit itself, or the code of a
# number such as %Y.
_DIGITS = "[0-9]|%[^abpz]"


@dataclass(frozen=True)
class ColumnKind:
    """The properties of one kind of column of a log. The defaults are those of a kind whose cells are text.

    In the comments, a "table" is a Parquet file, JSON file or data frame, whose columns have types.
    """

    # Role of the column as an input of the model, or "" if the model does not see it.
    role: Literal["", "numeric", "categorical", "vector"] = ""
    # Array of the C structure LogKernelsRows to which the native parser writes the cells. It is "" for label and
    # weight, which have arrays of their own, and for ignored columns.
    array: Literal["", "integers", "values", "floats", "times", "strings"] = ""
    native: str = ""  # Name of the kind in the C enum LogKernelsKind, or "" if it has the same name there.
    # The reason that is recorded for a line that is rejected because of a bad cell of this kind.
    reason: str = "categorical"
    # Texts that booleans of a table are converted to, or () if a table must not have booleans in such a column.
    booleans: tuple[str, ...] = ("1", "0")
    has_hex_digits: bool = False  # True if whole numbers of a table are converted to eight hex digits.
    # True if two numbers that differ in any digit are different values, as with ids. Reading must then not round
    # numbers.
    is_exact: bool = False
    keeps_zeros: bool = False  # True if decimals of a table keep trailing zeros, as in 1.50.
    # Further types that a column of a table may have, besides text and numbers: "times" (all types of times), "moments"
    # (only types with a date), "lists", or "vectors" (lists of numbers).
    arrow: tuple[str, ...] = ()
    value: Callable[[str], Any] = str  # Function that converts a cell that is not missing to a Python value.
    # Type of the column's tensor that the service declares in the Open Inference Protocol (V2).
    datatype: str = "BYTES"
    # Types that the column's tensor may have in a request in the Open Inference Protocol.
    datatypes: tuple[str, ...] = ("BYTES", *_NUMBERS)
    # Function that makes a valid cell from any number, for rows made up to test an exported model. If the values of the
    # kind are integers, the cell stands for this number.
    made_up: Callable[[int], str] = "outside-{}".format
    # JSON schema of the column's value in a request for scores. If the kind has `booleans`, true and false are accepted
    # too. A list column accepts an array of such values. Every kind accepts texts, which are read like cells of a line.
    json_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": ("string", "number", "null")})


KINDS: dict[Kind, ColumnKind] = {
    "label": ColumnKind(reason="label"),
    "integer": ColumnKind(
        "numeric",
        "integers",
        reason="integer",
        value=int,
        datatype="FP64",
        json_schema={"type": ("string", "integer", "null"), "minimum": -(2**63), "maximum": 2**63 - 1},
    ),
    "float": ColumnKind("numeric", "floats", reason="float", value=float, datatype="FP64"),
    "timestamp": ColumnKind("numeric", "times", reason="timestamp", booleans=(), arrow=("moments",)),
    "boolean": ColumnKind(
        "categorical",
        "values",
        datatype="BOOL",
        made_up=lambda number: ("0", "1")[number % 2],
    ),
    "hex32": ColumnKind(
        "categorical",
        "values",
        booleans=(),
        has_hex_digits=True,
        is_exact=True,
        datatypes=("BYTES", "INT32", "UINT32", "INT64"),  # Other types cannot be written as eight hex digits.
        made_up="{:08x}".format,
        json_schema={"type": ("string", "integer", "null"), "minimum": -(2**31), "maximum": 2**32 - 1},
    ),
    "string": ColumnKind(
        "categorical",
        "strings",
        is_exact=True,
        keeps_zeros=True,
        arrow=("times",),
    ),
    "list": ColumnKind("categorical", "strings", native="string", is_exact=True, arrow=("lists",)),
    "vector": ColumnKind(
        "vector",
        "strings",
        native="id",  # The native parser only finds the cells. `parse.parse_vectors` parses their numbers.
        reason="vector",
        booleans=(),
        arrow=("vectors",),
        datatype="FP32",
        datatypes=("BYTES", "FP16", "FP32", "FP64"),
        json_schema={"type": ("array", "string", "null"), "items": {"type": "number"}},
    ),
    "weight": ColumnKind(reason="weight"),
    "id": ColumnKind(array="strings", is_exact=True),
    "ignored": ColumnKind(),
}
NUMERIC_KINDS: tuple[Kind, ...] = tuple(name for name, kind in KINDS.items() if kind.role == "numeric")
_CATEGORICAL = {name: kind for name, kind in KINDS.items() if kind.role == "categorical"}
TEXT_KINDS: tuple[Kind, ...] = tuple(name for name, kind in _CATEGORICAL.items() if kind.array == "strings")
VALUE_KINDS: tuple[Kind, ...] = tuple(name for name, kind in _CATEGORICAL.items() if kind.array == "values")
# Kinds of the columns that are inputs of a model. Such columns are called fields.
FIELD_KINDS: tuple[Kind, ...] = tuple(name for name, kind in KINDS.items() if kind.role)


def time_range(form: str) -> tuple[int, int]:
    """Return the first and the last time that a form such as %Y-%m-%d can express, in milliseconds since 1970.

    The times are the ends of the years 1 to 9999, or 1969 to 2068 for a form with a year of two digits.
    """
    return (-31_536_000_000, 3_124_223_999_999) if "%y" in form else (-62_135_596_800_000, 253_402_300_799_999)


def has_zone(form: str) -> bool:
    """Return True if times in the form `form` are numbers in UTC, or may contain a time zone."""
    return form == ISO or form in UNITS or "%z" in form


@functools.lru_cache(maxsize=64)
def time_pattern(form: str) -> re.Pattern[bytes]:
    """Return a regular expression for cells with times in the form `form`, which must not be a unit such as seconds.

    Each code becomes a group with its name. A code of two digits also matches one digit, or a blank and a digit, unless
    a part of the form that stands for digits is next to it. Therefore 1/2/2014 matches a form with slashes, but a form
    without them needs all digits, as in 20140102. The fraction in %S.%f, %S,%f or %S%f may be missing, together with
    its point or comma.
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
    """Return a time, given in milliseconds since 1970 (UTC), as the text of a cell in a form such as %Y-%m-%d.

    If the form cannot express the time, return a text that the parser rejects.
    """
    if form in UNITS:
        power = UNITS[form]
        return str(milliseconds * 10**-power if power < 0 else milliseconds // 10**power)
    first, last = time_range(form)
    if not first <= milliseconds <= last:
        return f"{milliseconds} ms"
    moment = datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)
    form = "%Y-%m-%d %H:%M:%S.%fZ" if form == ISO else form
    # The codes for years and for names of months and days are replaced before strftime is called, because strftime
    # writes names in the language of the machine, and years before 1000 without leading zeros.
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
