"""The kinds of a log's columns, and what every stage has to know of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "label", "integer", "float", "timestamp", "boolean", "hex32", "string", "list", "weight", "id", "ignored"
]

_ANY_VALUE = {"type": ["string", "number", "null"]}
_INTEGERS = tuple(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
_NUMBERS = ("BOOL", *_INTEGERS, "FP32", "FP64")


@dataclass(frozen=True)
class ColumnKind:
    """All that is known of a kind of column. The defaults are those of text."""

    role: Literal["", "numeric", "categorical"] = ""  # of the field that it is; "" for a column that is none
    # The array that the native parser writes its cells into, of those of LogKernelsRows: "" if it has one of its own.
    array: Literal["", "integers", "values", "floats", "times", "strings"] = ""
    native: str = ""  # its name in LogKernelsKind; "" for its own name
    reason: str = "categorical"  # to reject a line for a cell that is no good one
    booleans: tuple[str, ...] = ("1", "0")  # the cells of true and false; () if a table must not hold them
    has_hex_digits: bool = False  # whole numbers of a table are written as eight hex digits
    is_exact: bool = False  # another number in its digits is another value, as of an id
    keeps_zeros: bool = False  # decimals of a table keep the zeros at their end, as 1.50 does
    arrow: tuple[str, ...] = ()  # of a table besides texts and numbers: times (all), moments (with a date), lists
    value: Callable[[str], Any] = str  # a cell that is not missing, as Python has it
    datatype: str = "BYTES"  # of its tensor in a V2 request
    datatypes: tuple[str, ...] = ("BYTES", *_NUMBERS)  # of tensors that are taken
    made_up: Callable[[int], str] = "outside-{}".format  # a cell from any number; if values are numbers, that value's
    json_schema: Mapping[str, Any] = field(default_factory=_ANY_VALUE.copy)  # of a value in a JSON request


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
        datatypes=("BYTES", "INT32", "UINT32", "INT64"),  # others have no form of eight hex digits
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
FIELD_KINDS: tuple[Kind, ...] = tuple(name for name, kind in KINDS.items() if kind.role)  # that a model sees
