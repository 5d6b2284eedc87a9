"""Describe the format of a raw log: its columns, in the order of the file, and the meaning of its cells.

The default is the format of Criteo's log. Each file in `configs/data/` describes one data set, with the fields of
`LogFormat` as keys. In the settings of a run, these fields are in the section `prepare.data`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from data_prep.options.kinds import FIELD_KINDS, KINDS, NUMERIC_KINDS, SECONDS, TEXT_KINDS, VALUE_KINDS, Kind

TimeFeature = Literal["hour", "weekday", "age"]
# Features that are derived from a timestamp column, each with the suffix that its field's name has after the name of
# the column.
TIME_FEATURES: dict[TimeFeature, str] = {"hour": "_hour", "weekday": "_weekday", "age": "_age_days"}
AGE = TIME_FEATURES["age"]
RELATIONS = (">=", "<=", "==", ">", "<")
RULE = re.compile(rf"\s*({'|'.join(RELATIONS)})\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{{1,2}})?)\s*")
# Pairs of texts that stand for true and false in logs.
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
# Value of the setting `clicked` or `not_clicked` that stands for all cells that the other of the two does not list.
REST = "rest"
MAX_WIDTH = 65_536  # Upper bound of a vector's `width`.
MAX_LIST_LENGTH = 1_000  # Upper bound of a list's `max_length`. Every row takes memory for `max_length` ids.


def _criteo_columns() -> dict[str, Kind]:
    integers: dict[str, Kind] = {f"I{number}": "integer" for number in range(1, 14)}
    categories: dict[str, Kind] = {f"C{number}": "hex32" for number in range(1, 27)}
    return {"label": "label", **integers, **categories}


@dataclass(frozen=True)
class ListForm:
    """How the cells of a column of kind list are written, and how many of their values are used."""

    separator: str = "|"  # The character between the values of a cell.
    # The maximum number of values that are used of a cell. If a cell has more values, the last ones are left out.
    max_length: int = 20
    # How the model combines the embedding rows of a list's values: it takes their mean or their sum.
    pool: Literal["mean", "sum"] = "mean"


@dataclass(frozen=True)
class VectorForm:
    """How many numbers the cells of a column of kind vector have, and how these numbers are scaled."""

    width: int = 0  # The number of components of every vector, from 1 to 65536. It must be given.
    # The scaling of the components. standardize: (x - mean) / standard deviation of each component over the training
    # rows, at most ±10. norm: each vector is divided by its Euclidean length. none: the components stay as they are.
    scale: Literal["standardize", "norm", "none"] = "standardize"


def _of_kind(*kinds: Kind) -> functools.cached_property[tuple[str, ...]]:
    """Return a cached property of `LogFormat`: the names of the columns that have one of the given kinds."""
    return functools.cached_property(lambda log_format: log_format.columns_of_kind(*kinds))


@dataclass(frozen=True)
class LogFormat:
    """The format of a log of text lines, or of a log of tables, such as Parquet or JSON files.

    The columns of text lines are found by their places in the line, and the columns of tables by their names.
    """

    # The columns of the log with their kinds, in the order of the file. docs/data_format.md describes the kinds.
    columns: dict[str, Kind] = field(default_factory=_criteo_columns)
    separator: str = "\t"  # The character between the cells of a line.
    # true: the first line of every file has the names of the columns. false: it has the first row.
    header: bool = False
    # Which columns a header may have. refused: exactly the described columns, in this order. ignored: the described
    # columns and further ones, in any order. This needs header: true.
    others: Literal["refused", "ignored"] = "refused"
    # true: cells may be in double quotes, as in RFC 4180, but cannot contain a line end. false: a double quote is a
    # character like any other.
    quotes: bool = False
    # true: blanks around a cell, around its quotes and around the values of a list are removed. false: such blanks are
    # part of the cell.
    trim: bool = False
    # The decimal point in floats, in weights, and in labels if clicked is a rule. With ",", 0,5 and 0.5 are the same
    # number. With ".", 0,5 is not a number.
    decimal: Literal[".", ","] = "."
    missing: tuple[str, ...] = ()  # Cells that mean a missing value, in addition to the empty cell.
    # Cells of the label that mean a click: a list of cells, a rule for numbers such as ">= 4" (or >, <, <=, ==), or the
    # word rest. The word rest stands for every cell that is neither missing nor listed in not_clicked.
    clicked: tuple[str, ...] | str = ("1",)
    # Cells of the label that mean no click: a list of cells, or the word rest. The word rest stands for every cell that
    # is neither missing nor listed in clicked. If clicked is a rule, leave this setting out: a number for which the
    # rule is false means no click.
    not_clicked: tuple[str, ...] | str = ("0",)
    # required: a row without a label is rejected. optional: a row without a label is kept with weight 0.
    label: Literal["required", "optional"] = "required"
    # For each column of kind list: its separator, its max_length and its pool. A list column that is not named here has
    # their default values.
    lists: dict[str, ListForm] = field(default_factory=dict)
    # For each column of kind vector: the number of components of its vectors, and how they are scaled.
    vectors: dict[str, VectorForm] = field(default_factory=dict)
    # For a column of kind string or list: the name of another such column, whose vocabulary it uses in place of one of
    # its own. A value then has the same id in both columns.
    shares: dict[str, str] = field(default_factory=dict)
    # For a timestamp column: how its times are written. seconds, milliseconds, microseconds or nanoseconds: as a number
    # since 1970. iso: as in ISO 8601. Any other text is a form such as "%Y-%m-%d %H:%M". The default is seconds.
    timestamps: dict[str, str] = field(default_factory=dict)
    # For a timestamp column: the time zone, such as Europe/Berlin, in which its cells without a zone are read, and in
    # which its hours and weekdays are computed. The default is UTC for both.
    timezone: dict[str, str] = field(default_factory=dict)
    # For a timestamp column: the fields that the model gets from it, by default [hour, weekday]. hour and weekday: the
    # categorical fields NAME_hour and NAME_weekday. age: the numeric field NAME_age_days, the number of days from the
    # row's time to the newest time of a training row (0 for later times). []: no field. The column then only orders the
    # rows.
    features: dict[str, tuple[TimeFeature, ...]] = field(default_factory=dict)
    # For a string or list column that is boolean in Parquet or JSON: the texts into which true and false are converted,
    # such as [TRUE, FALSE]. The default is the texts that are in the vocabulary of another folder, if the preparation
    # uses one, and 1 and 0 otherwise.
    booleans: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # String and list columns in which whole numbers are converted to the form 7.0. In other columns, they are converted
    # to their form in the vocabulary of another folder, if the preparation uses one, and stay as they are in the log
    # otherwise.
    point_zero: tuple[str, ...] = ()
    # For a field of kind integer, float, boolean, hex32 or string: the value that it has in all rows to score, whatever
    # the row itself has. An example is {position: 1} for the place of an ad on its page. Training and evaluation use
    # the values of the log.
    serve_as: dict[str, str] = field(default_factory=dict)

    # Text for error messages that says where the names of the expected columns come from.
    origin = "prepare.data.columns (--data FILE, which describe proposes)"
    key_fields = _of_kind("id")
    numeric_fields = _of_kind(*NUMERIC_KINDS)
    sized_fields = _of_kind("integer", "float")  # Numeric fields of which a histogram is counted: all except times.
    integer_fields = _of_kind("integer")
    float_fields = _of_kind("float")
    time_fields = _of_kind("timestamp")
    hex_fields = _of_kind("hex32")
    value_fields = _of_kind(*VALUE_KINDS)  # Categorical fields whose values are integers.
    text_fields = _of_kind(*TEXT_KINDS)
    list_fields = _of_kind("list")
    vector_fields = _of_kind("vector")
    categorical_fields = _of_kind(*VALUE_KINDS, *TEXT_KINDS)

    # A generated hash would fail, because `columns` is a dictionary.
    def __hash__(self) -> int:
        return hash((*self.columns, self.separator))

    def __post_init__(self) -> None:
        for name in ("clicked", "not_clicked"):
            cells = getattr(self, name)
            is_rule = name == "clicked" and cells[:1] in tuple("<>=")
            # A text that is neither "rest" nor a rule means a list of one cell.
            if isinstance(cells, str) and cells != REST and not is_rule:
                object.__setattr__(self, name, (cells,))

    def texts_of_booleans(self, name: str) -> tuple[str, ...]:
        """Return the texts that stand for true and false in the column `name`, or () if they are not known."""
        if self.columns[name] == "label" and not self.click_rule:
            return self._labels_of_booleans()
        return self.booleans.get(name, KINDS[self.columns[name]].booleans)

    def _labels_of_booleans(self) -> tuple[str, ...]:
        clicked, not_clicked, rest = self.label_cells
        # A pair of texts for true and false is only used if the settings `clicked` and `not_clicked` list both texts.
        # One of the two suffices if all cells that are not listed have the opposite meaning, or if an empty cell means
        # no click.
        pairs, num_known = (*BOOLEANS, ("1", "-1")), 1 if rest or "" in not_clicked else 2
        return next((pair for pair in pairs if len({*pair} & {*clicked, *not_clicked}) >= num_known), ())

    def parts_of_time(self, name: str) -> list[Literal["hour", "weekday"]]:
        """Return which categorical features (hour, weekday) are derived from the timestamp column `name`."""
        features = self.features.get(name, ("hour", "weekday"))
        return [part for part in ("hour", "weekday") if part in features]

    def has_age(self, name: str) -> bool:
        """Return True if the age of the times in the timestamp column `name` is a numeric field of the model."""
        return "age" in self.features.get(name, ())

    def list_form(self, name: str) -> ListForm:
        """Return how the cells of the list column `name` are written: its entry in `lists`, or the defaults."""
        return self.lists.get(name, ListForm())

    def columns_of_kind(self, *kinds: Kind) -> tuple[str, ...]:
        """Return the names of the columns that have one of these kinds, in the order of the file."""
        return tuple(name for name, kind in self.columns.items() if kind in kinds)

    @functools.cached_property
    def weight(self) -> str:
        """Name of the column of kind weight, or "" if there is none."""
        return "".join(self.columns_of_kind("weight"))

    @property
    def label_column(self) -> str:
        return self.columns_of_kind("label")[0]

    @functools.cached_property
    def click_rule(self) -> tuple[str, float] | None:
        """The rule that says which numbers in the label column are clicks, such as (">=", 4.0), or None.

        It is None if `clicked` is not a rule.
        """
        is_rule = isinstance(self.clicked, str) and self.clicked != REST
        match = RULE.fullmatch(self.clicked) if is_rule else None  # type: ignore[arg-type]
        return (match[1], float(match[2])) if match else None

    @property
    def any_label(self) -> str:
        """A valid cell of the label column, which is used for rows whose label does not matter."""
        if self.click_rule:
            return f"{self.click_rule[1]:g}"
        return self.clicked[0] if self.not_clicked == REST else self.not_clicked[0]

    @property
    def label_in_words(self) -> str:
        """Text that describes the label in messages: the name of its column, and the cells that mean a click."""
        if self.click_rule:
            words = f"a number {self.clicked}"
        elif self.clicked == REST:
            words = f"any cell but {listed(self.not_clicked)}"
        else:
            words = f"{listed(self.clicked)} (no click: {listed(self.not_clicked)})"
        return f"label {self.label_column}, a click is {words}"

    @property
    def label_cells(self) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """The label cells that mean a click, those that mean no click, and what all other cells mean.

        The last item is "clicked", "not_clicked", or "" if there may not be other cells. If `clicked` is a rule, all
        three are empty.
        """
        if self.click_rule:
            return (), (), ""
        by_name = {"clicked": self.clicked, "not_clicked": self.not_clicked}
        rest = next((name for name, cells in by_name.items() if cells == REST), "")
        clicked, not_clicked = (() if cells == REST else tuple(cells) for cells in by_name.values())
        return clicked, not_clicked, rest

    @functools.cached_property
    def blank_row(self) -> dict[str, str]:
        """The cells, by name of the column, of a valid row in which all fields are missing."""
        return {name: {"label": self.any_label, "weight": "1"}.get(kind, "") for name, kind in self.columns.items()}

    @functools.cached_property
    def weight_source(self) -> str:
        """Name of the column that decides the weights of rows, or "" if rows have no weights.

        This is the column of kind weight. Without such a column, it is the label column if the label is optional,
        because a row without a label has weight 0.
        """
        return self.weight or self.label_column * (self.label == "optional")

    def time_form(self, name: str) -> str:
        """Return the unit or the form in which the timestamp column `name` writes its times."""
        return self.timestamps.get(name, SECONDS)

    @functools.cached_property
    def fields(self) -> list[tuple[str, Kind]]:
        """Names and kinds of all fields, in the order of the file. Fields are the columns that a model sees.

        Two logs can use the same vocabulary if their fields are equal.
        """
        return [(name, kind) for name, kind in self.columns.items() if kind in FIELD_KINDS]

    @property
    def description(self) -> str:
        """Description of the log's lines in words, for messages: number and names of the columns, and the separator."""
        between = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "blanks"}.get(
            self.separator, repr(self.separator)
        )
        names = list(self.columns)
        shown = ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, … {names[-1]}"
        return f"{len(names)} columns ({shown}) between {between}"


