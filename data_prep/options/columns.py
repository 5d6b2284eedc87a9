"""Categorical fields of a prepared folder, made from hex values, text, lists, buckets of integers, or crosses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from data_prep.options.kinds import TEXT_KINDS, Kind
from data_prep.options.log_format import TIME_FEATURES, LogFormat


@dataclass(frozen=True)
class CategoricalColumn:
    """A categorical field: a column of `ids`, or several for a list."""

    name: str
    kind: Kind | Literal["hour", "weekday", "bucket", "cross"]
    # Index of its vocabulary among those of text (texts, then crosses), or of numbers (hex values, features of each
    # timestamp, then buckets).
    place: int
    source: str = ""  # the column of the log that it is made of; "" for a cross
    cross: tuple[str, ...] = ()  # the crossed columns
    shares: str = ""  # the column whose vocabulary this one has
    max_length: int = 1  # columns of `ids`
    pool: Literal["mean", "sum"] = "mean"

    @property
    def is_text(self) -> bool:
        """True if values are strings, not numbers."""
        return self.kind == "cross" or self.kind in TEXT_KINDS


def cross_name(parts: Sequence[str]) -> str:
    """Return the name of a cross of these columns. `kernels.crosses` writes its values in the same way."""
    return "*".join(parts)


def categorical_columns(
    log_format: LogFormat, integer_buckets: bool, crosses: Sequence[tuple[str, ...]] = ()
) -> tuple[CategoricalColumn, ...]:
    """Return the log's columns in order, then the features of each timestamp, buckets if asked for, and crosses.

    Raises ValueError for two of one name, crosses aside.
    """
    own_texts = [name for name in log_format.text_fields if name not in log_format.shares]
    values, columns = log_format.value_fields, []
    for name in log_format.categorical_fields:
        kind, shares = log_format.columns[name], log_format.shares.get(name, "")
        place = values.index(name) if name in values else own_texts.index(shares or name)
        column = CategoricalColumn(name, kind, place, name, shares=shares)
        if kind == "list":
            form = log_format.list_form(name)
            column = replace(column, max_length=form.max_length, pool=form.pool)
        columns.append(column)
    places = itertools.count(len(values))
    for name in log_format.time_fields:
        parts = log_format.parts_of_time(name)
        columns += [CategoricalColumn(f"{name}{TIME_FEATURES[part]}", part, next(places), name) for part in parts]
    if integer_buckets:
        integers = log_format.integer_fields
        columns += [CategoricalColumn(f"{name}_bucket", "bucket", next(places), name) for name in integers]
    check_names([column.name for column in columns])
    columns += [
        CategoricalColumn(cross_name(parts), "cross", len(own_texts) + index, cross=parts)
        for index, parts in enumerate(crosses)
    ]
    return tuple(columns)


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError for two fields of one name: weights and ids of a model follow the names."""
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ValueError(
            f"columns: {twice[0]!r} is a column, and the name of a field that another column gives; rename the column"
        )
