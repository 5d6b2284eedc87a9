"""Define the kinds of a log's columns, and for each kind the properties that all stages need."""

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