@dataclass(frozen=True)
class FormatToScore(LogFormat):
    """The format of a log of rows to score, which may lack the label and other columns that do not affect scores."""

    # Names of columns that are copied to the output beside the scores, even if the format does not describe them.
    keep: tuple[str, ...] = ()

    origin = "the model"
    # The hash is set here, because the decorator would otherwise generate one that fails for `columns`, a dictionary.
    __hash__ = LogFormat.__hash__

    @classmethod
    def of(cls, log_format: LogFormat, **changes: Any) -> FormatToScore:
        """Return `log_format` as a `FormatToScore`. `changes` has new values of some attributes, by name.

        The new format is not checked by `checked_format`.
        """
        return cls(**{field.name: getattr(log_format, field.name) for field in fields(log_format)} | changes)


def listed(cells: tuple[str, ...] | str) -> str:
    """Return the value of `clicked` or `not_clicked` as text for a message.

    Cells are quoted and separated by commas. A rule or "rest" is returned unchanged.
    """
    return cells if isinstance(cells, str) else ", ".join(map(repr, cells))


# Reasons to reject a line. The index of a reason is its code in the parser. Code 0 means that the line is good. Only
# rows to score can be rejected as "inexact id".
REASONS = (
    *("", "too long", "columns", "label", "integer", "categorical", "quotes", "weight", "float", "timestamp"),
    *("inexact id", "vector"),
)
TOO_LONG, COLUMNS, LABEL, INTEGER, CATEGORICAL, QUOTES, WEIGHT, FLOAT, TIMESTAMP, INEXACT_ID, VECTOR = range(1, 12)
