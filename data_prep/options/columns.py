"""Categorical fields of a prepared folder, made from hex values, text, lists, buckets of integers, or crosses."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from data_prep.options.kinds import TEXT_KINDS, Kind
from data_prep.options.log_format import TIME_FEATURES, FormatToScore, LogFormat

USUAL_COMBINATIONS = 100  # of several lists that are crossed, unless one of them is longer, or the length is set


@dataclass(frozen=True)
class CategoricalColumn:
    """A categorical field: a column of `ids`, or several for a list."""

    name: str
    kind: Kind | Literal["hour", "weekday", "bucket", "present", "cross"]
    # Index of its vocabulary among those of text (texts, then crosses), or of numbers (hex values, features of each
    # timestamp, then buckets).
    place: int
    source: str = ""  # the column of the log that it is made of; "" for a cross
    cross: tuple[str, ...] = ()  # the crossed columns
    shares: str = ""  # the column whose vocabulary this one has
    is_list: bool = False  # several values in a row: a column of kind list, or a cross with one
    max_length: int = 1  # columns of `ids`
    pool: Literal["mean", "sum"] = "mean"
    timezone: str = ""  # of an hour or a weekday; "" for UTC

    @functools.cached_property
    def is_text(self) -> bool:
        """True if values are strings, not numbers."""
        return self.kind == "cross" or self.kind in TEXT_KINDS


@dataclass(frozen=True)
class EncodingOptions:
    """The options of a preparation by which rows are encoded, there and when they are scored."""

    data: LogFormat = field(default_factory=LogFormat)
    integer_buckets: bool = False
    crosses: tuple[tuple[str, ...], ...] = ()
    field_max_length: dict[str, int] = field(default_factory=dict)
    kernels: Literal["auto", "native", "numpy"] = "auto"

    @functools.cached_property  # a row in a service would spend most of its time here
    def categorical_columns(self) -> tuple[CategoricalColumn, ...]:
        """The log's columns in order, then the features of each timestamp, buckets if asked for, and crosses.

        Without any of them there is one that says whether the first number of a row is missing.
        Raises ValueError for two of one name, crosses aside.
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
        if not columns:  # a model needs one: whether the first number is there
            name = data.numeric_fields[0]
            columns.append(CategoricalColumn(f"{name}_present", "present", next(places), name))
        check_names([column.name for column in columns])
        crossed = [
            _cross([column for column in columns if column.name in parts], parts, place, self.field_max_length)
            for place, parts in enumerate(self.crosses, len(own_texts))
        ]
        return *columns, *crossed

    @functools.cached_property
    def vocabularies(self) -> tuple[CategoricalColumn, ...]:
        """The categorical columns with a vocabulary of their own, which others may share."""
        return tuple(column for column in self.categorical_columns if not column.shares)

    def without_label(self) -> EncodingOptions:
        """Return the options for rows to score, which need no label."""
        return replace(self, data=FormatToScore.of(self.data, label="optional"))


class NumberGroup(NamedTuple):
    """Categorical columns of numbers that are made in the same way."""

    kind: str
    timezone: str
    sources: tuple[str, ...]  # the columns of the log that they are made of


def number_groups(columns: Sequence[CategoricalColumn]) -> list[NumberGroup]:
    """Return the columns of numbers, in order, as groups."""
    numbers = (column for column in columns if not column.is_text)
    alike = itertools.groupby(numbers, lambda column: (column.kind, column.timezone))
    return [NumberGroup(*key, tuple(column.source for column in of_kind)) for key, of_kind in alike]


def cross_name(parts: Sequence[str]) -> str:
    """Return the name of a cross of these columns. `kernels.crosses` writes its values in the same way."""
    return "*".join(parts)


def _cross(
    crossed: Sequence[CategoricalColumn], parts: tuple[str, ...], place: int, max_lengths: Mapping[str, int]
) -> CategoricalColumn:
    """Return the cross of these columns: with a list among them, a list of the combinations of their values."""
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
    """Raise ValueError for two fields of one name: weights and ids of a model follow the names."""
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ValueError(
            f"columns: {twice[0]!r} is a column, and the name of a field that another column gives; rename the column"
        )
