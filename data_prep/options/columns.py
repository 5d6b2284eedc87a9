"""Derive the categorical columns of a prepared folder from the columns of the log.

A categorical column has hex values, booleans, text, lists, hours or weekdays of a timestamp, buckets of integers, or a
cross of other columns.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from data_prep.options.kinds import TEXT_KINDS, Kind
from data_prep.options.log_format import TIME_FEATURES, FormatToScore, LogFormat

# Upper bound of the default `max_length`, the number of ids per row, of a cross of several lists. If one of the lists
# has a larger `max_length`, that number is the bound.
USUAL_COMBINATIONS = 100


@dataclass(frozen=True)
class CategoricalColumn:
    """A categorical column of a prepared folder. It has one id per row, or `max_length` ids per row if it is a list."""

    name: str
    kind: Kind | Literal["hour", "weekday", "bucket", "present", "cross"]
    # Index of the column's vocabulary among the text vocabularies (first texts, then crosses), or among the integer
    # vocabularies (hex values and booleans, then features of each timestamp, then buckets).
    place: int
    source: str = ""  # Name of the column of the log from which this column is derived, or "" for a cross.
    cross: tuple[str, ...] = ()  # Names of the columns that are combined in a cross, or () if this column is no cross.
    shares: str = ""  # Name of the column whose vocabulary this column uses, or "" if it has its own vocabulary.
    # True if a row has several values: the column is of kind list, or is a cross with such a column.
    is_list: bool = False
    max_length: int = 1  # Number of ids per row.
    pool: Literal["mean", "sum"] = "mean"  # How the model combines the embedding rows of a list.
    timezone: str = ""  # Time zone by whose clock hours and weekdays are derived, or "" for UTC.

    @functools.cached_property
    def is_text(self) -> bool:
        """True if the values of the column are strings, False if they are integers."""
        return self.kind == "cross" or self.kind in TEXT_KINDS


@dataclass(frozen=True)
class EncodingOptions:
    """The options that decide how a row is encoded. Scoring needs the same options as the preparation.

    `PrepareOptions` describes them. `field_max_length` maps the name of a field to the option `max_length` that the
    setting `fields` gives it.
    """

    data: LogFormat = field(default_factory=LogFormat)
    integer_buckets: bool = False
    crosses: tuple[tuple[str, ...], ...] = ()
    field_max_length: dict[str, int] = field(default_factory=dict)
    kernels: Literal["auto", "native", "numpy"] = "auto"

    # The columns are cached. Otherwise, most of the time to score a single row would be spent in this property.
    @functools.cached_property
    def categorical_columns(self) -> tuple[CategoricalColumn, ...]:
        """All categorical columns, in order: columns of the log, parts of timestamps (hour, weekday), buckets, crosses.

        If there are none, the only column tells whether the first numeric field (or the first vector) of a row is
        present. Raise ValueError if two columns that are not crosses have the same name.
        """
        data = self.data
        own_texts = [name for name in data.text_fields if name not in data.shares]
        values, columns = data.value_fields, []
        for name in data.categorical_fields:
            kind, shares = data.columns[name], data.shares.get(name, "")
            place = values.index(name) if name in values else own_texts.index(shares or name)
            column = CategoricalColumn(name, kind, place, name, shares=shares)
            if kind == "list":
                form = data.list_form(name)
                column = replace(column, is_list=True, max_length=form.max_length, pool=form.pool)
            columns.append(column)
        places = itertools.count(len(values))
        for name in data.time_fields:
            zone = data.timezone.get(name, "")
            columns += [
                CategoricalColumn(f"{name}{TIME_FEATURES[part]}", part, next(places), name, timezone=zone)
                for part in data.parts_of_time(name)
            ]
        if self.integer_buckets:
            integers = data.integer_fields
            columns += [CategoricalColumn(f"{name}_bucket", "bucket", next(places), name) for name in integers]
        # A model needs at least one categorical column.
        if not columns:
            name = (data.numeric_fields + data.vector_fields)[0]
            columns.append(CategoricalColumn(f"{name}_present", "present", next(places), name))
        check_names([column.name for column in columns])
        crossed = [
            _cross([column for column in columns if column.name in parts], parts, place, self.field_max_length)
            for place, parts in enumerate(self.crosses, len(own_texts))
        ]
        return *columns, *crossed

    @functools.cached_property
    def vocabularies(self) -> tuple[CategoricalColumn, ...]:
        """The categorical columns that have a vocabulary of their own.

        Every other categorical column uses the vocabulary of one of these columns.
        """
        return tuple(column for column in self.categorical_columns if not column.shares)

    def without_label(self) -> EncodingOptions:
        """Return a copy of the options with which rows to score are encoded. Such rows may lack the label."""
        return replace(self, data=FormatToScore.of(self.data, label="optional"))


class NumberGroup(NamedTuple):
    """Adjacent categorical columns with integer values that are derived in the same way from columns of the log."""

    kind: str
    timezone: str
    # For each column of the group, the name of the column of the log from which it is derived.
    sources: tuple[str, ...]


def number_groups(columns: Sequence[CategoricalColumn]) -> list[NumberGroup]:
    """Return those of `columns` whose values are integers, in groups of columns that are computed in the same way.

    Only adjacent columns are grouped, so that the order of the columns stays the same.
    """
    numbers = (column for column in columns if not column.is_text)
    alike = itertools.groupby(numbers, lambda column: (column.kind, column.timezone))
    return [NumberGroup(*key, tuple(column.source for column in of_kind)) for key, of_kind in alike]


def cross_name(parts: Sequence[str]) -> str:
    """Return the name of the cross of the columns `parts`, such as C1*C2.

    `kernels.parsed` joins the values of a cross with * too.
    """
    return "*".join(parts)


def _cross(
    crossed: Sequence[CategoricalColumn], parts: tuple[str, ...], place: int, max_lengths: Mapping[str, int]
) -> CategoricalColumn:
    """Return a categorical column: the cross of the columns `crossed`, whose names are `parts`.

    If one of the crossed columns is a list, the cross is a list of the combinations of their values. `max_lengths`
    gives the maximum lengths that the user has set, by name of the cross. `place` is the index of the cross's
    vocabulary among the text vocabularies.
    """
    column = CategoricalColumn(cross_name(parts), "cross", place, cross=parts)
    lists = [part for part in crossed if part.is_list]
    if not lists:
        return column
    lengths = [part.max_length for part in lists]
    return replace(
        column,
        is_list=True,
        max_length=max_lengths.get(column.name, max(*lengths, min(math.prod(lengths), USUAL_COMBINATIONS))),
        pool="sum" if all(part.pool == "sum" for part in lists) else "mean",
    )


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError if a name occurs twice in `names`.

    The names of fields must differ, because a model finds the ids and weights of a field by its name.
    """
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ValueError(
            f"columns: {twice[0]!r} is a column, and the name of a field that another column gives; rename the column"
        )
