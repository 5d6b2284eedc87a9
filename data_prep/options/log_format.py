"""Format of a raw log: its columns in the file's order, and the meaning of its cells. The default is Criteo's.

`configs/data/*.yaml` describe data sets by these keys. In a run's settings they are `prepare.data`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from data_prep.options.kinds import FIELD_KINDS, KINDS, NUMERIC_KINDS, TEXT_KINDS, VALUE_KINDS, Kind
from data_prep.options.time_forms import SECONDS

TimeFeature = Literal["hour", "weekday", "age"]
TIME_FEATURES: dict[TimeFeature, str] = {"hour": "_hour", "weekday": "_weekday", "age": "_age_days"}  # ends of names
AGE = TIME_FEATURES["age"]
RELATIONS = (">=", "<=", "==", ">", "<")
RULE = re.compile(rf"\s*({'|'.join(RELATIONS)})\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{{1,2}})?)\s*")
# True and false, as logs have them.
BOOLEANS: tuple[tuple[str, str], ...] = (
    ("true", "false"),
    ("True", "False"),
    ("TRUE", "FALSE"),
    ("yes", "no"),
    ("Yes", "No"),
    ("YES", "NO"),
)
BOOLEANS += (("on", "off"), ("On", "Off"), ("ON", "OFF"), ("t", "f"), ("T", "F"), ("y", "n"), ("Y", "N"))
BOOLEANS += (("1", "0"), ("1.0", "0.0"))
NO_BOOLEANS = "nothing says which texts of the log stand for true and false, so give the texts"
INEXACT = (
    "whole numbers so large are not exact as floats, so that several ids become one (a missing cell makes floats of "
    "integers): give integers, of pandas type Int64, or texts"
)
REST = "rest"  # of the label's cells: all that are not the other ones
MAX_LIST_LENGTH = 1_000  # each row has room for as many ids


def _criteo_columns() -> dict[str, Kind]:
    integers: dict[str, Kind] = {f"I{number}": "integer" for number in range(1, 14)}
    categories: dict[str, Kind] = {f"C{number}": "hex32" for number in range(1, 27)}
    return {"label": "label", **integers, **categories}


@dataclass(frozen=True)
class ListForm:
    """A column of kind list: several values in a cell."""

    separator: str = "|"  # The character between the values.
    max_length: int = 20  # The most values of a row. Those after them are left out.
    pool: Literal["mean", "sum"] = "mean"  # How the model joins the embedding rows of the values.


def _of_kind(*kinds: Kind) -> functools.cached_property[tuple[str, ...]]:
    """Return a property of `LogFormat` that is computed once: the columns of these kinds."""
    return functools.cached_property(lambda log_format: log_format.columns_of_kind(*kinds))


@dataclass(frozen=True)
class LogFormat:
    """Format of text lines, or of Parquet files with the same columns by name."""

    # The columns with their kinds, in the file's order. data_format.md describes the kinds.
    columns: dict[str, Kind] = field(default_factory=_criteo_columns)
    separator: str = "\t"  # The character between the cells of a line.
    header: bool = False  # The first line of every file has the names of the columns.
    # refused: the header must have exactly the described columns in this order. ignored: it may have more columns, in
    # any order.
    others: Literal["refused", "ignored"] = "refused"
    quotes: bool = False  # Cells may be in double quotes, as in RFC 4180. They cannot contain a line's end.
    trim: bool = False  # Blanks around a cell, its quotes and a list's value are left out.
    # The decimal point of floats, weights and numbers that a rule compares. With ",", 0,5 and 0.5 are the same number.
    decimal: Literal[".", ","] = "."
    missing: tuple[str, ...] = ()  # Cells that are missing, besides the empty one.
    # Cells of the label that are a click: a list of them, a rule for numbers such as ">= 4" (or >, <, <=, ==), or rest.
    # rest: any cell that is neither missing nor one of not_clicked.
    clicked: tuple[str, ...] | str = ("1",)
    # Cells of the label of a row without a click: a list of them, or rest. With a rule, all other numbers are.
    not_clicked: tuple[str, ...] | str = ("0",)
    label: Literal["required", "optional"] = "required"  # optional: a row may lack the label, and then has weight 0.
    lists: dict[str, ListForm] = field(default_factory=dict)  # The separator and the length of each list column.
    # For a string or list column: the column whose vocabulary it has.
    shares: dict[str, str] = field(default_factory=dict)
    # For each timestamp column: seconds, milliseconds, microseconds or nanoseconds since 1970, iso for ISO 8601, or a
    # form such as "%Y-%m-%d %H:%M". Without it a column is in seconds.
    timestamps: dict[str, str] = field(default_factory=dict)
    # For a timestamp column: the time zone, such as Europe/Berlin, of its hours and weekdays, and of cells that name
    # no zone. Without it both are UTC.
    timezone: dict[str, str] = field(default_factory=dict)
    # For each timestamp column: the fields that it becomes, [hour, weekday] if it is not listed. hour and weekday: the
    # categorical fields NAME_hour and NAME_weekday. age: the numeric field NAME_age_days, days before the newest
    # training row, 0 for later rows. []: the column only orders rows.
    features: dict[str, tuple[TimeFeature, ...]] = field(default_factory=dict)
    # For a string or list column that a table has as booleans: the texts of true and false, such as [TRUE, FALSE].
    # Without it they are those of the vocabulary, and 1 and 0 in a new one.
    booleans: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # String and list columns that have the whole number 7 as 7.0. Without it the vocabulary's values decide.
    point_zero: tuple[str, ...] = ()

    origin = "prepare.data.columns (--data FILE, which describe proposes)"  # of the columns, in errors
    key_fields = _of_kind("id")
    numeric_fields = _of_kind(*NUMERIC_KINDS)
    sized_fields = _of_kind("integer", "float")  # whose numbers are counted by size: all but times
    integer_fields = _of_kind("integer")
    float_fields = _of_kind("float")
    time_fields = _of_kind("timestamp")
    hex_fields = _of_kind("hex32")
    value_fields = _of_kind(*VALUE_KINDS)  # categorical, kept as numbers
    text_fields = _of_kind(*TEXT_KINDS)
    list_fields = _of_kind("list")
    categorical_fields = _of_kind(*VALUE_KINDS, *TEXT_KINDS)

    def __hash__(self) -> int:  # the columns are a dictionary, which has none
        return hash((*self.columns, self.separator))

    def __post_init__(self) -> None:
        for name in ("clicked", "not_clicked"):
            cells = getattr(self, name)
            is_rule = name == "clicked" and cells[:1] in tuple("<>=")
            if isinstance(cells, str) and cells != REST and not is_rule:  # one cell
                object.__setattr__(self, name, (cells,))

    def texts_of_booleans(self, name: str) -> tuple[str, ...]:
        """Return the cells of a column for true and false, or () if they are not known."""
        if self.columns[name] == "label" and not self.click_rule:
            return self._labels_of_booleans()
        return self.booleans.get(name, KINDS[self.columns[name]].booleans)

    def _labels_of_booleans(self) -> tuple[str, ...]:
        clicked, not_clicked, rest = self.label_cells
        pairs, num_known = (*BOOLEANS, ("1", "-1")), 1 if rest or "" in not_clicked else 2  # of a pair's texts
        return next((pair for pair in pairs if len({*pair} & {*clicked, *not_clicked}) >= num_known), ())

    def parts_of_time(self, name: str) -> list[Literal["hour", "weekday"]]:
        """Return the categorical features of a timestamp."""
        features = self.features.get(name, ("hour", "weekday"))
        return [part for part in ("hour", "weekday") if part in features]

    def has_age(self, name: str) -> bool:
        """Return True for a timestamp whose age is a numeric field."""
        return "age" in self.features.get(name, ())

    def list_form(self, name: str) -> ListForm:
        """Return the form of a column of kind list."""
        return self.lists.get(name, ListForm())

    def columns_of_kind(self, *kinds: Kind) -> tuple[str, ...]:
        """Return the columns of these kinds, in the file's order."""
        return tuple(name for name, kind in self.columns.items() if kind in kinds)

    @functools.cached_property
    def weight(self) -> str:
        """Name of the column of weights, or ""."""
        return "".join(self.columns_of_kind("weight"))

    @property
    def label_column(self) -> str:
        return self.columns_of_kind("label")[0]

    @functools.cached_property
    def click_rule(self) -> tuple[str, float] | None:
        """The relation and the number of a rule for the label, or None if clicks are known by their cells."""
        is_rule = isinstance(self.clicked, str) and self.clicked != REST
        match = RULE.fullmatch(self.clicked) if is_rule else None  # type: ignore[arg-type]
        return (match[1], float(match[2])) if match else None

    @property
    def any_label(self) -> str:
        """A cell that is a good label, for rows whose label is not looked at."""
        if self.click_rule:
            return f"{self.click_rule[1]:g}"
        return self.clicked[0] if self.not_clicked == REST else self.not_clicked[0]

    @property
    def label_in_words(self) -> str:
        """The label's column, and which of its cells count as a click."""
        if self.click_rule:
            words = f"a number {self.clicked}"
        elif self.clicked == REST:
            words = f"any cell but {listed(self.not_clicked)}"
        else:
            words = f"{listed(self.clicked)} (no click: {listed(self.not_clicked)})"
        return f"label {self.label_column}, a click is {words}"

    @property
    def label_cells(self) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """The cells of a click and of no click, and which of both the rest is, if one is."""
        if self.click_rule:
            return (), (), ""
        by_name = {"clicked": self.clicked, "not_clicked": self.not_clicked}
        rest = next((name for name, cells in by_name.items() if cells == REST), "")
        clicked, not_clicked = (() if cells == REST else tuple(cells) for cells in by_name.values())
        return clicked, not_clicked, rest

    @functools.cached_property
    def blank_row(self) -> dict[str, str]:
        """The cells of a good row without a value in any field."""
        return {name: {"label": self.any_label, "weight": "1"}.get(kind, "") for name, kind in self.columns.items()}

    @functools.cached_property
    def weight_source(self) -> str:
        """The column that decides the rows' weights: of kind weight, or an optional label. "" if there is none."""
        return self.weight or self.label_column * (self.label == "optional")

    def time_form(self, name: str) -> str:
        """Return how a column of kind timestamp is written."""
        return self.timestamps.get(name, SECONDS)

    @functools.cached_property
    def fields(self) -> list[tuple[str, Kind]]:
        """Names and kinds of all fields. A vocabulary is for these, whatever the format of a log."""
        return [(name, kind) for name, kind in self.columns.items() if kind in FIELD_KINDS]

    @property
    def description(self) -> str:
        """Description of a line: its columns and the separator."""
        between = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "blanks"}.get(
            self.separator, repr(self.separator)
        )
        names = list(self.columns)
        shown = ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, … {names[-1]}"
        return f"{len(names)} columns ({shown}) between {between}"


@dataclass(frozen=True)
class FormatToScore(LogFormat):
    """The format of a log to score: it may lack the label, and other columns that change no score."""

    keep: tuple[str, ...] = ()  # columns that are written beside the scores, described or not

    origin = "the model"
    __hash__ = LogFormat.__hash__  # else the decorator would make one of the dictionaries too

    @classmethod
    def of(cls, log_format: LogFormat, **changes: Any) -> FormatToScore:
        """Return a format with some fields changed, unchecked."""
        return cls(**{field.name: getattr(log_format, field.name) for field in fields(log_format)} | changes)


def listed(cells: tuple[str, ...] | str) -> str:
    """Return cells as a list in words."""
    return cells if isinstance(cells, str) else ", ".join(map(repr, cells))


# Reasons to reject a line, by code. 0 is a kept line.
REASONS = (
    *("", "too long", "columns", "label", "integer", "categorical", "quotes", "weight", "float", "timestamp"),
    "inexact id",  # in rows to score alone
)
TOO_LONG, COLUMNS, LABEL, INTEGER, CATEGORICAL, QUOTES, WEIGHT, FLOAT, TIMESTAMP, INEXACT_ID = range(1, 11)
